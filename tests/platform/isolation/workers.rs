//! Functions that attack their surroundings: the worker's sockets, shared memory and processes.

use hotlease_tests::connection::SHAPE;
use hotlease_tests::lease::{Bystander, LONG, RawLease};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions, SOON};
use hotlease_tests::process::Process;
use hotlease_tests::session::RawSession;
use hotlease_tests::wait::{until, until_true};
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::grpc::{AcquireRequest, Reach};
use hotlease_wire::session::SessionReply;
use hotlease_wire::{Cause, EndReason, Rejection};
use std::time::{Duration, Instant};

#[test]
fn nonsense_in_everything_that_a_worker_shares_harms_no_other_lease() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    for (shared, dies) in [
        ("hotlease-usage", false),
        ("hotlease-usage", true),
        ("hotlease-requests", true),
        ("hotlease-replies", true),
        ("hotlease-doorbell", true),
    ] {
        let input = format!("{}{shared}", if dies { 'd' } else { 'l' });
        let request = lease
            .channel
            .request(lease.epoch, lease.functions.index("scribbles"), input.as_bytes());
        lease.channel.publish(&request);
        if !dies {
            // The agent must go on with any content of the counters; it may kill this worker.
            std::thread::sleep(Duration::from_millis(200));
            platform.manager().workers().unwrap();
            platform.manager().leases().unwrap();
            let pid = platform.manager().workers().unwrap();
            let pid = pid
                .iter()
                .find(|worker| worker.lease == lease.grant.lease)
                .map(|worker| worker.pid);
            if let Some(process) = pid.and_then(|pid| Process::of(pid as i32)) {
                process.signal(nix::sys::signal::Signal::SIGKILL);
            }
        }
        let (event, _) = lease.session.event(LIMIT);
        assert!(matches!(event, SessionReply::WorkerDied { .. }), "{shared}: {event:?}");
        lease.reconnect();
        lease.echo();
    }
    lease.session.release();
    bystander.finish();
}

#[test]
fn worker_that_writes_nonsense_to_its_agent_harms_only_its_lease() {
    let platform = Platform::start();
    let bystander = Bystander::start(&platform);
    for function in ["writes_to_all_sockets", "closes_all_descriptors"] {
        let mut lease = RawLease::with(&platform, &library("misbehaved"));
        let request = lease.channel.request(lease.epoch, lease.functions.index(function), b"");
        lease.channel.publish(&request);
        // The agent may end the worker for this, or keep the worker: another connection shows what the agent did.
        let _ = lease.channel.reply(request.seq, Duration::from_millis(200));
        let start = Instant::now();
        until_true(
            &format!("{function}: the lease has a worker that serves"),
            LIMIT,
            || {
                let Ok((connection, epoch)) = lease.session.worker(0) else {
                    return false;
                };
                let Some(Ok(mut channel)) = connection.open(0, SHAPE, SHAPE) else {
                    return false;
                };
                let request = channel.request(epoch, lease.functions.index("echo"), b"still there?");
                let reply = channel.try_send(&request.encode(), Duration::from_secs(2));
                reply.is_some_and(|reply| reply.status == InvocationStatus::Ok)
            },
        );
        eprintln!("{function}: serving again after {:?}", start.elapsed());
        lease.session.release();
    }
    bystander.finish();
}

#[test]
fn sockets_whose_close_waits_hold_up_neither_the_agent_nor_the_end_of_their_lease() {
    const TTL: Duration = Duration::from_secs(10);
    // Compiled before there is a lease, whose client has to attach in time.
    let misbehaved = library("misbehaved");
    let platform = Platform::start_with(PlatformOptions {
        further: vec!["--sandbox-network".into()],
        ..PlatformOptions::default()
    });
    let bystander = Bystander::start(&platform);
    for (sandbox, network) in [("process", false), ("namespace", true)] {
        let grant = match platform.manager().acquire(AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            ttl_ms: TTL.as_millis() as u64,
            sandbox: sandbox.into(),
            reach: network.then(|| Reach {
                network,
                ..Reach::default()
            }),
            ..AcquireRequest::default()
        }) {
            Ok(grant) => grant,
            Err(Rejection::NoSandbox { why, .. }) => {
                eprintln!("skipped: {why}");
                continue;
            }
            Err(refusal) => panic!("no lease: {refusal}"),
        };
        let mut lease = RawLease::of(grant, &misbehaved);
        // Repeated more often than the agent has threads.
        for round in 0..3 {
            let function = lease.functions.index("sends_sockets_that_linger");
            let request = lease.channel.request(lease.epoch, function, b"");
            lease.channel.publish(&request);
            let (event, _) = lease.session.event(LIMIT);
            let SessionReply::WorkerDied { cause, .. } = event else {
                panic!("{sandbox}, round {round}: {event:?}")
            };
            assert!(
                !matches!(cause, Cause::Exit { status: 5, .. }),
                "{sandbox}: it cannot make connections"
            );
            lease.reconnect();
            lease.echo();
            let listed = platform.manager().lease_info(&lease.grant.lease);
            assert!(listed.is_some(), "{sandbox}, round {round}: the lease is not listed");
        }
        let (event, _) = lease.session.event(LIMIT);
        let SessionReply::LeaseEnded { reason, .. } = event else {
            panic!("{sandbox}: {event:?}")
        };
        assert_eq!(reason, EndReason::Expired);
        let (grant, _) = until("another client gets the core", LIMIT, || {
            platform.manager().lease(1, LONG).ok()
        });
        RawSession::attached(&grant).release();
    }
    bystander.finish();
}

#[test]
fn child_that_a_function_leaves_behind_is_gone_with_the_lease() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let request = lease
        .channel
        .request(lease.epoch, lease.functions.index("leaves_child"), b"");
    let reply = lease.channel.send(&request.encode());
    assert_eq!(reply.status, InvocationStatus::Ok);
    let child = i32::from_le_bytes(reply.inline.to_bytes()[..4].try_into().unwrap());
    if child < 0 {
        // The sandbox forbids it, which also keeps the promise.
        return;
    }
    let child = Process::of(child).expect("it runs");
    lease.session.release();
    until_true("the child is gone", SOON, || !child.is_alive());
}

#[test]
fn crash_ends_the_calls_of_both_slots_and_of_no_other_worker() {
    let platform = Platform::start();
    let grant = platform
        .manager()
        .acquire(AcquireRequest {
            workers: 1,
            slots_per_worker: 2,
            ttl_ms: LONG.as_millis() as u64,
            ..AcquireRequest::default()
        })
        .unwrap();
    let mut session = RawSession::attached(&grant);
    let functions = session.load_file(&library("misbehaved"));
    let (connection, epoch) = session.worker(0).unwrap();
    let channel = connection.channel(0);
    let other = connection.channel(1);
    let loops = other.request(epoch, functions.index("loops"), b"");
    other.write_words(0, &loops.encode());
    let crash = channel.request(epoch, functions.index("segfault"), b"");
    channel.write_words(0, &crash.encode());
    match session.event(LIMIT).0 {
        SessionReply::WorkerDied {
            cause: Cause::Signal {
                signal: 11,
                function: Some(index),
            },
            ..
        } => {
            assert_eq!(
                index,
                functions.index("segfault").0,
                "the one that crashed, not the one beside it"
            );
        }
        other => panic!("{other:?}"),
    }
    session.release();
}
