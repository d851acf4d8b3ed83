//! Shared cores: more warm slots than cores.

use hotlease_client::{Completion, Error, Invoker, LeaseOptions, Polling, Rejection, RunCertainty, Sharing};
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions, SOON};
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn shared(platform: &Platform, workers: u16) -> LeaseOptions {
    LeaseOptions {
        workers,
        sharing: Sharing::Shared,
        completion: Completion::Sleep,
        ..platform.lease_options()
    }
}

fn not_waiting(platform: &Platform, workers: u16) -> LeaseOptions {
    LeaseOptions {
        wait_for_core: false,
        ..shared(platform, workers)
    }
}

fn millis(milliseconds: u32) -> [u8; 4] {
    milliseconds.to_le_bytes()
}

/// The one core that a slot runs on.
fn core(invoker: &Invoker, slot: usize) -> i32 {
    let place = invoker.function("place").unwrap().on_slot(slot).unwrap();
    let answer = place.call(b"").unwrap();
    i32::from_le_bytes(answer[8..12].try_into().unwrap())
}

/// Waits until a function runs on a slot of another worker that shares this lease's core.
fn until_taken(invoker: &Invoker, slot: usize) {
    let echo = invoker.function("echo").unwrap().on_slot(slot).unwrap();
    until_true("the core is taken", LIMIT, || {
        matches!(echo.call(b"x"), Err(Error::NoCore))
    });
}

#[test]
fn eight_warm_slots_share_two_cores_and_exclusive_leases_get_none_of_them() {
    let platform = Platform::start();
    let invoker = platform.invoker_with("behaved", shared(&platform, 8));
    let cores: BTreeSet<i32> = (0..8).map(|slot| core(&invoker, slot)).collect();
    let offered: BTreeSet<i32> = platform.cores().iter().map(|core| *core as i32).collect();
    assert_eq!(cores, offered, "each slot runs on one of the two");
    // A listing shows the last report of an agent that takes too long to answer.
    until_true("nothing is free", LIMIT, || {
        let agents = platform.manager().agents().unwrap();
        (agents[0].free_cores, agents[0].free_places) == (0, 0)
    });
    for options in [platform.lease_options(), shared(&platform, 1)] {
        let code = hotlease_client::Code::open(hotlease_tests::library::library("behaved")).unwrap();
        match Invoker::allocate(&code, options) {
            Err(error) => match error.refusal() {
                Some(Rejection::NoCapacity { free: 0, .. } | Rejection::NoPlaces { free: 0, .. }) => {}
                _ => panic!("every place is taken: {error}"),
            },
            Ok(_) => panic!("every place is taken"),
        }
    }
    let usage = invoker.deallocate().unwrap();
    assert_eq!(usage.hot_ns, 0, "shared slots never poll");
    assert!(
        usage.compute_ns <= usage.allocated_ns,
        "no more is computed than two cores can: {usage:?}"
    );
    until_true("all is free", LIMIT, || platform.free_cores() == 2);
}

#[test]
fn leases_of_two_platforms_use_different_cores_while_there_are_enough() {
    // Marks on cores are seen in one network namespace: no platform of another test is in this network namespace.
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped: no network namespace: {error}");
        return;
    }
    let platforms = [(); 2].map(|()| Platform::start());
    for is_shared in [true, false] {
        let lease = |platform: &Platform| match is_shared {
            true => platform.invoker_with("behaved", shared(platform, 1)),
            false => platform.invoker("behaved"),
        };
        let [ours, theirs] = platforms.each_ref().map(lease);
        let cores: BTreeSet<i32> = [&ours, &theirs].map(|invoker| core(invoker, 0)).into();
        assert_eq!(cores.len(), 2, "each has a core of its own");
        let second = lease(&platforms[0]);
        assert_eq!(
            core(&second, 0),
            core(&theirs, 0),
            "a marked core is taken if there is no other"
        );
        for invoker in [ours, theirs, second] {
            invoker.deallocate().unwrap();
        }
        until_true("all is free", LIMIT, || {
            platforms.iter().all(|platform| platform.free_cores() == 2)
        });
    }
}

