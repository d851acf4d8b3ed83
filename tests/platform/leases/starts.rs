//! Starts of leases: steps and reasons, as `hotlease explain` shows them. Those of Python leases are in
//! `tests/python/starts.rs`.

use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use serde_json::Value;

/// Explanation of the last lease.
fn explained(platform: &Platform, arguments: &[&str]) -> Value {
    let mut told = platform.json(&[&["explain"], arguments].concat());
    assert_eq!(told.len(), 1, "one object: {told:?}");
    told.remove(0)
}

fn steps(told: &Value) -> Vec<&str> {
    let phases = told["phases"].as_object().expect("an object");
    phases.keys().map(String::as_str).collect()
}

#[test]
fn a_lease_with_a_spare_worker_shows_it_and_keeps_its_steps_after_its_end() {
    let platform = Platform::start_with(PlatformOptions {
        pool: 1,
        ..PlatformOptions::default()
    });
    until_true("a worker waits", LIMIT, || {
        platform
            .manager()
            .workers()
            .expect("listed")
            .iter()
            .any(|worker| worker.state == "pooled")
    });
    let invoker = platform.invoker("echo");
    let told = explained(&platform, &[]);
    assert_eq!(
        (&told["warm"], &told["cold"], &told["why"]),
        (&1.into(), &0.into(), &"".into()),
        "{told}"
    );
    assert_eq!(steps(&told), ["connect", "grant", "imports"], "no call yet: {told}");
    let mut output = [0; 3];
    invoker
        .function("echo")
        .expect("it is there")
        .invoke(b"abc", &mut output)
        .expect("it runs");
    let told = explained(&platform, &[&told["lease"].as_str().expect("an id")[..12]]);
    assert_eq!(steps(&told), ["connect", "first_call", "grant", "imports"]);
    assert!(
        told["memory_bytes"].as_u64() > Some(1 << 20),
        "the node's share: {told}"
    );
    assert_eq!(
        told["memory_by_kernel"], false,
        "the agent holds the share itself: {told}"
    );
    invoker.deallocate().expect("given back");
    let over = explained(&platform, &[]);
    assert_eq!(over["state"], "ended");
    assert_eq!(
        (&over["lease"], &over["phases"]),
        (&told["lease"], &told["phases"]),
        "it is remembered"
    );
}

#[test]
fn a_lease_whose_worker_was_started_says_why_and_how_long_each_step_took() {
    let platform = Platform::start_with(PlatformOptions {
        pool: 0,
        ..PlatformOptions::default()
    });
    for sandbox in ["process", "namespace"] {
        let options = LeaseOptions {
            sandbox: sandbox.into(),
            memory_bytes: 64 << 20,
            ..platform.lease_options()
        };
        let code = Code::open(library("echo")).expect("a library");
        let begin = std::time::Instant::now();
        let invoker = match Invoker::allocate(&code, options) {
            Err(Error::Refused(Rejection::NoSandbox { why, .. })) => {
                eprintln!("skipped: {why}");
                continue;
            }
            allocated => allocated.expect("a lease"),
        };
        let mut output = [0; 3];
        invoker
            .function("echo")
            .expect("it is there")
            .invoke(b"abc", &mut output)
            .expect("it runs");
        let all = begin.elapsed();
        let told = explained(&platform, &[&invoker.lease().to_string()]);
        assert_eq!(
            (&told["sandbox"], &told["cold"], &told["memory_bytes"]),
            (&sandbox.into(), &1.into(), &(64 << 20).into()),
            "{told}"
        );
        if sandbox == "process" {
            let lacks = "not enforced on this host: memory of a worker by the kernel";
            let by_kernel = !platform.log().contains(lacks);
            assert_eq!(told["memory_by_kernel"], by_kernel, "{told}");
            let text = platform.run(&["explain", &invoker.lease().to_string()]).stdout;
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_said = text.contains("the kernel does not enforce each worker's limit of 64.0 MiB");
            assert_eq!(is_said, !by_kernel, "{text}");
        }
        assert!(
            told["why"]
                .as_str()
                .is_some_and(|why| why.contains("keeps no warm pool")),
            "{told}"
        );
        assert_eq!(
            steps(&told),
            ["connect", "first_call", "grant", "imports", "interpreter", "sandbox"]
        );
        let phases = told["phases"].as_object().expect("an object");
        let each: Vec<u64> = phases.values().filter_map(Value::as_u64).collect();
        assert!(each.iter().all(|ns| *ns > 0), "{told}");
        assert!(
            u128::from(each.iter().sum::<u64>()) <= all.as_nanos(),
            "more than all of it, {all:?}: {told}"
        );
        assert_eq!(
            invoker.phases().start.cold,
            told["why"].as_str().expect("text"),
            "its client was told the same"
        );
        invoker.deallocate().expect("given back");
    }
}

