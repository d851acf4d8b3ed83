//! Surroundings of functions in their thread and process: arithmetic as usual, and teams of threads of the size of their slot.

use hotlease_client::{Code, Error, Invoker, LeaseOptions, Polling};
use hotlease_tests::library;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::limits::VARIABLES_MAX;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn surroundings(platform: &Platform) -> Invoker {
    leased(platform, "", &BTreeMap::new()).unwrap()
}

fn leased(platform: &Platform, sandbox: &str, variables: &BTreeMap<String, String>) -> Result<Invoker, Error> {
    let path = library::compile("surroundings", &["-fopenmp", "-lm"]);
    let options = LeaseOptions {
        sandbox: sandbox.into(),
        variables: variables.clone(),
        ..platform.lease_options()
    };
    Invoker::allocate(&Code::open(path).unwrap(), options)
}

#[test]
fn neither_loading_nor_calls_change_the_arithmetic_of_later_calls() {
    let platform = Platform::start();
    let invoker = surroundings(&platform);
    let arithmetic = invoker.function("arithmetic").unwrap();
    assert_eq!(arithmetic.call(&[]).unwrap(), [1, 1], "after loading");
    invoker.function("changes_arithmetic").unwrap().call(&[]).unwrap();
    assert_eq!(arithmetic.call(&[]).unwrap(), [1, 1], "after a call");
}

#[test]
fn a_slot_beside_a_busy_loop_is_shown_as_preempted_and_pauses_its_polls() {
    let platform = Platform::start();
    let options = LeaseOptions {
        polling: Polling::Hot,
        hot_budget: LIMIT,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("behaved", options);
    let worker = || {
        let workers = platform.json(&["ps", "--leased"]).pop().unwrap();
        let contended = workers["contended"].as_bool().unwrap();
        (
            workers["preempted"].as_u64().unwrap(),
            contended,
            workers["cores"][0].as_u64().unwrap(),
        )
    };
    let mut core = CpuSet::new();
    core.set(worker().2 as usize).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sched_setaffinity(Pid::from_raw(0), &core).unwrap();
            let begun = Instant::now();
            while !ended.load(Ordering::Relaxed) && begun.elapsed() < LIMIT {
                std::hint::spin_loop();
            }
        });
        // The pauses are short, so that a look may come between two of them.
        until_true("it is shown", LIMIT, || {
            let (preempted, contended, _) = worker();
            preempted > 0 && contended
        });
        ended.store(true, Ordering::Relaxed);
    });
    invoker.deallocate().unwrap();
}

#[test]
fn a_parallel_loop_has_one_thread_for_each_core_of_its_slot() {
    let platform = Platform::start();
    let invoker = surroundings(&platform);
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        assert_eq!(invoker.function("team_size").unwrap().call(&[]).unwrap(), [1]);
    }
    let variable = invoker.function("variable").unwrap();
    for name in [
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "RAYON_NUM_THREADS",
    ] {
        let value = variable.call(name.as_bytes()).unwrap();
        // The user who runs these tests may have set it for the agent.
        let expected = std::env::var(name).unwrap_or_else(|_| "1".to_owned());
        assert_eq!(value, expected.as_bytes(), "{name}");
    }
}

#[test]
fn variables_of_a_lease_are_there_before_its_library_and_in_no_other_lease() {
    let platform = Platform::start();
    let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    let chosen = text(&[("AT_LOAD", "a=b, $c\nd"), ("OMP_NUM_THREADS", "3"), ("LANG", "x")]);
    for sandbox in ["process", "namespace", "container"] {
        let invoker = match leased(&platform, sandbox, &chosen) {
            Ok(invoker) => invoker,
            Err(Error::Refused(Rejection::NoSandbox { why, .. })) => {
                eprintln!("skipped: {why}");
                continue;
            }
            Err(error) => panic!("no lease of kind {sandbox}: {error}"),
        };
        let call = |invoker: &Invoker, function: &str, input: &str| {
            let output = invoker.function(function).unwrap().call(input.as_bytes()).unwrap();
            String::from_utf8(output).unwrap()
        };
        for (name, value) in &chosen {
            assert_eq!(call(&invoker, "variable", name), *value, "{sandbox}: {name}");
        }
        assert_eq!(call(&invoker, "variable_at_load", ""), chosen["AT_LOAD"], "{sandbox}");
        assert_eq!(call(&invoker, "team_size", ""), "\u{3}", "{sandbox}");
        assert_ne!(call(&invoker, "variable", "PATH"), "", "{sandbox}: others stay");
        invoker.deallocate().unwrap();
        // The lease's cores, and all waiting workers, are free for the next leases.
        let plain = leased(&platform, sandbox, &BTreeMap::new()).unwrap();
        assert_eq!(call(&plain, "variable", "AT_LOAD"), "", "{sandbox}: of another lease");
        plain.deallocate().unwrap();
        let other = leased(&platform, sandbox, &text(&[("AT_LOAD", "other")])).unwrap();
        assert_eq!(call(&other, "variable_at_load", ""), "other", "{sandbox}");
        other.deallocate().unwrap();
    }
}

#[test]
fn variables_that_no_lease_may_have_are_refused_by_client_and_platform() {
    let platform = Platform::start();
    let many = (0..=VARIABLES_MAX).map(|number| (format!("V{number}"), String::new()));
    let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    for (variables, word) in [
        (one("HOTLEASE_LIBFABRIC", "/tmp/x.so"), "HOTLEASE_LIBFABRIC"),
        (one("A=B", ""), "A=B"),
        (one("A", "a\0b"), "value of A"),
        (one("A", &"x".repeat(1 << 16)), "64 KiB"),
        (many.collect(), "256"),
    ] {
        let error = leased(&platform, "", &variables).expect_err("refused");
        assert!(
            matches!(&error, Error::Options { what } if what.contains(word)),
            "{error}"
        );
        // The request is from a client that does not check these variables.
        let refused = platform.manager().acquire(hotlease_wire::grpc::AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            variables: variables.into_iter().collect(),
            ..Default::default()
        });
        let refusal = refused.expect_err("refused");
        assert!(
            matches!(&refusal, Rejection::BadRequest { what } if what.contains(word)),
            "{refusal}"
        );
    }
}
