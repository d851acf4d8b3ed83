//! Failures: each invocation resolves in time, with its cause, and with the truth about whether the function ran.

use super::providers::candidates;
use super::{echo_of, start, submit_all};
use crate::{EndReason, Error, Invocation, Rejection, RunCertainty};
use hotlease_wire::frame::InvocationStatus;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The promised time from a worker's death to the client's error.
const PROMISED: Duration = Duration::from_millis(250);

/// Checks an attempt's time against the promise. Makes up to two more attempts, because the node may be busy with other
/// work: if there is a fault, every attempt is late.
fn in_time(mut attempt: impl FnMut() -> Duration) {
    let mut late = Vec::new();
    while late.len() < 3 {
        match attempt() {
            took if took < PROMISED => return,
            took => late.push(took),
        }
    }
    panic!("three times it took longer than {PROMISED:?}: {late:?}");
}

#[test]
fn a_dead_worker_fails_in_time_what_may_have_run_and_the_rest_moves() {
    in_time(|| {
        let (platform, echo) = start(|_| {});
        platform.allow(1);
        let mut held = submit_all(&echo, 0..4);
        while platform.worker(0).served.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        platform.allow_future();
        let killed = Instant::now();
        platform.kill(0, true);
        let results: Vec<_> = held.drain(..).map(Invocation::wait).collect();
        let took = killed.elapsed();
        assert_eq!(
            results[0].as_ref().unwrap(),
            &echo_of(0),
            "its reply came before the worker died"
        );
        let running = results[1].as_ref().unwrap_err();
        assert_eq!(running.ran(), RunCertainty::Unknown);
        for (number, moved) in (0..).zip(&results).skip(2) {
            assert_eq!(
                moved.as_ref().unwrap(),
                &echo_of(number),
                "it had not started, so it moved"
            );
        }
        let text = running.to_string();
        assert!(text.contains("signal 11") && text.contains("last words"), "{text}");
        // The next call starts another incarnation.
        let number = platform.invoker.function("number").unwrap();
        assert_eq!(number.call(b"").unwrap(), echo_of(8));
        took
    });
}

#[test]
fn an_invocation_without_resubmission_fails_with_its_worker_and_whether_it_ran() {
    let (platform, echo) = start(|_| {});
    let once = echo.clone().on_slot(0).unwrap().without_resubmission();
    platform.allow(1);
    let held = submit_all(&once, 0..4);
    while platform.worker(0).served.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    platform.allow_future();
    platform.kill(0, true);
    let results: Vec<_> = held.into_iter().map(Invocation::wait).collect();
    assert_eq!(results[0].as_ref().unwrap(), &echo_of(0));
    let ran: Vec<RunCertainty> = results[1..]
        .iter()
        .map(|result| result.as_ref().unwrap_err().ran())
        .collect();
    assert_eq!(ran, [RunCertainty::Unknown, RunCertainty::No, RunCertainty::No]);
    // The slot gets no other worker until a caller repairs it.
    let ran = once.submit(b"late").unwrap().wait().map_err(|error| error.ran());
    assert_eq!(ran, Err(RunCertainty::No));
    echo.pipeline().unwrap().repair().unwrap();
    assert_eq!(once.submit(b"again").unwrap().wait().unwrap(), b"again");
}

/// A worker that closes the connection ends no lease: the other workers go on, and so do their invocations.
#[test]
fn a_worker_that_does_not_open_costs_no_other_worker_its_invocation() {
    for closed in [1, 2] {
        let (platform, echo) = start(|options| options.workers = 2);
        let [first, second] = [0, 1].map(|slot| echo.clone().on_slot(slot).unwrap());
        let leases = platform.invoker.leases();
        platform.allow(0);
        let held = second.submit(b"held").unwrap();
        platform.allow_future();
        platform.close_opens(closed);
        platform.kill(0, true);
        while platform.invoker.is_open(0) {
            std::thread::yield_now();
        }
        let called = first.call(b"first");
        if closed == 1 {
            assert_eq!(called.unwrap(), b"first", "it is asked once more");
        } else {
            let error = called.unwrap_err();
            assert!(
                matches!(error.refusal(), Some(Rejection::Unavailable { .. })),
                "{error:?}"
            );
            assert_eq!(first.call(b"again").unwrap(), b"again");
        }
        platform.worker(1).allowed.store(1, Ordering::SeqCst);
        assert_eq!(held.wait().unwrap(), b"held", "its worker lives");
        assert_eq!(platform.invoker.leases(), leases);
    }
}

#[test]
fn a_worker_is_replaced_however_little_time_its_invocations_have() {
    let (platform, echo) = start(|_| {});
    let hurried = echo.timeout(Some(Duration::from_nanos(1)));
    let mut pipeline = hurried.pipeline().unwrap();
    platform.kill(0, true);
    while !pipeline.is_closed() {
        std::thread::yield_now();
    }
    pipeline.repair().unwrap();
    assert!(!pipeline.is_closed(), "it has another worker");
}