#[test]
fn an_unknown_lease_is_reported_as_unknown() {
    let platform = Platform::start();
    let output = platform.run(&["explain"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no lease whose start could be explained"));
    let output = platform.run(&["explain", "ffff"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("hotlease leases --all"));
}

#[test]
fn a_native_worker_waits_in_a_sandbox_once_a_lease_has_asked_for_one_and_serves_one_lease() {
    let platform = Platform::start_with(PlatformOptions {
        pool: 1,
        ..PlatformOptions::default()
    });
    let options = || LeaseOptions {
        sandbox: "namespace".into(),
        ..platform.lease_options()
    };
    let code = Code::open(library("echo")).expect("a library");
    let waiting = || {
        let workers = platform.manager().workers().expect("listed");
        let waits = |kind: &str| {
            let pooled = workers.iter().filter(|worker| worker.state == "pooled");
            pooled
                .filter(|worker| worker.sandbox == kind)
                .map(|worker| worker.pid)
                .collect::<Vec<_>>()
        };
        (waits("process").len(), waits("namespace"))
    };
    until_true("the usual one waits", LIMIT, || waiting().0 == 1);
    assert_eq!(waiting().1, [0; 0], "no lease has asked for a sandbox");
    let first = match Invoker::allocate(&code, options()) {
        Err(Error::Refused(Rejection::NoSandbox { why, .. })) => return eprintln!("skipped: {why}"),
        first => first.expect("a lease"),
    };
    let why = first.phases().start.cold;
    assert!(why.contains("they do once leases ask for them"), "{why}");
    first.deallocate().expect("given back");
    until_true("the next one waits", LIMIT, || waiting().1.len() == 1);
    let [pid] = waiting().1[..] else {
        panic!("one waits: {:?}", waiting());
    };
    let second = Invoker::allocate(&code, options()).expect("a lease");
    let told = explained(&platform, &[&second.lease().to_string()]);
    assert_eq!(
        (&told["warm"], &told["sandbox"], &told["why"]),
        (&1.into(), &"namespace".into(), &"".into()),
        "{told}"
    );
    let serving = platform.manager().workers().expect("listed");
    let serves = |worker: &&hotlease_wire::grpc::WorkerInfo| worker.lease == second.lease().to_string();
    assert_eq!(serving.iter().find(serves).map(|worker| worker.pid), Some(pid));
    let mut output = [0; 3];
    second
        .function("echo")
        .expect("it is there")
        .invoke(b"abc", &mut output)
        .expect("it runs");
    second.deallocate().expect("given back");
    until_true("it has gone with its lease", LIMIT, || {
        waiting().1.len() == 1 && waiting().1 != [pid]
    });
}

#[test]
fn workers_that_wait_load_libfabric_once_a_client_has_come_over_a_fabric() {
    let platform = Platform::start_with(PlatformOptions {
        pool: 1,
        ..PlatformOptions::default()
    });
    let waiting = || {
        let listed = platform.json(&["ps"]);
        let pooled = listed.iter().filter(|worker| worker["state"] == "pooled");
        let pids = pooled.filter_map(|worker| worker["pid"].as_i64());
        pids.filter_map(|pid| Process::of(pid as i32)).collect::<Vec<_>>()
    };
    platform.invoker("behaved").deallocate().unwrap();
    until_true("a worker waits", LIMIT, || !waiting().is_empty());
    assert!(
        !waiting().iter().any(|worker| worker.maps("libfabric")),
        "no client needs it"
    );
    let options = LeaseOptions {
        transport: Some("ofi".into()),
        ..platform.lease_options()
    };
    let code = Code::open(library("behaved")).unwrap();
    match Invoker::allocate(&code, options) {
        Ok(invoker) => {
            until_true("all that wait have it", LIMIT, || {
                let waiting = waiting();
                !waiting.is_empty() && waiting.iter().all(|worker| worker.maps("libfabric"))
            });
            invoker.deallocate().unwrap();
        }
        Err(error @ Error::Refused(_)) => panic!("no lease: {error}"),
        Err(error) => eprintln!("skipped: no fabric: {error}"),
    }
}
