//! Promises of a lease: cores of its own, until it ends.

mod bounds;
mod clients;
mod direct;
mod gpus;
mod hints;
mod memory;
mod moves;
mod offers;
mod parts;
mod refusals;
mod sharing;
mod starts;
mod states;
mod stops;
mod tokens;

use hotlease_tests::lease::{Bystander, LONG, RawLease};
use hotlease_tests::library::{compile, library};
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions, SOON, private_directory};
use hotlease_tests::session::{NoAnswer, RawSession};
use hotlease_tests::wait::{in_time, until, until_true};
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::{EndReason, Rejection};
use std::collections::HashSet;
use std::process::Stdio;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Waits until all cores can be leased again, which is what "free" means; returns how long that took.
pub fn until_all_cores_can_be_leased(platform: &Platform, limit: Duration) -> Duration {
    let manager = platform.manager();
    let cores = platform.cores().len() as u32;
    let (grant, took) = until("all cores can be leased", limit, || manager.lease(cores, LONG).ok());
    RawSession::attached(&grant).release();
    took
}

#[test]
fn no_cores_left_is_a_typed_refusal_until_one_is_released() {
    let platform = Platform::start();
    let manager = platform.manager();
    let first = RawLease::take(&platform);
    let second = manager.lease(1, LONG).unwrap();
    let refusal = manager.lease(1, LONG).unwrap_err();
    assert_eq!(
        refusal,
        Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 2
        }
    );
    first.session.release();
    let third = manager.lease(1, LONG).expect("released cores are free at once");
    assert!(matches!(manager.lease(1, LONG), Err(Rejection::NoCapacity { .. })));
    RawSession::attached(&third).release();
    RawSession::attached(&second).release();
    assert_eq!(platform.free_cores(), 2);
}

#[test]
fn release_through_the_manager_ends_the_session() {
    let platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    platform.manager().release(&lease.grant.lease).unwrap();
    match lease.session.event(LIMIT).0 {
        SessionReply::LeaseEnded { .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(lease.session.next(LIMIT), Err(NoAnswer::Closed)));
    let refusal = platform.manager().release("0123456789abcdef").unwrap_err();
    assert_eq!(refusal, Rejection::UnknownLease);
    let refusal = platform.manager().release("no lease at all").unwrap_err();
    assert!(
        matches!(refusal, Rejection::BadRequest { .. } | Rejection::UnknownLease),
        "{refusal:?}"
    );
    until_all_cores_can_be_leased(&platform, SOON);
}

#[test]
fn lease_that_is_not_renewed_expires_and_its_worker_is_gone() {
    let platform = Platform::start_alone();
    // Long enough to attach, load and call within it.
    let ttl = Duration::from_secs(3);
    in_time("its end", ttl + Duration::from_secs(1), || {
        let grant = platform.manager().lease(1, ttl).unwrap();
        let start = Instant::now();
        let mut lease = RawLease::of(grant, &library("echo"));
        lease.echo();
        let worker = worker_of(&platform, &lease.grant);
        match lease.session.event(LIMIT).0 {
            SessionReply::LeaseEnded { reason, usage } => {
                assert_eq!(reason, EndReason::Expired);
                assert_eq!(usage.invocations, 1);
            }
            other => panic!("{other:?}"),
        }
        let took = start.elapsed();
        assert!(
            took >= ttl - Duration::from_millis(50),
            "it ended after {took:?} of {ttl:?}"
        );
        assert!(!worker.is_alive(), "the worker is killed before the lease is over");
        until_all_cores_can_be_leased(&platform, SOON);
        took
    });
}

/// The one worker of a lease.
fn worker_of(platform: &Platform, grant: &Grant) -> hotlease_tests::process::Process {
    // A listing leaves out an agent that takes too long to answer.
    let (pid, _) = until("it is listed", LIMIT, || {
        let workers = platform.manager().workers().unwrap();
        let worker = workers.iter().find(|worker| worker.lease == grant.lease);
        worker.map(|worker| worker.pid)
    });
    hotlease_tests::process::Process::of(pid as i32).expect("it runs")
}

#[test]
fn renewal_keeps_a_lease_over_many_times_to_live() {
    let platform = Platform::start();
    let ttl = Duration::from_secs(3);
    let mut lease = RawLease::of(platform.manager().lease(1, ttl).unwrap(), &library("echo"));
    let start = Instant::now();
    while start.elapsed() < 3 * ttl {
        match lease.session.ask(&SessionRequest::Renew, &[]) {
            Ok(SessionReply::Renewed { ttl_ms, .. }) => assert_eq!(u128::from(ttl_ms), ttl.as_millis()),
            other => panic!("after {:?}: {other:?}", start.elapsed()),
        }
        lease.echo();
        std::thread::sleep(ttl / 8);
    }
    lease.session.release();
}

#[test]
fn same_core_is_never_granted_twice_at_a_time() {
    let platform = Platform::start();
    let (threads, rounds) = (6, 15);
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (platform, barrier) = (&platform, &barrier);
            scope.spawn(move || {
                let manager = platform.manager();
                barrier.wait();
                for round in 0..rounds {
                    let workers = 1 + ((thread + round) % 2) as u32;
                    let Ok(grant) = manager.lease(workers, LONG) else {
                        continue;
                    };
                    assert_eq!(grant.cores.len(), workers as usize);
                    // The listing is read at a moment when this thread certainly holds its lease.
                    let leases = manager.leases().unwrap();
                    let mut held = HashSet::new();
                    for lease in leases.iter().filter(|lease| lease.state == "active") {
                        for core in &lease.cores {
                            assert!(platform.cores().contains(core), "core {core} is not offered");
                            assert!(held.insert(*core), "core {core} is held twice: {leases:?}");
                        }
                    }
                    assert!(
                        grant.cores.iter().all(|core| held.contains(core)),
                        "{grant:?} is not in {leases:?}"
                    );
                    RawSession::attached(&grant).release();
                }
            });
        }
    });
    until_all_cores_can_be_leased(&platform, SOON);
}

