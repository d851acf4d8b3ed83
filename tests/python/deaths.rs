//! Workers that die of their tasks, and what must not kill them.

use crate::requests::*;
use hotlease_client::{Cause, Error};

#[test]
fn a_worker_that_dies_of_its_task_is_told_with_the_cause_and_its_last_output() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    for (how, expected) in [
        (
            "_exit",
            Cause::Exit {
                status: 3,
                function: Some(0),
            },
        ),
        (
            "kill",
            Cause::Signal {
                signal: 9,
                function: Some(0),
            },
        ),
        (
            "segfault",
            Cause::Signal {
                signal: 11,
                function: Some(0),
            },
        ),
    ] {
        match ask(&function, "prints_and", &tuple(&[text(how)])) {
            Err(Error::WorkerDied { cause, output, .. }) => {
                assert_eq!(cause, expected, "{how}");
                assert!(
                    output.ends_with("some of the output\nthe last line\n"),
                    "{how}: {output:?}"
                );
            }
            other => panic!("{how}: {other:?}"),
        }
    }
    let (kind, body) = ask(&function, "prints_and", &tuple(&[text("exit")])).expect("a reply");
    let told = String::from_utf8_lossy(&body).into_owned();
    assert!(
        kind == EXCEPTION && told.contains("SystemExit: 4"),
        "sys.exit is an exception: {told}"
    );
}

#[test]
fn signals_from_the_terminal_are_not_the_workers() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    let still = ask(&function, "interrupted", NOTHING).expect("it lives");
    assert_eq!(still, (PLAIN, text("still here")));
}

#[test]
fn only_the_parent_of_a_fork_answers() {
    let scene = Scene::new();
    let (_invoker, function) = scene.function();
    for _ in 0..3 {
        let answer = ask(&function, "forks", NOTHING).expect("a reply");
        assert_eq!(answer, (PLAIN, tuple(&[text("the parent"), int(0)])));
    }
}
