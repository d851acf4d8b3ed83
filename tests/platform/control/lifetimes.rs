//! Agents that end by themselves: when the time of their node is over, or when no lease needs them.

use hotlease_client::{Code, Error, Invocation, Invoker, LeaseOptions};
use hotlease_tests::hosts::Host;
use hotlease_tests::library::library;
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::cores;
use hotlease_tests::site::Daemon;
use hotlease_tests::wait::{in_time, until_true};
use hotlease_wire::EndReason;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// A manager, and an agent of one core.
struct Node {
    agent: Daemon,
    _manager: Daemon,
    host: Host,
}

impl Node {
    fn start(further: &[&str]) -> Self {
        let host = Host::here();
        let manager = Daemon::start(&host, &["manager"]);
        let core = format!("{},", cores()[0]);
        let arguments = [&["agent", "--cores", &core, "--pool", "1"], further].concat();
        Self {
            agent: Daemon::start(&host, &arguments),
            _manager: manager,
            host,
        }
    }

    fn lease(&self, name: &str) -> Result<Invoker, Error> {
        let options = LeaseOptions {
            runtime_dir: Some(self.host.runtime_dir().to_owned()),
            replace_lease: false,
            patience: LIMIT,
            ..LeaseOptions::default()
        };
        Invoker::allocate(&Code::open(library(name)).expect("a library"), options)
    }

    /// A call that never returns.
    fn looping(&self) -> (Invoker, Invocation) {
        let invoker = self.lease("misbehaved").expect("a lease");
        let marks = Marks::new();
        let call = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
        until_true("it has begun", LIMIT, || marks.count() == 1);
        (invoker, call)
    }
}

/// The client renews its lease all the time.
#[test]
fn no_lease_outlasts_the_time_of_its_node_and_the_agent_ends_before_it() {
    let begun = Instant::now();
    let mut node = Node::start(&["--until", "12s", "--drain-within", "1h"]);
    let (_invoker, call) = node.looping();
    let told = call.wait().expect_err("it never returns");
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(9), "the lease ended after {took:?} of 12 s");
    let reason = EndReason::Reclaimed;
    assert!(
        matches!(&told, Error::LeaseEnded { reason: why, .. } if *why == reason),
        "{told:?}"
    );
    let (status, _) = node.agent.ended(LIMIT);
    assert!(status.success(), "{status}");
    let log = node.agent.log();
    assert!(log.contains("the node's time is nearly over"), "{log}");
}

#[test]
fn an_agent_does_not_start_for_a_time_that_is_over() {
    let host = Host::here();
    for (until, why) in [
        ("1s", "too short for a lease"),
        ("@1000", "too short for a lease"),
        ("soon", "write 1h"),
    ] {
        let mut agent = Daemon::launch(&host, host.runtime_dir(), &["agent", "--until", until]);
        let (status, _) = agent.ended(LIMIT);
        assert!(!status.success(), "--until {until}");
        assert!(agent.log().contains(why), "--until {until}: {}", agent.log());
    }
}

#[test]
fn an_agent_that_no_lease_needs_ends_by_itself_and_not_while_one_does() {
    let mut node = Node::start(&["--idle-limit", "2s"]);
    let (invoker, call) = node.looping();
    let begun = Instant::now();
    until_true("more than its idle time has passed", LIMIT, || {
        assert!(node.agent.process().is_alive(), "it ended under its lease");
        begun.elapsed() > Duration::from_secs(3)
    });
    drop(call);
    drop(invoker);
    let (status, took) = node.agent.ended(LIMIT);
    assert!(status.success(), "{status}");
    assert!(took < LIMIT / 2, "it ended after {took:?}");
}

/// As a batch system asks for that takes a node back: SIGKILL follows 30 s later, or at once.
#[test]
fn sigterm_without_notice_ends_a_busy_agent_within_a_second() {
    let second = Duration::from_secs(1);
    in_time("an agent ends", second, || {
        let mut node = Node::start(&["--drain-within", "0s"]);
        let (_invoker, call) = node.looping();
        node.agent.process().signal(Signal::SIGTERM);
        let (status, took) = node.agent.ended(LIMIT);
        assert!(status.success(), "{status}");
        let told = call.wait().expect_err("it never returns");
        let reason = EndReason::Reclaimed;
        assert!(
            matches!(&told, Error::LeaseEnded { reason: why, .. } if *why == reason),
            "{told:?}"
        );
        took
    });
}
