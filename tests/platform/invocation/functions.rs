//! Functions that misbehave: their caller learns what happened, and other clients are not disturbed.

use hotlease_tests::lease::{Bystander, LONG, RawLease};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::wait::in_time;
use hotlease_wire::Cause;
use hotlease_wire::frame::{InvocationStatus, ReplyHeader};
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::session::SessionReply;
use std::time::{Duration, Instant};

/// Runs a function that kills its worker; returns what the agent reports about it.
///
/// # Panics
/// If the report does not come within 250 ms after `after`, the time that the function itself takes. The machine may be
/// busy with something else: a late report has two more attempts.
fn death(lease: &mut RawLease, function: &str, timeout: Duration, after: Duration) -> (Cause, String) {
    let limit = after + Duration::from_millis(250);
    let (mut told, mut took) = timed_death(lease, function, timeout);
    for _ in 0..2 {
        if took < limit {
            break;
        }
        again(lease);
        (told, took) = timed_death(lease, function, timeout);
    }
    assert!(took < limit, "{function}: told after {took:?}");
    told
}

fn timed_death(lease: &mut RawLease, function: &str, timeout: Duration) -> ((Cause, String), Duration) {
    let mut request = lease.channel.request(lease.epoch, lease.functions.index(function), b"");
    request.timeout_us = timeout.as_micros() as u32;
    let start = Instant::now();
    lease.channel.publish(&request);
    let (event, _) = lease.session.event(LIMIT);
    let took = start.elapsed();
    let SessionReply::WorkerDied {
        epoch, cause, output, ..
    } = event
    else {
        panic!("{function}: {event:?}");
    };
    eprintln!("{function}: {cause} after {took:?}");
    assert_eq!(epoch, lease.epoch, "{function}");
    assert_eq!(
        lease.channel.reply(request.seq, Duration::ZERO),
        None,
        "{function}: no reply was written"
    );
    assert!(
        lease.connection.is_closed(LIMIT),
        "{function}: the connection is closed"
    );
    ((cause, output), took)
}

/// Checks that the worker is replaced, and serves.
fn again(lease: &mut RawLease) {
    lease.reconnect();
    lease.echo();
}

fn signal(lease: &mut RawLease, function: &str, expected: i32) {
    let (cause, _) = death(lease, function, Duration::ZERO, Duration::ZERO);
    let index = lease.functions.index(function).0;
    match cause {
        Cause::Signal {
            signal,
            function: Some(running),
        } if (signal, running) == (expected, index) => {}
        other => panic!("{function} (index {index}): {other:?}"),
    }
    again(lease);
}

#[test]
fn worker_that_crashes_is_reported_within_250_ms_with_its_signal_and_function() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    signal(&mut lease, "segfault", 11);
    signal(&mut lease, "aborts", 6);
    signal(&mut lease, "divides_by_zero", 8);
    signal(&mut lease, "illegal_instruction", 4);
    signal(&mut lease, "overflows_stack", 11);
    bystander.finish();
}

#[test]
fn worker_that_exits_is_reported_within_250_ms_with_its_status() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    for (function, expected) in [("exits", 3), ("exits_at_once", 4)] {
        let (cause, _) = death(&mut lease, function, Duration::ZERO, Duration::ZERO);
        match cause {
            Cause::Exit { status, .. } if status == expected => {}
            other => panic!("{function}: {other:?}"),
        }
        again(&mut lease);
    }
    bystander.finish();
}

#[test]
fn function_that_ignores_its_deadline_is_killed() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    for function in ["loops", "sleeps_blocked"] {
        let timeout = Duration::from_millis(100);
        // The function has 50 ms to react to the cancel flag.
        let (cause, _) = death(&mut lease, function, timeout, timeout + Duration::from_millis(50));
        match cause {
            Cause::Deadline {
                timeout_us: 100_000,
                function: Some(index),
            } if index == lease.functions.index(function).0 => {}
            other => panic!("{function}: {other:?}"),
        }
        again(&mut lease);
    }
    bystander.finish();
}

#[test]
fn function_that_ignores_all_signals_is_killed_at_its_deadline() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let request = lease
        .channel
        .request(lease.epoch, lease.functions.index("ignores_signals"), b"");
    assert_eq!(lease.channel.send(&request.encode()).status, InvocationStatus::Ok);
    let timeout = Duration::from_millis(100);
    let (cause, _) = death(&mut lease, "loops", timeout, timeout + Duration::from_millis(50));
    assert!(matches!(cause, Cause::Deadline { .. }), "{cause:?}");
    again(&mut lease);
}

#[test]
fn function_that_heeds_its_cancel_flag_ends_at_its_deadline_and_the_worker_lives() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("behaved"));
    for timeout in [5, 50, 200].map(Duration::from_millis) {
        // On a machine that is busy for the 50 ms of grace the worker is killed, which counts as late.
        in_time("cancelled", timeout + Duration::from_millis(250), || {
            let mut request = lease
                .channel
                .request(lease.epoch, lease.functions.index("until_cancelled"), b"");
            request.timeout_us = timeout.as_micros() as u32;
            let start = Instant::now();
            match lease.channel.try_send(&request.encode(), SOON) {
                Some(reply) => assert_eq!(reply.status, InvocationStatus::DeadlineExceeded),
                None => lease.reconnect(),
            }
            let took = start.elapsed();
            assert!(took >= timeout, "cancelled after {took:?} of {timeout:?}");
            lease.echo();
            took
        });
    }
    // A deadline that is met has no effect, on this call or on the next.
    let mut request = lease
        .channel
        .request(lease.epoch, lease.functions.index("time_left"), b"");
    request.timeout_us = 20_000_000;
    let reply = lease.channel.send(&request.encode());
    let left = u64::from_le_bytes(reply.inline.to_bytes()[..8].try_into().unwrap());
    assert_eq!(reply.status, InvocationStatus::Ok);
    assert!(
        (10_000_000_000..=20_000_000_000).contains(&left),
        "{left} ns left of twenty seconds"
    );
    let request = lease
        .channel
        .request(lease.epoch, lease.functions.index("time_left"), b"");
    let reply = lease.channel.send(&request.encode());
    assert_eq!(
        (reply.status, &reply.inline.to_bytes()[..8]),
        (InvocationStatus::Ok, &[0; 8][..]),
        "no deadline was asked for"
    );
}

