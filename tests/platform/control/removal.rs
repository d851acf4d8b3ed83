//! Agents that give their node back when they get a signal.

use super::nodes::is_told_of_a_node_given_back;
use hotlease_client::{Code, Invocation, Invoker, LeaseOptions};
use hotlease_tests::hosts::Host;
use hotlease_tests::library::library;
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::process::{Process, cores};
use hotlease_tests::site::Daemon;
use hotlease_tests::wait::until_true;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// A manager and an agent of two cores, as two processes.
struct Node {
    host: Host,
    _manager: Daemon,
    agent: Daemon,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        let host = Host::here();
        let manager = Daemon::start(&host, &["manager"]);
        let cores: Vec<String> = cores().iter().take(2).map(u32::to_string).collect();
        let cores = cores.join(",");
        let all = [&["agent", "--cores", &cores, "--pool", "1"], arguments].concat();
        let agent = Daemon::start(&host, &all);
        let node = Self {
            host,
            _manager: manager,
            agent,
        };
        until_true("the agent serves", LIMIT, || {
            node.json(&["agents"]).iter().any(|agent| agent["state"] == "serving")
        });
        node
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        json(&self.host, arguments)
    }

    fn invoker(&self, library: &str) -> Invoker {
        invoker(&self.host, library)
    }
}

fn json(host: &Host, arguments: &[&str]) -> Vec<Value> {
    let mut command = host.command(&program("hotlease"));
    command
        .args(arguments)
        .arg("--json")
        .env("HOTLEASE_RUNTIME_DIR", host.runtime_dir());
    let output = command.output().expect("hotlease runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "hotlease {arguments:?}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn invoker(host: &Host, name: &str) -> Invoker {
    let options = LeaseOptions {
        runtime_dir: Some(host.runtime_dir().to_owned()),
        replace_lease: false,
        ..LeaseOptions::default()
    };
    let code = Code::open(library(name)).expect("a library");
    Invoker::allocate(&code, options).unwrap_or_else(|error| panic!("no lease: {error}"))
}

fn looping(host: &Host) -> (Invoker, Invocation) {
    let invoker = invoker(host, "misbehaved");
    let marks = Marks::new();
    let call = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
    until_true("it has begun", LIMIT, || marks.count() == 1);
    (invoker, call)
}

/// Files of shared memory on this machine.
fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // Other tests of this program try to leave files there (`escapes`).
        .filter(|name| name.contains("hotlease") && !name.contains("hotlease-escape"))
        .collect()
}

/// Checks that nothing of a stopped agent is left on its node: no process, no shared memory, no socket.
fn is_clean(host: &Host, processes: &[Process], before: &BTreeSet<String>) {
    let left: Vec<String> = processes
        .iter()
        .filter(|process| process.is_alive())
        .map(Process::describe)
        .collect();
    assert_eq!(left, [""; 0], "processes are left");
    let shared: Vec<_> = shared_memory().difference(before).cloned().collect();
    assert_eq!(shared, [""; 0], "shared memory is left");
    for socket in ["agent.sock", "session.sock"] {
        assert!(!host.directory().join(socket).exists(), "{socket} is left");
    }
}

/// Checks that the bill equals the agent's journal.
fn is_billed(node: &Node) {
    let verdict = &node.json(&["bill", "verify"])[0];
    assert_eq!(verdict["journal"]["waiting"], 0, "all usage was reported: {verdict}");
    let billed = node.json(&["bill", "--by", "lease"]);
    assert!(
        billed
            .iter()
            .any(|row| row["compute_ns"].as_u64().is_some_and(|ns| ns > 0)),
        "the calls that were killed are billed: {billed:?}"
    );
}

#[test]
fn sigterm_lets_leases_finish_and_cuts_a_hot_loop_at_the_deadline() {
    let mut node = Node::start(&["--drain-within", "1500ms"]);
    let before = shared_memory();
    let finishing = node.invoker("behaved");
    let (_held, call) = looping(&node.host);
    let start = Instant::now();
    node.agent.process().signal(Signal::SIGTERM);
    until_true("it drains", LIMIT, || {
        node.json(&["agents"]).iter().any(|agent| agent["state"] == "draining")
    });
    let echo = finishing.function("echo").unwrap();
    assert_eq!(echo.call(b"go on").unwrap(), b"go on", "calls go on until the deadline");
    finishing.deallocate().unwrap();
    let processes = node.agent.process().descendants();
    let (status, _) = node.agent.ended(LIMIT);
    let took = start.elapsed();
    assert!(status.success(), "{status}");
    assert!(
        took >= Duration::from_millis(1450) && took < Duration::from_secs(10),
        "a notice of 1.5 s took {took:?}"
    );
    is_told_of_a_node_given_back(&call.wait().expect_err("it never returns"));
    is_clean(&node.host, &processes, &before);
    is_billed(&node);
}

#[test]
fn sigterm_of_an_agent_without_leases_and_a_second_one_of_a_busy_agent_stop_it_at_once() {
    let mut idle = Node::start(&[]);
    idle.agent.process().signal(Signal::SIGTERM);
    let (status, took) = idle.agent.ended(LIMIT);
    assert!(
        status.success() && took < Duration::from_secs(10),
        "{status} after {took:?}"
    );

    let mut busy = Node::start(&["--drain-within", "60s"]);
    let (_held, call) = looping(&busy.host);
    let process = busy.agent.process();
    process.signal(Signal::SIGTERM);
    until_true("it drains", LIMIT, || {
        busy.json(&["agents"]).iter().any(|agent| agent["state"] == "draining")
    });
    process.signal(Signal::SIGTERM);
    let (status, took) = busy.agent.ended(LIMIT);
    assert!(
        status.success() && took < Duration::from_secs(10),
        "{status} after {took:?}"
    );
    assert!(call.wait().is_err());
}

#[test]
fn sigusr1_during_hot_loops_tells_clients_bills_what_was_used_and_leaves_nothing() {
    for round in 0..3 {
        let mut node = Node::start(&[]);
        let before = shared_memory();
        let calls = [looping(&node.host), looping(&node.host)];
        let processes = node.agent.process().descendants();
        assert!(processes.len() >= 2, "two workers run: {processes:?}");
        let start = Instant::now();
        node.agent.process().signal(Signal::SIGUSR1);
        let (status, took) = node.agent.ended(LIMIT);
        assert!(status.success(), "round {round}: {status}");
        assert!(took < Duration::from_secs(10), "round {round}: it took {took:?}");
        for (_, call) in calls {
            is_told_of_a_node_given_back(&call.wait().expect_err("it never returns"));
        }
        assert!(start.elapsed() < LIMIT, "clients are told");
        is_clean(&node.host, &processes, &before);
        is_billed(&node);
        until_true("the manager knows that it is gone", LIMIT, || {
            node.json(&["agents"]).is_empty()
        });
    }
}

/// A batch system that preempts a job signals every process of it, the workers too.
#[test]
fn workers_leave_the_signals_of_a_batch_system_to_their_agent() {
    let node = Node::start(&["--drain-within", "60s"]);
    let invoker = node.invoker("behaved");
    let echo = invoker.function("echo").unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1] {
        for worker in node.agent.process().descendants() {
            worker.signal(signal);
        }
        assert_eq!(echo.call(b"go on").unwrap(), b"go on", "after {signal}");
    }
}