#[test]
fn slots_are_pinned_to_the_granted_cores_and_no_two_to_one() {
    let platform = Platform::start();
    let manager = platform.manager();
    for (workers, slots_per_worker) in [(1, 2), (2, 1)] {
        let grant = manager
            .acquire(AcquireRequest {
                workers,
                slots_per_worker,
                ..AcquireRequest::default()
            })
            .unwrap();
        let mut session = RawSession::attached(&grant);
        session.load_file(&library("behaved"));
        let mut granted: Vec<String> = grant.cores.iter().map(u32::to_string).collect();
        granted.sort();
        let mut pinned: Vec<String> = Vec::new();
        // A listing leaves out an agent that takes too long to answer.
        let (listed, _) = until("they are listed", LIMIT, || {
            let mut listed = manager.workers().unwrap();
            listed.retain(|worker| worker.lease == grant.lease);
            (listed.len() == workers as usize).then_some(listed)
        });
        for worker in listed {
            let process = hotlease_tests::process::Process::of(worker.pid as i32).unwrap();
            let cores = process.cores_of_threads();
            pinned.extend(cores.into_iter().filter(|cores| cores.parse::<u32>().is_ok()));
        }
        pinned.sort();
        assert_eq!(
            pinned, granted,
            "threads bound to one core, {workers} workers of {slots_per_worker}"
        );
        session.release();
    }
}

#[test]
fn epochs_rise_with_every_grant_and_every_replaced_worker() {
    let platform = Platform::start();
    let mut last = 0;
    for _ in 0..5 {
        let mut lease = RawLease::with(&platform, &library("misbehaved"));
        assert!(lease.epoch.0 > last, "{:?} after {last}", lease.epoch);
        let request = lease.channel.request(lease.epoch, lease.functions.index("aborts"), b"");
        lease.channel.try_send(&request.encode(), Duration::ZERO);
        lease.session.event(LIMIT);
        lease.reconnect();
        last = lease.epoch.0;
        // The library is loaded again, without being sent again.
        lease.echo();
        lease.session.release();
    }
}

