//! Retries: calls that are run again, and calls that never are.

use hotlease_client::{Cause, Completion, Error, LeaseOptions, RunCertainty};
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::{in_time, until};
use std::time::{Duration, Instant};

#[test]
fn invocation_that_may_have_run_is_not_run_twice() {
    let platform = Platform::start();
    let invoker = platform.invoker("misbehaved");
    let function = invoker.function("marks_and_dies").unwrap();
    assert!(!function.is_idempotent());
    for count in 1..=3 {
        let marks = Marks::new();
        let error = function.call(&marks.input()).unwrap_err();
        let Error::WorkerDied {
            cause: Cause::Signal { signal: 6, .. },
            ran: RunCertainty::Unknown,
            ..
        } = &error
        else {
            panic!("call {count}: {error:?}");
        };
        assert!(error.billed() && !error.retryable());
        assert_eq!(marks.count(), 1, "call {count}");
        // The way of calling makes no difference.
        let error = function.submit(&marks.input()).unwrap().wait().unwrap_err();
        assert_eq!(error.ran(), RunCertainty::Unknown, "{error:?}");
        assert_eq!(marks.count(), 2, "call {count}");
        let results = function.batch(&[&marks.input()]);
        assert_eq!(results[0].as_ref().unwrap_err().ran(), RunCertainty::Unknown);
        assert_eq!(marks.count(), 3, "call {count}");
    }
}

#[test]
fn idempotent_invocation_is_run_again_on_another_worker_and_succeeds() {
    let platform = Platform::start();
    let invoker = platform.invoker("misbehaved");
    let function = invoker.function("dies_once").unwrap();
    assert!(function.is_idempotent(), "its library says so");
    let marks = Marks::new();
    assert_eq!(function.call(&marks.input()).unwrap(), [2], "the second run succeeds");
    let marks = Marks::new();
    assert_eq!(function.submit(&marks.input()).unwrap().wait().unwrap(), [2]);
    let marks = Marks::new();
    assert_eq!(function.map([marks.input()]).next().unwrap().unwrap(), [2]);
    // The caller's setting overrides the library's.
    let marks = Marks::new();
    let error = function.clone().idempotent(false).call(&marks.input()).unwrap_err();
    assert_eq!((error.ran(), marks.count()), (RunCertainty::Unknown, 1));
}

#[test]
fn idempotent_invocation_is_run_as_often_as_the_lease_says() {
    let platform = Platform::start();
    for retries in [0, 1, 3] {
        let options = LeaseOptions {
            retries,
            ..platform.lease_options()
        };
        let invoker = platform.invoker_with("misbehaved", options);
        let marks = Marks::new();
        let error = invoker
            .function("marks_and_dies_idempotent")
            .unwrap()
            .call(&marks.input())
            .unwrap_err();
        assert!(matches!(error, Error::WorkerDied { .. }), "{error:?}");
        assert_eq!(marks.count(), 1 + retries as usize);
    }
}

#[test]
fn invocations_queued_behind_a_crash_run_exactly_once() {
    let platform = Platform::start();
    let invoker = platform.invoker("misbehaved");
    let (dies, counts) = (
        invoker.function("dies_slowly").unwrap(),
        invoker.function("marks").unwrap(),
    );
    let repeatable = invoker.function("marks_idempotent").unwrap();
    for round in 0..3 {
        let marks = Marks::new();
        let crash = dies.submit(b"").unwrap();
        let queued: Vec<_> = (0..20).map(|_| counts.submit(&marks.input()).unwrap()).collect();
        let mut ran = 0;
        let error = crash.wait().unwrap_err();
        assert_eq!(error.ran(), RunCertainty::Unknown, "{error:?}");
        for (number, invocation) in queued.into_iter().enumerate() {
            match invocation.wait() {
                Ok(_) => ran += 1,
                Err(error) => assert_eq!(
                    error.ran(),
                    RunCertainty::No,
                    "round {round}, number {number}: {error:?}"
                ),
            }
        }
        assert_eq!(
            marks.count(),
            ran,
            "what is said to have run ran once, what is said not to have did not"
        );
        // The client repeats a call that may run twice; here it runs once, because it had not run before.
        let crash = dies.submit(b"").unwrap();
        let queued: Vec<_> = (0..20).map(|_| repeatable.submit(&marks.input()).unwrap()).collect();
        crash.wait().unwrap_err();
        for invocation in queued {
            invocation.wait().unwrap();
        }
        assert_eq!(marks.count(), ran + 20);
    }
}

#[test]
fn caller_of_a_crashing_function_is_told_within_250_ms() {
    let platform = Platform::start_alone();
    let invoker = platform.invoker("misbehaved");
    for function in [
        "segfault",
        "aborts",
        "exits",
        "divides_by_zero",
        "overflows_stack",
        "overruns",
    ] {
        let function = invoker.function(function).unwrap();
        // A machine that is busy with something else has two more attempts.
        let told = (0..3).any(|_| {
            let start = Instant::now();
            let error = function.call(b"").unwrap_err();
            let took = start.elapsed();
            eprintln!("{}: {error} after {took:?}", function.name());
            assert!(
                matches!(
                    error,
                    Error::WorkerDied {
                        ran: RunCertainty::Unknown,
                        ..
                    }
                ),
                "{error:?}"
            );
            took < Duration::from_millis(250)
        });
        assert!(told, "{}: not within 250 ms, three times", function.name());
        // The next call gets a new worker.
        assert_eq!(invoker.function("echo").unwrap().call(b"x").unwrap(), b"x");
    }
}