#[test]
fn two_shared_leases_compute_at_the_same_time_while_a_core_is_idle() {
    let platform = Platform::start();
    let leases = [0, 1].map(|_| platform.invoker_with("behaved", not_waiting(&platform, 1)));
    let cores: BTreeSet<i32> = leases.iter().map(|lease| core(lease, 0)).collect();
    assert_eq!(cores.len(), 2, "each has the least loaded core");
    // Each call is refused at once if the other lease's function runs on its core.
    let calls = leases
        .each_ref()
        .map(|lease| lease.function("rest").unwrap().submit(&millis(300)).unwrap());
    for call in calls {
        call.wait().expect("it has a core");
    }
}

/// Leases whose workers are all on one core, while the other core idles, because the lease that used it has ended.
fn piled_up<const N: usize>(platform: &Platform, leases: [(&str, LeaseOptions); N]) -> [Invoker; N] {
    let own = platform.invoker_with("behaved", platform.lease_options());
    let leases = leases.map(|(library, options)| platform.invoker_with(library, options));
    own.deallocate().unwrap();
    // A listing shows the last report of an agent that takes too long to answer.
    until_true("one core is free", LIMIT, || {
        platform.manager().agents().unwrap()[0].free_cores == 1
    });
    leases
}

#[test]
fn shared_leases_on_one_core_are_moved_apart_once_a_core_idles() {
    let platform = Platform::start();
    let options = || ("behaved", shared(&platform, 1));
    let leases = piled_up(&platform, [options(), options()]);
    let cores = || leases.each_ref().map(|lease| core(lease, 0));
    let [one, other] = cores();
    assert_eq!(one, other, "only one core was left to share");
    until_true("each has a core", LIMIT, || {
        let rest = |lease: &Invoker| lease.function("rest").unwrap().submit(&millis(100)).unwrap();
        let calls = leases.each_ref().map(rest);
        for call in calls {
            call.wait().expect("it waits for a core, and is not lost");
        }
        let [one, other] = cores();
        one != other
    });
    // The workers stay: each function finds its slot on the core where the last function ran.
    let settled = cores();
    for _ in 0..20 {
        let compute = |lease: &Invoker| lease.function("compute").unwrap().submit(&millis(20)).unwrap();
        for call in leases.each_ref().map(compute) {
            call.wait().unwrap();
        }
        assert_eq!(cores(), settled);
    }
    let offered = platform.cores();
    until_true("listings show the new core", LIMIT, || {
        let workers = platform.manager().workers().unwrap();
        let leased = workers.iter().filter(|worker| !worker.lease.is_empty());
        let listed: BTreeSet<u32> = leased.flat_map(|worker| worker.cores.clone()).collect();
        let leases = platform.manager().leases().unwrap();
        let active = leases.iter().filter(|lease| lease.state == "active");
        let of_leases: BTreeSet<u32> = active.flat_map(|lease| lease.cores.clone()).collect();
        listed.iter().eq(offered) && of_leases.iter().eq(offered)
    });
    let explained = platform.json(&["explain"]);
    assert_eq!(explained[0]["cores"].as_array().map(Vec::len), Some(1), "{explained:?}");
    assert_eq!(explained[0]["shared"], true, "{explained:?}");
    for lease in leases {
        let usage = lease.deallocate().unwrap();
        assert!(
            usage.compute_ns <= usage.allocated_ns,
            "it pays for one core: {usage:?}"
        );
    }
    until_true("all is free", LIMIT, || platform.free_cores() == 2);
}

#[test]
fn a_call_that_does_not_wait_gets_the_idle_core_while_a_long_one_runs_on() {
    let platform = Platform::start();
    // The long invocation may be refused at first, because an invocation of the other lease runs.
    let (long, brief) = (shared(&platform, 1), not_waiting(&platform, 1));
    let [long, brief] = piled_up(&platform, [("behaved", long), ("behaved", brief)]);
    let call = long.function("rest").unwrap().submit(&millis(9000)).unwrap();
    until_taken(&brief, 0);
    until_true("the other core is idle", SOON, || {
        match brief.function("echo").unwrap().call(b"x") {
            Ok(_) => true,
            Err(Error::NoCore) => false,
            Err(error) => panic!("{error}"),
        }
    });
    assert!(!call.is_done(), "it was not waited for");
    call.wait().expect("it is not disturbed");
    assert_ne!(core(&long, 0), core(&brief, 0));
}

