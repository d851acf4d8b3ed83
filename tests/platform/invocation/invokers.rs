//! Life of an invoker: its bill, its leases, its end.

use crate::invocation::{invoker, two_slots};
use hotlease_client::{EndReason, Error, Invoker, LeaseOptions, Polling, RunCertainty};
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, Platform, SOON};
use hotlease_tests::wait::{in_time, until, until_true};
use std::time::{Duration, Instant};

#[test]
fn bill_counts_what_was_done() {
    let platform = Platform::start_alone();
    let options = LeaseOptions {
        polling: Polling::Hot,
        hot_budget: Duration::from_millis(20),
        ..platform.lease_options()
    };
    let start = Instant::now();
    let invoker = platform.invoker_with("behaved", options);
    let compute = invoker.function("compute").unwrap();
    let mut last = invoker.usage().unwrap();
    for _ in 0..5 {
        compute.call(&20u32.to_le_bytes()).unwrap();
        let now = invoker.usage().unwrap();
        assert!(
            now.allocated_ns >= last.allocated_ns && now.hot_ns >= last.hot_ns,
            "{last:?}, then {now:?}"
        );
        assert!(
            now.compute_ns >= last.compute_ns && now.invocations >= last.invocations,
            "{last:?}, then {now:?}"
        );
        last = now;
    }
    let error = invoker.function("fails").unwrap().call(b"").unwrap_err();
    assert!(error.billed());
    let bill = invoker.deallocate().unwrap();
    let whole = start.elapsed().as_nanos() as u64;
    eprintln!("{bill:?} of {whole} ns");
    assert_eq!(bill.invocations, 6);
    // A slot may lose its core between its reply and its look at the clock: then it counts more time than its client saw.
    assert!(bill.compute_ns >= 100_000_000, "five times 20 ms: {bill:?}");
    assert!(bill.allocated_ns >= bill.compute_ns + bill.hot_ns, "one slot: {bill:?}");
    assert!(bill.allocated_ns <= whole, "{bill:?} of {whole} ns");
    assert!(bill.hot_ns > 0, "it polled: {bill:?}");
    assert!(last.invocations <= bill.invocations && last.allocated_ns <= bill.allocated_ns);
}

#[test]
fn warm_slot_bills_no_polling() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker_with(
        "behaved",
        LeaseOptions {
            polling: Polling::Warm,
            ..platform.lease_options()
        },
    );
    let echo = invoker.function("echo").unwrap();
    for _ in 0..50 {
        echo.call(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let bill = invoker.deallocate().unwrap();
    assert!(bill.hot_ns < bill.allocated_ns / 20, "{bill:?}");
}

#[test]
fn new_lease_is_taken_by_the_next_call_when_one_has_ended() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let process = invoker.function("process").unwrap();
    let (lease, pid) = (invoker.lease(), process.call(b"").unwrap());
    platform.manager().revoke(&lease.to_string()).unwrap();
    let again = process.call(b"").unwrap();
    assert_ne!(again, pid, "another worker");
    assert_ne!(invoker.lease(), lease, "another lease");

    let options = LeaseOptions {
        replace_lease: false,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("behaved", options);
    platform.manager().revoke(&invoker.lease().to_string()).unwrap();
    let echo = invoker.function("echo").unwrap();
    // A call that was made before the client learned of the end may have run.
    let refused = |error: &Error| error.ran() == RunCertainty::No;
    let (error, _) = until("the end is known", LIMIT, || echo.call(b"").err().filter(refused));
    assert!(
        matches!(
            error,
            Error::LeaseEnded {
                reason: EndReason::Revoked,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn deallocated_invoker_refuses_calls() {
    let platform = Platform::start();
    let invoker = invoker(&platform);
    let (clone, echo) = (invoker.clone(), invoker.function("echo").unwrap());
    echo.call(b"x").unwrap();
    let resting = invoker
        .function("rest")
        .unwrap()
        .submit(&60_000u32.to_le_bytes())
        .unwrap();
    let bill = invoker.deallocate().unwrap();
    assert!(bill.invocations >= 1);
    let error = resting.wait().unwrap_err();
    assert!(
        matches!(
            error,
            Error::LeaseEnded {
                reason: EndReason::Released,
                ..
            }
        ),
        "{error:?}"
    );
    for _ in 0..3 {
        let error = echo.call(b"x").unwrap_err();
        assert!(
            matches!(
                error,
                Error::LeaseEnded {
                    reason: EndReason::Released,
                    ran: RunCertainty::No
                }
            ),
            "{error:?}"
        );
    }
    clone.deallocate().unwrap_err();
    assert_eq!(platform.free_cores(), 2);
}

#[test]
fn calls_resolve_within_a_second_when_the_platform_is_killed_and_go_on_when_it_is_back() {
    let mut platform = Platform::start_alone();
    let options = LeaseOptions {
        move_within: Duration::from_millis(200),
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("misbehaved", options);
    let loops = invoker.function("loops").unwrap().idempotent(false);
    let echo = invoker.function("echo").unwrap().idempotent(true);
    in_time("resolved", Duration::from_secs(1), || {
        echo.call(b"x").unwrap();
        let marks = Marks::new();
        let in_flight = loops.submit(&marks.input()).unwrap();
        let queued = loops.submit(b"").unwrap();
        until_true("it has begun", LIMIT, || marks.count() == 1);
        platform.kill();
        let killed = Instant::now();
        let error = in_flight.wait().unwrap_err();
        let took = killed.elapsed();
        eprintln!("{error} after {took:?}");
        assert_eq!(error.ran(), RunCertainty::Unknown, "{error:?}");
        // This call waited behind the other: if the worker's end is proved in time, it did not run, but there is no
        // other lease.
        let error = queued.wait().unwrap_err();
        assert!(
            matches!(error, Error::NotRunning { .. }) || error.ran() == RunCertainty::Unknown,
            "{error:?}"
        );
        let error = echo.call(b"x").unwrap_err();
        assert!(matches!(error, Error::NotRunning { .. }), "{error:?}");
        assert!(error.to_string().contains("hotlease up"), "{error}");
        platform.nothing_runs(SOON);
        platform.up_again();
        assert_eq!(echo.call(b"again").unwrap(), b"again");
        took
    });
}

#[test]
fn lease_without_capacity_is_refused_at_once_and_given_later() {
    let platform = Platform::start();
    let both = two_slots(&platform);
    let code = both.code().clone();
    let start = Instant::now();
    let error = Invoker::allocate(&code, platform.lease_options()).unwrap_err();
    assert!(
        matches!(
            error.refusal(),
            Some(hotlease_client::Rejection::NoCapacity {
                asked: 1,
                free: 0,
                offered: 2
            })
        ),
        "{error:?}"
    );
    let holder = format!("held now: 2 cores by {} of ", platform.lease_options().label);
    assert!(error.to_string().contains(&holder), "{error}");
    assert!(holder.contains(&format!("(pid {})", std::process::id())), "{holder}");
    assert!(start.elapsed() < SOON);
    assert!(error.retryable());
    drop(both);
    let later = Invoker::allocate(&code, platform.lease_options()).expect("dropping gave the cores back");
    later.function("echo").unwrap().call(b"x").unwrap();
}
