//! Batch jobs that begin at random moments while interpreters import, are forked, wait and compute.

use crate::requests::*;
use hotlease_client::{Code, Error, Invoker, LeaseOptions, Python, RunCertainty};
use hotlease_fabric::socket::Socket;
use hotlease_tests::faults::scale::{random, seed, times};
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use hotlease_wire::python::IMPORTS;
use rand::RngExt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Jobs with HOTLEASE_FAULTS_TIMES=1.
const JOBS: u32 = 50;
/// Longest time between two jobs: leases start, end, and leave spares and a zygote.
const GAP: Duration = Duration::from_millis(1500);

fn ask_agent(socket: &Path, request: NodeRequest) -> NodeAnswer {
    let socket = Socket::connect(socket).expect("the node socket");
    socket.send(&request, &[]).expect("a request");
    socket.receive().expect("an answer").expect("an answer").0
}

/// Interpreters among the processes below the platform.
fn interpreters(scene: &Scene) -> Vec<String> {
    let is_python = |process: &Process| {
        let program = fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
        program
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("python"))
    };
    let all = scene.platform.process().descendants().into_iter();
    all.filter(is_python).map(|process| process.describe()).collect()
}

/// The package as files: a sandbox shows nothing that links lead to.
fn copied_package() -> TempDir {
    let (linked, copied) = (package(), tempfile::tempdir().expect("a folder"));
    copy(linked.path(), copied.path());
    copied
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&to).expect("a folder");
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file");
        }
    }
}

/// Observations of a client: calls that were answered, calls that a job has interrupted, and starts that a job has
/// interrupted.
#[derive(Debug, Default)]
struct Account {
    answered: u32,
    told: u32,
    not_leased: u32,
}

fn keep_leasing(options: &LeaseOptions, stop: &AtomicBool, seed: u64) -> Account {
    let (mut account, mut random) = (Account::default(), random(seed, u32::MAX));
    while !stop.load(Ordering::Relaxed) {
        let invoker = match Invoker::allocate(&Code::python(), options.clone()) {
            Ok(invoker) => invoker,
            Err(error) => {
                assert_eq!(error.ran(), RunCertainty::No, "no call was made: {error}");
                account.not_leased += 1;
                continue;
            }
        };
        let function = invoker.function("hotlease.call").expect("the one function");
        for _ in 0..random.random_range(0..4) {
            match ask(&function, "pid", NOTHING) {
                Ok((kind, _)) => {
                    assert_eq!(kind, PLAIN);
                    account.answered += 1;
                }
                Err(Error::LeaseEnded { .. }) => account.told += 1,
                Err(error) => panic!("a call that a job interrupts is told of the job: {error:?}"),
            }
        }
    }
    account
}

#[test]
fn a_job_finds_no_interpreter_whether_it_imports_is_forked_waits_or_computes() {
    let scene = Scene::new();
    let seed = seed();
    let package = copied_package();
    let python = python(package.path());
    let mut environment = python.environment.clone();
    environment.insert(IMPORTS.into(), "decimal".into());
    let options = LeaseOptions {
        python: Some(Python {
            environment,
            // Visible in a sandbox.
            path: vec![package.path().to_owned()],
            ..python
        }),
        sandbox: "namespace".into(),
        patience: LIMIT,
        move_within: LIMIT,
        ..scene.platform.lease_options()
    };
    match Invoker::allocate(&Code::python(), options.clone()) {
        Ok(invoker) => drop(invoker),
        Err(error) if matches!(error.refusal(), Some(Rejection::NoSandbox { .. })) => {
            return eprintln!("skipped: {error}");
        }
        Err(error) => panic!("no lease: {error}"),
    }
    let socket = scene
        .platform
        .lease_options()
        .runtime_dir
        .expect("a folder")
        .join("node.sock");
    let stop = Arc::new(AtomicBool::new(false));
    let client = {
        let (options, stop) = (options, Arc::clone(&stop));
        thread::spawn(move || keep_leasing(&options, &stop, seed))
    };
    for number in 1..=times(JOBS) {
        let mut random = random(seed, number);
        thread::sleep(random.random_range(Duration::ZERO..GAP));
        let job = BatchJob {
            user: "ada".into(),
            ..BatchJob::unknown(JobId(number.into()))
        };
        let answer = ask_agent(&socket, NodeRequest::Yield(Box::new(job)));
        let left = interpreters(&scene);
        assert!(matches!(answer, NodeAnswer::Free { .. }), "{answer:?}");
        assert_eq!(
            left, [""; 0],
            "job {number} does not have the node alone; HOTLEASE_FAULTS_SEED={seed}"
        );
        let retake = NodeRequest::Retake(JobId(number.into()));
        assert_eq!(ask_agent(&socket, retake), NodeAnswer::Retaken);
    }
    stop.store(true, Ordering::Relaxed);
    until_true("all calls are resolved", LIMIT, || client.is_finished());
    let account = client.join().expect("the client has seen nothing wrong");
    eprintln!("{account:?}; HOTLEASE_FAULTS_SEED={seed}");
}
