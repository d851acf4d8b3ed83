//! Clients that die, or fall silent.

use crate::leases::until_all_cores_can_be_leased;
use hotlease_tests::lease::Bystander;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::process::Process;
use hotlease_tests::wait::{in_time, until, until_true};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A client in a process of its own. Killed when dropped.
struct Client {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a client; returns when it has its lease.
    fn start(platform: &Platform, ttl: Duration, action: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hotlease-test-client"))
            .arg(platform.directory())
            .arg(library("behaved"))
            .arg(ttl.as_millis().to_string())
            .arg(action)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut client = Self { child, lines };
        assert_eq!(client.line(), "ready");
        client
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        Process::of(self.child.id() as i32).expect("it runs").signal(signal);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn cores_of_a_killed_client_are_free_within_250_ms() {
    let platform = Platform::start_alone();
    let bystander = Bystander::start(&platform);
    for action in ["hold", "compute", "keep-calling"] {
        let took = in_time(action, Duration::from_millis(250), || {
            let mut client = Client::start(&platform, Duration::from_secs(60), action);
            assert_eq!(platform.free_cores(), 0);
            client.child.kill().unwrap();
            until_true("a core is free", LIMIT, || platform.free_cores() == 1)
        });
        eprintln!("{action}: free after {took:?}");
    }
    bystander.finish();
    until_all_cores_can_be_leased(&platform, SOON);
}

#[test]
fn cores_of_a_silent_client_are_free_after_its_time_to_live() {
    let platform = Platform::start_alone();
    let ttl = Duration::from_secs(2);
    let took = in_time("free again", ttl + Duration::from_secs(1), || {
        let mut client = Client::start(&platform, ttl, "keep-calling");
        let before = client.line();
        assert!(before.starts_with("called "), "{before}");
        client.signal(Signal::SIGSTOP);
        let took = until_all_cores_can_be_leased(&platform, LIMIT);
        // When the client continues, its old worker is gone, and it gets a new lease without an error.
        client.signal(Signal::SIGCONT);
        let (line, _) = until("it calls another worker", LIMIT, || {
            let line = client.line();
            (line.starts_with("called ") && line != before).then_some(line)
        });
        eprintln!("{before}, then {line}");
        took
    });
    eprintln!("free after {took:?}");
}

#[test]
fn client_that_stops_while_its_function_runs_keeps_no_core() {
    let platform = Platform::start_alone();
    let ttl = Duration::from_secs(2);
    in_time("free again", ttl + Duration::from_secs(1), || {
        let client = Client::start(&platform, ttl, "compute");
        client.signal(Signal::SIGSTOP);
        until_all_cores_can_be_leased(&platform, LIMIT)
    });
}