#[test]
fn lease_ends_with_its_last_session() {
    let platform = Platform::start_alone();
    let lease = RawLease::take(&platform);
    let second = RawSession::attached(&lease.grant);
    let grant = lease.grant.clone();
    drop(lease);
    std::thread::sleep(Duration::from_millis(100));
    let info = platform.manager().lease_info(&grant.lease).unwrap();
    assert_eq!(info.state, "active", "one session of it is open");
    drop(second);
    let took = until_all_cores_can_be_leased(&platform, SOON);
    eprintln!("cores free after {took:?}");
    let info = platform.manager().lease_info(&grant.lease).unwrap();
    assert_eq!(
        (info.state.as_str(), info.end_reason.as_str()),
        ("ended", "its client is gone")
    );
}

#[test]
fn workers_exit_and_clients_are_told_when_the_platform_is_killed() {
    let mut platform = Platform::start_alone();
    let mut lease = RawLease::take(&platform);
    lease.echo();
    platform.kill();
    let killed = Instant::now();
    assert!(matches!(lease.session.next(SOON), Err(NoAnswer::Closed)));
    assert!(lease.connection.is_closed(SOON), "the worker's end is closed");
    platform.nothing_runs(SOON);
    eprintln!("all gone after {:?}", killed.elapsed());
    // The sockets are still there: `up` must replace them.
    assert!(!platform.sockets().is_empty());
    platform.up_again();
    RawLease::take(&platform).echo();
}

#[test]
fn workers_of_any_behaviour_are_gone_with_the_platform() {
    let mut platform = Platform::start_alone();
    for function in ["loops", "sleeps_blocked", "stops", "floods_for_ever"] {
        let mut lease = RawLease::with(&platform, &library("misbehaved"));
        let request = lease.channel.request(lease.epoch, lease.functions.index(function), b"");
        let reply = lease.channel.try_send(&request.encode(), Duration::from_millis(50));
        assert_eq!(reply, None, "{function}");
        platform.kill();
        let took = platform.nothing_runs(SOON);
        eprintln!("{function}: gone after {took:?}");
        platform.up_again();
    }
}

