//! Processes that functions fork: they start as if hotlease were not there.

use hotlease_client::{Cause, Error};
use hotlease_tests::platform::Platform;

/// Signals that the C library keeps for itself.
const OF_LIBRARY: u64 = 3 << 31;

#[test]
fn children_of_a_function_have_the_default_actions_of_signals() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    for name in ["signals_of_a_program", "signals_of_a_child"] {
        let function = invoker.function(name).unwrap().output_bytes(4096);
        let told = String::from_utf8(function.call(&[]).unwrap()).unwrap();
        let signals = told.lines().map(|line| {
            let (_, number) = line.split_once(":\t").expect("a line of the status");
            u64::from_str_radix(number, 16).expect("a number") & !OF_LIBRARY
        });
        // Blocked, ignored, caught.
        assert_eq!(signals.collect::<Vec<_>>(), [0, 0, 0], "{name}: {told}");
    }
    let pipe = invoker.function("writes_to_a_closed_pipe").unwrap();
    assert_eq!(
        pipe.call(&[]).unwrap(),
        [1],
        "the worker itself does not die of SIGPIPE"
    );
}

#[test]
fn only_the_parent_of_a_fork_answers_and_a_child_s_end_is_not_the_worker_s() {
    let platform = Platform::start();
    let invoker = platform.invoker("children");
    let forks = invoker.function("forks").unwrap();
    for _ in 0..3 {
        assert_eq!(forks.call(&[]).unwrap(), 0i32.to_le_bytes());
    }
    let dies = invoker.function("outlives_its_children").unwrap();
    match dies.call(&[]) {
        Err(Error::WorkerDied { cause, .. }) => {
            assert!(matches!(cause, Cause::Exit { status: 4, .. }), "{cause:?}");
        }
        other => panic!("{other:?}"),
    }
}
