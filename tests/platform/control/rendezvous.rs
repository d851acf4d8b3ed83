//! `hotlease comm rendezvous`: the place where members of communicators meet.

use hotlease_comm::{Communicator, Error, JoinRejection, Options, Pattern, Secret};
use hotlease_tests::platform::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

const SECRET: &str = "the secret of these tests";

fn start(environment: &[(&str, &str)], arguments: &[&str]) -> Child {
    Command::new(program("hotlease"))
        .args(["comm", "rendezvous", "--json", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .env_remove("HOTLEASE_COMM_SECRET")
        .env_remove("HOTLEASE_COMM_SECRET_FILE")
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Address that the rendezvous prints when it serves.
fn address(rendezvous: &mut Child) -> String {
    let mut line = String::new();
    let stdout = rendezvous.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object["pid"], rendezvous.id());
    object["listen"].as_str().unwrap().to_owned()
}

fn options(address: &str, size: u32) -> Options {
    Options::new("test", size, address, Secret::new(SECRET.as_bytes()).unwrap())
}

#[test]
fn members_meet_at_the_rendezvous_until_it_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let file = file.to_str().unwrap();
    let started = [
        start(&[("HOTLEASE_COMM_SECRET", SECRET)], &[]),
        start(&[("HOTLEASE_COMM_SECRET_FILE", file)], &[]),
        start(&[], &["--secret-file", file]),
    ];
    for mut rendezvous in started {
        let address = address(&mut rendezvous);
        let both = options(&address, 2);
        let member = || {
            let all = Communicator::join(&both).unwrap();
            let other = 1 - all.rank();
            all.send(b"here", other, 0).unwrap();
            all.receive(&mut [0; 4], Pattern::of(other, 0)).unwrap();
            all.finish().unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(member);
            scope.spawn(member);
        });
        // Members that wait when the rendezvous stops are told. If two members ask for the same rank, one is refused
        // and the other waits.
        let (told, results) = mpsc::channel();
        for _ in 0..2 {
            let (told, mut waits) = (told.clone(), options(&address, 2));
            waits.rank = Some(0);
            std::thread::spawn(move || told.send(Communicator::join(&waits).map(drop)));
        }
        let refused = || match results.recv().unwrap() {
            Err(Error::RendezvousRefused { refused, .. }) => refused,
            other => panic!("{other:?}"),
        };
        let first = refused();
        assert!(matches!(first, JoinRejection::DuplicateRank { .. }), "{first}");
        kill(Pid::from_raw(rendezvous.id() as i32), Signal::SIGTERM).unwrap();
        assert!(rendezvous.wait().unwrap().success());
        let second = refused();
        assert!(matches!(second, JoinRejection::Stopping), "{second}");
    }
}

#[test]
fn a_rendezvous_without_a_secret_is_refused() {
    let started = [
        (start(&[], &[]), "HOTLEASE_COMM_SECRET_FILE"),
        (start(&[("HOTLEASE_COMM_SECRET", "short")], &[]), "it has 5 bytes"),
    ];
    for (rendezvous, part) in started {
        let output = rendezvous.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(part), "{text}");
    }
}