#[test]
fn workers_of_one_lease_are_spread_over_the_cores_that_idle() {
    let platform = Platform::start();
    let [lease] = piled_up(&platform, [("behaved", shared(&platform, 2))]);
    let cores = || [0, 1].map(|slot| core(&lease, slot));
    let [one, other] = cores();
    assert_eq!(one, other, "only one core was left to share");
    until_true("each worker has a core", LIMIT, || {
        let compute = |slot| lease.function("compute").unwrap().on_slot(slot).unwrap();
        let calls = [0, 1].map(|slot| compute(slot).submit(&millis(50)).unwrap());
        for call in calls {
            call.wait().expect("it waits for a core");
        }
        let [one, other] = cores();
        one != other
    });
}

#[test]
fn a_worker_that_claims_a_core_which_it_has_left_is_killed() {
    let platform = Platform::start();
    let (good, bad) = (shared(&platform, 1), not_waiting(&platform, 1));
    let [good, bad] = piled_up(&platform, [("behaved", good), ("claims", bad)]);
    let told = |name: &str| bad.function(name).unwrap().call(b"").unwrap();
    assert_eq!(told("keep"), [1], "it has the claim file of its core");
    let call = good.function("rest").unwrap().submit(&millis(6000)).unwrap();
    until_taken(&bad, 0);
    until_true("it is moved", SOON, || bad.function("echo").unwrap().call(b"x").is_ok());
    call.wait().unwrap();
    // The slot gives the core up after its reply.
    until_true("the core is idle", LIMIT, || told("take") == [1]);
    let echo = good.function("echo").unwrap().timeout(Some(SOON));
    echo.call(b"x").expect("the core is given up");
    assert!(
        platform.log().contains("none of its workers holds a shared core"),
        "{}",
        platform.log()
    );
}

#[test]
fn a_slot_whose_core_is_taken_refuses_at_once_and_another_slot_is_tried() {
    let platform = Platform::start();
    // Two workers on each of the two cores.
    let invoker = platform.invoker_with("behaved", not_waiting(&platform, 4));
    let cores = [0, 1, 2, 3].map(|slot| core(&invoker, slot));
    // Which core comes first depends on other platforms of the host.
    assert_ne!(cores[0], cores[1]);
    let beside = |slot: usize| (2..4).find(|other| cores[*other] == cores[slot]).unwrap();
    let rest = |slot| invoker.function("rest").unwrap().on_slot(slot).unwrap();
    let long = rest(0).submit(&millis(8000)).unwrap();
    until_taken(&invoker, beside(0));
    let place = invoker.function("place").unwrap().call(b"").unwrap();
    let found = i32::from_le_bytes(place[8..12].try_into().unwrap());
    assert_eq!(found, cores[1], "it went to a slot of the free core");

    // Now neither core is free.
    let other = rest(1).submit(&millis(5000)).unwrap();
    until_taken(&invoker, beside(1));
    let begun = Instant::now();
    let error = invoker
        .function("echo")
        .unwrap()
        .call(b"x")
        .expect_err("no core is free");
    assert!(matches!(error, Error::NoCore), "{error}");
    assert_eq!((error.ran(), error.retryable()), (RunCertainty::No, true));
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "it is said at once, and was not waited for: {:?}",
        begun.elapsed()
    );
    other.wait().unwrap();
    until_true("the core is given up", LIMIT, || {
        invoker.function("echo").unwrap().call(b"x").is_ok()
    });
    long.wait().unwrap();
}

#[test]
fn claim_of_a_killed_worker_is_free_at_once() {
    let platform = Platform::start();
    let _own = platform.invoker_with("behaved", platform.lease_options());
    let holder = platform.invoker_with("behaved", not_waiting(&platform, 1));
    let other = platform.invoker_with("behaved", not_waiting(&platform, 1));
    assert_eq!(core(&holder, 0), core(&other, 0), "only one core is left to share");
    let pid = holder.function("process").unwrap().call(b"").unwrap();
    let pid = i32::from_le_bytes(pid[..4].try_into().unwrap());
    let compute = holder.function("compute").unwrap().idempotent(false);
    let call = compute.submit(&millis(60_000)).unwrap();
    until_taken(&other, 0);
    let worker = Process::of(pid).expect("it lives");
    worker.signal(Signal::SIGKILL);
    until_true("the core is free", SOON, || {
        other.function("echo").unwrap().call(b"x").is_ok()
    });
    assert!(matches!(call.wait(), Err(Error::WorkerDied { .. })));
}

