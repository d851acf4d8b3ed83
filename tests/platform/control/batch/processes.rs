//! Processes that a batch job must not find on its node: workers that wait, that are being made or that give back their
//! memory, and what tenants have started.

use super::{Node, job};
use hotlease_client::{Code, Invoker, LeaseOptions};
use hotlease_fabric::socket::Socket;
use hotlease_tests::hosts::Host;
use hotlease_tests::library::library;
use hotlease_tests::manager::ManagerClient;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::process::Process;
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::batch::{NodeAnswer, NodeRequest};
use nix::sys::signal::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

/// More than the memory of a usual worker, less than the memory of a heavy worker.
const HEAVY_BYTES: u64 = 200 << 20;

fn described(processes: impl IntoIterator<Item = Process>) -> Vec<String> {
    processes.into_iter().map(|process| process.describe()).collect()
}

#[test]
fn a_job_waits_for_the_memory_of_workers_that_waited_for_leases() {
    let host = Host::here();
    let worker = host.directory().join("worker");
    let (heavy, usual) = (library("heavy"), program("hotlease-worker"));
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD={} exec {} \"$@\"\n",
        heavy.display(),
        usual.display()
    );
    fs::write(&worker, script).expect("a file");
    fs::set_permissions(&worker, Permissions::from_mode(0o755)).expect("a program");
    host.set_variable("HOTLEASE_WORKER", &worker);
    let node = Node::start_on(host, &[]);
    until_true("a heavy worker waits", LIMIT, || {
        node.workers().iter().any(|worker| worker.rss_bytes() > HEAVY_BYTES)
    });
    let answer = node.ask(NodeRequest::Yield(Box::new(job(41)))).recv_timeout(LIMIT);
    let left = node.workers();
    assert!(matches!(answer, Ok(NodeAnswer::Free { .. })), "{answer:?}");
    assert_eq!(described(left), [""; 0], "the job does not have the node alone");
    node.tell("retake", 41);
    node.serves();
}

/// A nursery that is stopped makes no process: the worker of a lease is being made for as long as the test wants.
#[test]
fn a_job_waits_for_a_worker_that_is_being_made_for_a_lease() {
    let node = Node::start();
    let cold = || LeaseOptions {
        runtime_dir: Some(node.host.runtime_dir().to_owned()),
        sandbox: "namespace".into(),
        replace_lease: false,
        // No waiting worker has them.
        variables: [("COLD".to_owned(), "1".to_owned())].into(),
        ..LeaseOptions::default()
    };
    let code = Code::open(library("behaved")).expect("a library");
    // Makes the nursery.
    match Invoker::allocate(&code, cold()) {
        Ok(invoker) => drop(invoker),
        Err(error) => return eprintln!("skipped: {error}"),
    }
    let is_nursery = |process: &Process| process.describe().contains("hotlease-nurs");
    let (nursery, _) = until("there is a nursery", LIMIT, || {
        node.workers().into_iter().find(is_nursery)
    });
    let only_nursery = || {
        let others = node.workers().into_iter().filter(|process| !is_nursery(process));
        described(others)
    };
    let manager = ManagerClient::connect(node.host.runtime_dir()).expect("the manager serves");
    // The job may also arrive before the worker is being made; this does not happen to five jobs in a row.
    for number in 51..56 {
        node.serves();
        nursery.signal(Signal::SIGSTOP);
        let (options, code) = (cold(), code.clone());
        let leasing = thread::spawn(move || Invoker::allocate(&code, options).map(drop));
        until_true("its worker is being started", LIMIT, || {
            let workers = manager.workers().unwrap_or_default();
            workers.iter().any(|worker| worker.state == "starting")
        });
        let answered = node.ask(NodeRequest::Yield(Box::new(job(number))));
        let early = answered.recv_timeout(Duration::from_millis(300));
        nursery.signal(Signal::SIGCONT);
        let was_waited_for = early.is_err();
        let answer = early.or_else(|_| answered.recv_timeout(LIMIT));
        assert!(matches!(answer, Ok(NodeAnswer::Free { .. })), "{answer:?}");
        if was_waited_for {
            assert_eq!(only_nursery(), [""; 0], "the job does not have the node alone");
        }
        leasing.join().expect("no panic").expect_err("a job has the node");
        node.tell("retake", number);
        if was_waited_for {
            return;
        }
    }
    panic!("five jobs were told that the node is free while a worker was being made");
}

#[test]
fn what_a_tenant_has_started_is_gone_though_it_is_stopped_and_ignores_signals() {
    let node = Node::start();
    let invoker = node.lease("stubborn").expect("a lease");
    let path = node.host.directory().join("numbers");
    let input = path.to_str().expect("text").as_bytes();
    let call = invoker.function("leaves_children").unwrap().submit(input).unwrap();
    let (numbers, _) = until("it has children", LIMIT, || fs::read_to_string(&path).ok());
    let children = numbers
        .split_whitespace()
        .map(|number| number.parse().expect("a number"));
    let children: Vec<Process> = children.filter_map(Process::of).collect();
    assert_eq!(children.len(), 3, "{numbers}");
    let stopped = children[2];
    until_true("one is stopped", LIMIT, || stopped.describe().contains("T (stopped)"));
    node.tell("yield", 61);
    let left = children.into_iter().filter(Process::is_alive);
    assert_eq!(described(left), [""; 0], "the job does not have the node alone");
    let told = call.wait().expect_err("it never returns").to_string();
    assert!(told.contains("batch job 61"), "{told}");
    node.tell("retake", 61);
    node.serves();
}

/// `hotlease-node` regards an agent that closes its connection as dead.
#[test]
fn connections_that_ask_for_nothing_cost_no_agent() {
    let node = Node::start();
    let path = node.host.runtime_dir().join("node.sock");
    let idle: Vec<Socket> = (0..300)
        .map(|_| Socket::connect(&path).expect("a connection"))
        .collect();
    let (output, _) = node.tell("yield", 71);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("job 71: the node is free"), "{said}");
    drop(idle);
    node.tell("retake", 71);
    node.serves();
}

/// Slurm runs a prolog again when a job is requeued, and may never run an epilog.
#[test]
fn a_prolog_that_comes_twice_needs_one_epilog() {
    let node = Node::start();
    for _ in 0..2 {
        node.tell("yield", 81);
        assert!(node.lease("behaved").is_err(), "job 81 has the node");
    }
    node.tell("retake", 81);
    node.serves();
    // An epilog without a prolog.
    node.tell("retake", 82);
    node.tell("yield", 82);
    assert!(node.lease("behaved").is_err(), "job 82 has the node");
    node.tell("retake", 82);
    node.serves();
}