#[test]
fn second_up_says_that_one_runs_already() {
    let platform = Platform::start();
    let started = Instant::now();
    let output = platform.run(&["up"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{words}");
    assert!(words.contains("runs already"), "{words}");
    assert!(words.contains("hotlease down"), "says what to do: {words}");
    assert!(started.elapsed() < LIMIT);
    // The first platform is not disturbed.
    RawLease::take(&platform).echo();
}

#[test]
fn down_leaves_no_process_and_no_socket() {
    let mut platform = Platform::start();
    let mut lease = RawLease::take(&platform);
    let workers = platform.workers();
    assert!(!workers.is_empty());
    let output = platform.run(&["down"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    match lease.session.event(LIMIT).0 {
        SessionReply::LeaseEnded { reason, .. } => assert_eq!(reason, EndReason::AgentStopping),
        other => panic!("{other:?}"),
    }
    assert!(platform.wait().success());
    assert_eq!(platform.sockets(), [""; 0]);
    until_true("workers are gone", SOON, || {
        workers.iter().all(|worker| !worker.is_alive())
    });
    let again = platform.run(&["down"]);
    assert_eq!(
        again.status.code(),
        Some(3),
        "nothing runs: {}",
        String::from_utf8_lossy(&again.stderr)
    );
    platform.up_again();
    RawLease::take(&platform).echo();
}

#[test]
fn runtime_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let platform = Platform::start();
    let parent = tempfile::tempdir().unwrap();
    let open = parent.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(platform.directory(), &link).unwrap();
    let file = parent.path().join("file");
    std::fs::write(&file, "").unwrap();
    for directory in [&open, &link, &file] {
        for command in ["up", "ps"] {
            let mut hotlease = platform.hotlease(&[command]);
            let output = hotlease.env("HOTLEASE_RUNTIME_DIR", directory).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{command} in {}", directory.display());
            assert!(
                words.contains("not safe"),
                "{command} in {}: {words}",
                directory.display()
            );
        }
    }
    assert_eq!(std::fs::read_dir(&open).unwrap().count(), 0, "nothing was put there");
}

#[test]
fn pool_is_filled_again_after_use_and_its_workers_serve_one_lease_only() {
    let platform = Platform::start_with(PlatformOptions {
        pool: 2,
        ..PlatformOptions::default()
    });
    let mut seen = HashSet::new();
    for _ in 0..4 {
        let lease = RawLease::take(&platform);
        let worker = worker_of(&platform, &lease.grant);
        assert!(seen.insert(worker), "a worker serves a second lease");
        lease.session.release();
        assert!(!worker.is_alive(), "a worker lives longer than its lease");
        until_true("the pool is full", LIMIT, || {
            let workers = platform.manager().workers().unwrap();
            workers.iter().filter(|worker| worker.state == "pooled").count() == 2
        });
    }
}

#[test]
fn pooled_worker_that_dies_is_replaced() {
    let platform = Platform::start();
    let pooled = || {
        let workers = platform.manager().workers().unwrap();
        let pids = workers
            .into_iter()
            .filter(|worker| worker.state == "pooled")
            .map(|worker| worker.pid);
        pids.collect::<Vec<_>>()
    };
    let before = pooled();
    let process = hotlease_tests::process::Process::of(before[0] as i32).unwrap();
    process.signal(nix::sys::signal::Signal::SIGKILL);
    until_true("another one is there", LIMIT, || {
        pooled().iter().any(|pid| !before.contains(pid))
    });
    RawLease::take(&platform).echo();
}

#[test]
fn worker_killed_from_outside_is_reported_and_replaced() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::take(&platform);
    in_time("told", Duration::from_millis(250), || {
        worker_of(&platform, &lease.grant).signal(nix::sys::signal::Signal::SIGKILL);
        let (event, took) = lease.session.event(LIMIT);
        match event {
            SessionReply::WorkerDied { epoch, .. } => assert_eq!(epoch, lease.epoch),
            other => panic!("{other:?}"),
        }
        lease.reconnect();
        lease.echo();
        took
    });
}

#[test]
fn leases_and_ends_in_any_order_leave_everything_free() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    let manager = platform.manager();
    for round in 0..20 {
        let (grant, _) = until("a core is free", LIMIT, || manager.lease(1, LONG).ok());
        match round % 4 {
            // The lease was never attached, and is released through the manager.
            0 => drop(manager.release(&grant.lease).unwrap()),
            // The worker may still be starting.
            1 => drop(RawSession::attached(&grant)),
            2 => RawSession::attached(&grant).release(),
            _ => drop(RawLease::of(grant, &library("echo"))),
        }
    }
    bystander.finish();
    until_all_cores_can_be_leased(&platform, SOON);
}

#[test]
fn worker_that_hangs_in_a_constructor_is_gone_with_the_platform() {
    let mut platform = Platform::start_alone();
    let grant = platform.manager().lease(1, LONG).unwrap();
    let mut session = RawSession::attached(&grant);
    let bytes = std::fs::read(compile("constructor", &["-DHANGS"])).unwrap();
    let loading = std::thread::spawn(move || session.load(&bytes));
    // The kill must hit a worker whose thread sleeps in the library.
    let worker = worker_of(&platform, &grant);
    until_true("the library is being loaded", LIMIT, || worker.maps("hotlease-code"));
    platform.kill();
    let took = platform.nothing_runs(SOON);
    eprintln!("gone after {took:?}");
    // The session broke, so `Load` got no answer.
    assert!(loading.join().is_err());
}

#[test]
fn exactly_one_of_several_concurrent_ups_runs() {
    let platform = Platform::start();
    let directory = private_directory();
    let mut ups: Vec<_> = (0..6)
        .map(|_| {
            let mut up = platform.hotlease(&["up", "--cores", "2", "--pool", "0"]);
            up.env("HOTLEASE_RUNTIME_DIR", directory.path());
            up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut ended = Vec::new();
    until_true("five of six have given up", LIMIT, || {
        ups.retain_mut(|up| match up.try_wait().unwrap() {
            Some(status) => {
                ended.push(status.code());
                false
            }
            None => true,
        });
        ups.len() <= 1
    });
    assert_eq!(ended, [Some(5); 5], "each says that one runs already");
    let mut down = platform.hotlease(&["down"]);
    down.env("HOTLEASE_RUNTIME_DIR", directory.path());
    until_true("the sixth serves and goes", LIMIT, || {
        down.output().unwrap().status.success()
    });
    assert!(ups[0].wait().unwrap().success());
}