#[test]
fn error_shows_the_last_output_of_the_function() {
    let platform = Platform::start();
    let invoker = platform.invoker("misbehaved");
    let error = invoker.function("prints_and_dies").unwrap().call(b"").unwrap_err();
    let text = error.to_string();
    for part in ["signal 6", "table of contents is empty", "may have run", "correct it"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn deadline_ends_a_call_of_any_function() {
    let platform = Platform::start_alone();
    let timeout = Duration::from_millis(80);
    let options = LeaseOptions {
        timeout: Some(timeout),
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("behaved", options.clone());
    // On a machine that is busy for the 50 ms of grace the worker is killed: two more attempts.
    let is_told = (0..3).any(|_| {
        let start = Instant::now();
        let until_cancelled = invoker.function("until_cancelled").unwrap();
        let error = until_cancelled.call(b"").unwrap_err();
        let took = start.elapsed();
        eprintln!("{error} after {took:?}");
        assert!(took >= timeout, "{took:?}");
        matches!(
            error,
            Error::Deadline {
                ran: RunCertainty::Yes,
                ..
            }
        ) && took < timeout + Duration::from_millis(300)
    });
    assert!(is_told, "three times it was not told that it ran, or late");
    drop(invoker);

    let invoker = platform.invoker_with("misbehaved", options);
    for function in ["loops", "sleeps_blocked"] {
        // 50 ms of grace, 250 ms to be told, and some delay for a busy machine.
        in_time(function, timeout + Duration::from_millis(500), || {
            let start = Instant::now();
            let error = invoker.function(function).unwrap().call(b"").unwrap_err();
            let took = start.elapsed();
            eprintln!("{function}: {error} after {took:?}");
            assert!(
                matches!(
                    error,
                    Error::WorkerDied {
                        cause: Cause::Deadline { .. },
                        ..
                    } | Error::Deadline {
                        ran: RunCertainty::Unknown,
                        ..
                    }
                ),
                "{error:?}"
            );
            assert!(took >= timeout, "{took:?}");
            // Each call of this invoker has the same short time.
            let echo = invoker.function("echo").unwrap();
            assert_eq!(until("it answers again", LIMIT, || echo.call(b"x").ok()).0, b"x");
            took
        });
    }
}

#[test]
fn other_worker_of_a_lease_goes_on_when_one_dies() {
    let platform = Platform::start();
    let options = LeaseOptions {
        workers: 2,
        ..platform.lease_options()
    };
    let invoker = platform.invoker_with("misbehaved", options);
    let echo = invoker.function("echo").unwrap().on_slot(1).unwrap();
    let dies = invoker.function("aborts").unwrap().on_slot(0).unwrap();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            for number in 0..2000u32 {
                assert_eq!(
                    echo.call(&number.to_le_bytes()).expect("not its worker"),
                    number.to_le_bytes()
                );
            }
        });
        while !calls.is_finished() {
            dies.call(b"").unwrap_err();
        }
    });
}

#[test]
fn forged_reply_of_a_worker_is_an_error_of_that_call_only() {
    let platform = Platform::start();
    let call = |status: u64, length: u64| {
        // A client that sleeps would see only the true reply, which rings its doorbell.
        let options = LeaseOptions {
            completion: Completion::Spin,
            ..platform.lease_options()
        };
        let invoker = platform.invoker_with("misbehaved", options);
        let echo = invoker.function("echo").unwrap();
        echo.submit(b"so that there is a reply before").unwrap().wait().unwrap();
        let forgery = [status.to_le_bytes(), length.to_le_bytes()].concat();
        // The result of a future is the reply as it is in the ring.
        let result = invoker
            .function("forges_reply")
            .unwrap()
            .submit(&forgery)
            .unwrap()
            .wait();
        // The invoker works after any end of the worker, with another worker if needed.
        let echo = echo.idempotent(true);
        let (output, _) = until("it works again", LIMIT, || echo.call(b"afterwards").ok());
        assert_eq!(output, b"afterwards");
        result
    };
    assert_eq!(call(0, 0).unwrap(), b"", "not to be told from the true reply");
    for (status, length) in [
        (0xffff, 0),
        (5, 0),
        (0, u64::from(LeaseOptions::default().reply_bytes) + 1),
        (0, u64::MAX),
        (0, 1 << 63),
        (1 << 16, 0),
    ] {
        // On a machine that is busy for the 300 ms between the two replies the client sees only the true one.
        let error = (0..3).find_map(|_| {
            let result = call(status, length);
            eprintln!(
                "status {status:#x}, length {length:#x}: {:?}",
                result.as_ref().map(Vec::len)
            );
            result.err()
        });
        let error = error.expect("three times the forgery was taken for the reply, or was not seen");
        assert!(
            matches!(
                error,
                Error::Protocol { .. } | Error::OutcomeUnknown { .. } | Error::OutputTooLarge { .. }
            ),
            "status {status:#x}, length {length:#x}: {error:?}"
        );
    }
}