#[test]
fn calls_wait_for_a_core_and_every_future_resolves() {
    let platform = Platform::start();
    let invoker = platform.invoker_with("behaved", shared(&platform, 8));
    let compute = invoker.function("compute").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    compute.call(&millis(1)).unwrap();
                }
            });
        }
    });
    let futures: Vec<_> = (0..64).map(|_| compute.submit(&millis(1)).unwrap()).collect();
    for future in futures {
        future.wait().unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let futures: Vec<_> = (0..32).map(|_| compute.submit(&millis(1)).unwrap()).collect();
        for future in futures {
            future.await.unwrap();
        }
    });
    let inputs = vec![millis(1); 50];
    for result in compute.map(inputs) {
        result.unwrap();
    }
    let usage = invoker.deallocate().unwrap();
    assert_eq!(usage.invocations, 160 + 64 + 32 + 50, "each ran once");
    assert!(usage.compute_ns >= 306_000_000, "{usage:?}");
}

#[test]
fn a_call_that_gets_no_core_in_its_time_has_not_run() {
    let platform = Platform::start();
    // One core is left for both workers.
    let _own = platform.invoker_with("behaved", platform.lease_options());
    let invoker = platform.invoker_with("behaved", shared(&platform, 2));
    let rest = invoker.function("rest").unwrap().on_slot(0).unwrap();
    let long = rest.submit(&millis(5000)).unwrap();
    let echo = invoker.function("echo").unwrap().on_slot(1).unwrap();
    let brief = echo.timeout(Some(Duration::from_millis(100)));
    let call = || brief.call(b"x");
    let future = || brief.submit(b"x").and_then(|future| future.wait());
    for ask in [&call as &dyn Fn() -> Result<Vec<u8>, Error>, &future] {
        // If the machine does not run the worker for half a second, the client cannot know whether the call ran.
        until_true("it is told that it has not run", LIMIT, || match ask() {
            Err(Error::Deadline { ran, .. }) => ran == RunCertainty::No,
            Err(error) => panic!("{error}"),
            Ok(_) => false,
        });
    }
    long.wait().unwrap();
}

#[test]
fn no_invocation_on_a_shared_core_outlasts_the_operators_limit() {
    let platform = Platform::start_with(PlatformOptions {
        further: vec!["--shared-call-limit".into(), "100ms".into()],
        ..PlatformOptions::default()
    });
    let invoker = platform.invoker_with("behaved", shared(&platform, 1));
    let limit = Duration::from_millis(100);
    // On a machine that is busy for the 50 ms of grace the worker is killed: two more attempts.
    let is_told = (0..3).any(|_| {
        let until_cancelled = invoker.function("until_cancelled").unwrap();
        let error = until_cancelled.call(b"").expect_err("cut");
        eprintln!("{error}");
        matches!(error, Error::Deadline { timeout, .. } if timeout == limit)
    });
    assert!(is_told, "three times it was not told which limit");
    let own = platform.invoker_with("behaved", platform.lease_options());
    let rest = own.function("rest").unwrap();
    rest.call(&millis(300)).expect("a core of one's own has no such limit");
}

#[test]
fn hot_slots_own_their_core() {
    let platform = Platform::start();
    let code = hotlease_client::Code::open(hotlease_tests::library::library("behaved")).unwrap();
    let hot = LeaseOptions {
        polling: Polling::Hot,
        ..shared(&platform, 1)
    };
    assert!(matches!(Invoker::allocate(&code, hot), Err(Error::Options { .. })));
    let request = hotlease_wire::grpc::AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        polling: hotlease_wire::grpc::Polling::Hot.into(),
        sharing: hotlease_wire::grpc::Sharing::Shared.into(),
        ..Default::default()
    };
    let refusal = platform.manager().acquire(request).expect_err("no tenant may");
    assert!(matches!(refusal, Rejection::BadRequest { .. }), "{refusal}");
}