#[test]
fn over_a_fabric_too_the_agents_word_says_what_ran_and_the_rest_moves() {
    if candidates().is_empty() {
        return eprintln!("skipped: no provider leads to other hosts here");
    }
    let (platform, echo) = start(|options| options.transport = Some("ofi".into()));
    platform.allow(1);
    let held = submit_all(&echo, 0..4);
    while platform.worker(0).served.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    platform.allow_future();
    platform.worker(0).die_in(1);
    platform.kill(0, true);
    let results: Vec<_> = held.into_iter().map(Invocation::wait).collect();
    assert_eq!(
        results[0].as_ref().unwrap(),
        &echo_of(0),
        "its reply was sent before, and is waited for"
    );
    assert_eq!(results[1].as_ref().unwrap_err().ran(), RunCertainty::Unknown);
    for (number, moved) in (0..).zip(&results).skip(2) {
        assert_eq!(
            moved.as_ref().unwrap(),
            &echo_of(number),
            "it had not begun, so it moved"
        );
    }
}

#[test]
fn awaiting_what_is_without_resubmission_gets_no_other_worker() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (platform, echo) = start(|_| {});
    let once = echo.clone().on_slot(0).unwrap().without_resubmission();
    // The second function's output goes through memory that the library allocates.
    for function in [once.clone(), once.output_bytes(1 << 20)] {
        platform.allow(0);
        let held = function.submit(b"x").unwrap();
        let epoch = platform.worker(0).epoch;
        platform.allow_future();
        platform.kill(0, true);
        let error = runtime.block_on(held).unwrap_err();
        assert_eq!(error.ran(), RunCertainty::Unknown, "{error:?}");
        let now = platform.worker(0).epoch;
        assert_eq!(now, epoch, "the client has not asked for another worker yet");
        echo.pipeline().unwrap().repair().unwrap();
    }
}

#[test]
fn beside_a_waiting_call_only_the_first_of_the_ring_may_have_run_and_the_next_moves() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| echo.call(b"running"));
        while echo.inner.open_channel(0).unwrap().load(1) == 0 {
            std::thread::yield_now();
        }
        let first = echo.submit(b"first").unwrap();
        let behind = echo.submit(b"behind").unwrap();
        platform.allow_future();
        platform.kill(0, true);
        assert_eq!(running.join().unwrap().unwrap_err().ran(), RunCertainty::Unknown);
        assert_eq!(first.wait().unwrap_err().ran(), RunCertainty::Unknown);
        assert_eq!(behind.wait().unwrap(), b"behind", "it had not started, so it moved");
    });
}

#[test]
fn a_worker_that_vanishes_without_news_leaves_an_unknown_outcome() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let held = echo.submit(b"x").unwrap();
    let killed = Instant::now();
    platform.kill(0, false);
    let error = held.wait().unwrap_err();
    let took = killed.elapsed();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    assert!(took < 10 * Duration::from_secs(1), "an agent gets a second: {took:?}");
}

#[test]
fn the_report_of_an_agent_that_is_slow_is_waited_for() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let held = echo.submit(b"x").unwrap();
    platform.kill(0, false);
    std::thread::sleep(PROMISED);
    platform.report_death(0);
    let error = held.wait().unwrap_err().to_string();
    assert!(error.contains("signal 11") && error.contains("last words"), "{error}");
}

#[test]
fn the_reason_of_an_end_is_told_though_its_total_is_late() {
    in_time(|| {
        let (platform, echo) = start(|_| {});
        platform.allow(0);
        let held = echo.submit(b"x").unwrap();
        let killed = Instant::now();
        platform.begin_to_end_lease(EndReason::Reclaimed);
        let error = held.wait().unwrap_err();
        let took = killed.elapsed();
        assert!(
            matches!(
                error,
                Error::LeaseEnded {
                    reason: EndReason::Reclaimed,
                    ran: RunCertainty::Unknown
                }
            ),
            "{error:?}"
        );
        took
    });
}

#[test]
fn the_end_of_the_lease_resolves_everything_and_is_final_without_renewal() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let held = submit_all(&echo, 0..2);
    platform.end_lease(EndReason::Expired);
    let ran: Vec<RunCertainty> = held
        .into_iter()
        .map(|invocation| match invocation.wait().unwrap_err() {
            Error::LeaseEnded {
                reason: EndReason::Expired,
                ran,
            } => ran,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ran, [RunCertainty::Unknown, RunCertainty::No]);
    let error = echo.call(b"x").unwrap_err();
    assert!(
        matches!(
            error,
            Error::LeaseEnded {
                reason: EndReason::Expired,
                ran: RunCertainty::No
            }
        ),
        "{error:?}"
    );
}