#[test]
fn output_past_its_capacity_is_stopped_by_the_guard_page() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    for function in ["overruns", "overruns_a_little"] {
        let (cause, _) = death(&mut lease, function, Duration::ZERO, Duration::ZERO);
        match cause {
            Cause::OutputOverrun {
                function: Some(index),
                capacity: 4096,
            } if index == lease.functions.index(function).0 => {}
            other => panic!("{function}: {other:?}"),
        }
        again(&mut lease);
    }
    bystander.finish();
}

#[test]
fn claimed_size_over_the_capacity_is_reported_and_nothing_is_read() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    for (function, length) in [
        ("claims_too_much", u64::from(u32::MAX)),
        ("claims_everything", u64::MAX),
    ] {
        let request = lease
            .channel
            .request(lease.epoch, lease.functions.index(function), b"x");
        let reply = lease.channel.send(&request.encode());
        assert_eq!(
            (reply.status, reply.length),
            (InvocationStatus::OutputTooLarge, length),
            "{function}"
        );
        lease.echo();
    }
    let request = lease
        .channel
        .request(lease.epoch, lease.functions.index("fails_claiming_everything"), b"x");
    let reply: ReplyHeader = lease.channel.send(&request.encode());
    assert!(
        matches!(
            reply.status,
            InvocationStatus::FunctionError | InvocationStatus::OutputTooLarge
        ),
        "{reply:?}"
    );
    assert!(
        reply.status != InvocationStatus::FunctionError || reply.length <= 4096,
        "{reply:?}"
    );
    lease.echo();
}

#[test]
fn last_output_of_a_dead_worker_arrives() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let (_, output) = death(&mut lease, "prints_and_dies", Duration::ZERO, Duration::ZERO);
    assert!(output.contains("a first line"), "{output:?}");
    assert!(output.contains("the table of contents is empty"), "{output:?}");
    again(&mut lease);
    // The function prints four megabytes: the report has only the last bytes, up to a bound.
    let (_, output) = death(&mut lease, "floods_and_dies", Duration::ZERO, Duration::from_secs(2));
    assert!(
        output.trim_end().ends_with("the very end"),
        "{:?}",
        &output[output.len().saturating_sub(100)..]
    );
    assert!(output.len() <= 4096 + 64, "{} bytes", output.len());
    again(&mut lease);
}

#[test]
fn output_of_a_live_worker_is_bounded_and_blocks_no_function() {
    let platform = Platform::start();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let process = platform.process();
    let before = process.anonymous_bytes();
    for _ in 0..5 {
        let request = lease.channel.request(lease.epoch, lease.functions.index("floods"), b"");
        assert_eq!(lease.channel.send(&request.encode()).status, InvocationStatus::Ok);
    }
    let grown = process.anonymous_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "20 MB of output made the agent grow by {grown} bytes");
    assert!(
        !platform.log().contains("yyyyyyyy"),
        "a worker's output is not the agent's log"
    );
    lease.echo();
}

#[test]
fn memory_limit_of_a_lease_holds() {
    let platform = Platform::start();
    let manager = platform.manager();
    let grant = manager
        .acquire(AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            memory_bytes: 256 << 20,
            ttl_ms: LONG.as_millis() as u64,
            ..AcquireRequest::default()
        })
        .unwrap();
    let mut lease = RawLease::of(grant, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    let request = lease.channel.request(lease.epoch, lease.functions.index("memory"), b"");
    let reply = lease.channel.send(&request.encode());
    let megabytes = u32::from_le_bytes(reply.inline.to_bytes()[..4].try_into().unwrap());
    eprintln!("{megabytes} MiB of 256");
    assert_eq!(reply.status, InvocationStatus::Ok);
    // The worker itself and its stacks need memory in addition to the function's limit.
    assert!((200..=300).contains(&megabytes), "{megabytes} MiB of 256");
    let (cause, _) = death(&mut lease, "allocates", Duration::ZERO, Duration::from_secs(2));
    assert!(
        matches!(cause, Cause::OutOfMemory | Cause::Signal { signal: 6, .. }),
        "{cause:?}"
    );
    again(&mut lease);
    bystander.finish();
}

#[test]
fn function_that_stops_its_worker_is_killed_at_its_deadline() {
    let platform = Platform::start_alone();
    let mut lease = RawLease::with(&platform, &library("misbehaved"));
    let bystander = Bystander::start(&platform);
    let timeout = Duration::from_millis(100);
    let (cause, _) = death(&mut lease, "stops", timeout, timeout + Duration::from_millis(50));
    assert!(matches!(cause, Cause::Deadline { .. }), "{cause:?}");
    again(&mut lease);
    // Without a deadline only the end of the lease ends the function; and the client that releases is not kept waiting.
    let request = lease.channel.request(lease.epoch, lease.functions.index("stops"), b"");
    lease.channel.publish(&request);
    let start = Instant::now();
    let connected = lease.session.worker(0).err();
    eprintln!("{connected:?} after {:?}", start.elapsed());
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    lease.session.release();
    bystander.finish();
}