/// Number of busy slots when a node is taken back.
const BUSY: usize = 32;
/// Variable with the number of times that [`thirty_two_hot_loops_are_gone_soon_after_sigusr1`] is repeated.
const REPEAT: &str = "HOTLEASE_REMOVALS";

/// An agent offers each core once, so a machine with fewer cores runs several nodes here, which are all taken at the
/// same moment. This is more work than the removal of one node with as many slots.
#[test]
fn thirty_two_hot_loops_are_gone_soon_after_sigusr1() {
    let repeat = std::env::var(REPEAT).ok().and_then(|times| times.parse().ok());
    let mut times: Vec<Duration> = (0..repeat.unwrap_or(1)).map(|_| remove_busy_slots()).collect();
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part).div_ceil(100).clamp(1, times.len()) - 1];
    eprintln!(
        "removal of {BUSY} busy slots, {} times: p50 {:?}, p99 {:?}",
        times.len(),
        at(50),
        at(99)
    );
    // The promise is one second. Tests share two cores with other programs: only a node that hangs is as slow as this
    // limit.
    let slowest = at(100);
    assert!(slowest < Duration::from_secs(10), "it took {slowest:?}");
}

/// Takes all nodes; returns how long it took until all their processes were gone.
fn remove_busy_slots() -> Duration {
    let cores: Vec<u32> = cores().into_iter().take(BUSY).collect();
    let listed: Vec<String> = cores.iter().map(u32::to_string).collect();
    let listed = format!("{},", listed.join(","));
    let mut nodes: Vec<(Host, Daemon)> = (0..BUSY.div_ceil(cores.len()))
        .map(|_| {
            let host = Host::here();
            let up = Daemon::start(&host, &["up", "--cores", &listed, "--pool", "0"]);
            (host, up)
        })
        .collect();
    let calls: Vec<_> = nodes
        .iter()
        .flat_map(|(host, _)| cores.iter().map(|_| looping(host)).collect::<Vec<_>>())
        .collect();
    let processes: Vec<Process> = nodes.iter().flat_map(|(_, up)| up.process().descendants()).collect();
    assert!(processes.len() >= BUSY, "{} workers run", processes.len());
    let daemons: Vec<Process> = nodes.iter().map(|(_, up)| up.process()).collect();
    let start = Instant::now();
    for daemon in &daemons {
        daemon.signal(Signal::SIGUSR1);
    }
    for (_, up) in &mut nodes {
        let (status, _) = up.ended(LIMIT);
        assert!(status.success(), "{status}");
    }
    let took = start.elapsed();
    let left = processes.iter().filter(|process| process.is_alive()).count();
    assert_eq!(left, 0, "workers outlive their agent");
    for (_, call) in calls {
        is_told_of_a_node_given_back(&call.wait().expect_err("it never returns"));
    }
    took
}