#[test]
fn deallocating_resolves_what_is_in_flight_and_says_what_was_used() {
    let (platform, echo) = start(|_| {});
    echo.call(b"x").unwrap();
    platform.allow(0);
    let held = echo.submit(b"x").unwrap();
    let usage = platform.invoker.clone().deallocate().unwrap();
    assert_eq!(usage.invocations, 1);
    let error = held.wait().unwrap_err();
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

#[test]
fn a_deadline_resolves_even_if_the_worker_does_not_answer_and_its_entry_comes_back() {
    let (platform, echo) = start(|options| options.depth = 1);
    let echo = echo.timeout(Some(Duration::from_millis(50)));
    platform.allow(0);
    for attempt in 0..2 {
        let begun = Instant::now();
        let error = if attempt == 0 {
            echo.call(b"x").unwrap_err()
        } else {
            platform.allow(1);
            while echo.inner.open_channel(0).unwrap().load(1) > 0 {
                assert!(begun.elapsed() < Duration::from_secs(5), "its late reply is not seen");
                std::thread::yield_now();
            }
            echo.submit(b"y").unwrap().wait().unwrap_err()
        };
        assert!(
            matches!(
                error,
                Error::Deadline {
                    ran: RunCertainty::Unknown,
                    ..
                }
            ),
            "attempt {attempt}: {error:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    platform.allow(u64::MAX);
    assert_eq!(echo.timeout(None).call(b"z").unwrap(), b"z");
}

#[test]
fn nonsense_in_a_reply_closes_the_channel_and_harms_no_other_channel() {
    for name in ["garbage", "liar"] {
        let (platform, echo) = start(|_| {});
        let error = platform.invoker.function(name).unwrap().call(b"x").unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{name}: {error:?}");
        let error = platform
            .invoker
            .function(name)
            .unwrap()
            .submit(b"x")
            .unwrap()
            .wait()
            .unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{name}: {error:?}");
        assert_eq!(echo.call(b"y").unwrap(), b"y", "a new channel was opened");
    }
}

#[test]
fn buffers_that_the_worker_did_not_reach_are_told_from_each_other() {
    let (platform, echo) = start(|_| {});
    let errors = |name| {
        let function = platform.invoker.function(name).unwrap();
        [
            function.call(b"x").unwrap_err(),
            function.submit(b"x").unwrap().wait().unwrap_err(),
        ]
    };
    for error in errors("unread") {
        assert!(
            matches!(
                error,
                Error::NotRun {
                    status: InvocationStatus::InputUnreachable
                }
            ),
            "{error:?}"
        );
        assert_eq!((error.ran(), error.billed()), (RunCertainty::No, false));
        let text = error.to_string();
        assert!(text.contains("could not read the input over the fabric"), "{text}");
    }
    for error in errors("unwritten") {
        assert!(matches!(error, Error::OutputLost), "{error:?}");
        assert_eq!((error.ran(), error.billed()), (RunCertainty::Yes, true));
        assert!(!error.retryable(), "it would run twice");
    }
    assert_eq!(echo.call(b"y").unwrap(), b"y", "the channel goes on");
}

#[test]
fn callbacks_and_tasks_learn_of_a_dead_worker_or_run_again() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let (sender, receiver) = mpsc::channel();
    echo.submit_then(b"lost", move |result| sender.send(result).unwrap())
        .unwrap();
    let retried = echo.clone().idempotent(true).submit(b"again").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let awaited = runtime.block_on(async {
        let task = tokio::spawn(retried);
        tokio::time::sleep(Duration::from_millis(20)).await;
        platform.allow_future();
        platform.kill(0, true);
        task.await.unwrap()
    });
    assert_eq!(awaited.unwrap(), b"again");
    let lost = receiver.recv_timeout(Duration::from_secs(5)).unwrap().unwrap_err();
    assert!(
        matches!(
            lost,
            Error::WorkerDied {
                ran: RunCertainty::Unknown,
                ..
            }
        ),
        "{lost:?}"
    );
}

#[test]
fn a_replaced_worker_leaves_no_descriptors_behind() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (platform, echo) = start(|_| {});
    let round = || {
        platform.kill(0, true);
        while echo.inner.open_channel(0).is_some() {
            std::thread::yield_now();
        }
        echo.call(b"x").unwrap();
    };
    // Other tests of this process open and close descriptors, too: look for growth with the number of rounds.
    (0..3).for_each(|_| round());
    let before = open();
    (0..100).for_each(|_| round());
    let after = open();
    assert!(after < before + 100, "{before} descriptors grew to {after}");
}

#[test]
fn a_renewal_that_is_refused_ahead_of_the_release_is_not_its_answer() {
    let (platform, echo) = start(|_| {});
    echo.call(b"once").unwrap();
    platform.overtake_release();
    let usage = platform.invoker.clone().deallocate().unwrap();
    assert_eq!(usage.invocations, 1, "the lease's totals, which come behind");
}
