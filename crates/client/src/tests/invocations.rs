//! Invocations: every way to invoke, wait and harvest.

use super::{echo_of, start, submit_all};
use crate::{Completion, Error, RunCertainty};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[test]
fn every_call_gets_its_own_answer_in_every_way_to_wait() {
    for completion in [Completion::Spin, Completion::Adaptive, Completion::Sleep] {
        let (_platform, echo) = start(|options| options.completion = completion);
        let mut output = [0; 32];
        for number in 0..200u64 {
            let length = echo.invoke(&number.to_le_bytes(), &mut output).unwrap();
            assert_eq!(output[..length], number.to_le_bytes(), "{completion:?}");
        }
        assert_eq!(echo.call(b"").unwrap(), b"");
    }
}

#[test]
fn many_threads_share_one_slot() {
    let (_platform, echo) = start(|_| {});
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let echo = echo.clone();
            scope.spawn(move || {
                for number in 0..200u64 {
                    let input = echo_of(thread << 32 | number);
                    assert_eq!(echo.call(&input).unwrap(), input);
                    if number % 3 == 0 {
                        assert_eq!(echo.submit(&input).unwrap().wait().unwrap(), input);
                    }
                }
            });
        }
    });
}

#[test]
fn holding_more_futures_than_entries_blocks_nothing_and_loses_nothing() {
    let (_platform, echo) = start(|_| {});
    let held = submit_all(&echo, 0..20);
    for (number, invocation) in held.into_iter().enumerate().rev() {
        assert_eq!(invocation.wait().unwrap(), echo_of(number as u64));
    }
}

#[test]
fn dropped_futures_give_their_credits_back() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    drop(submit_all(&echo, 0..4));
    assert!(
        matches!(echo.try_submit(b"x"), Err(Error::NoCredit)),
        "nothing was answered"
    );
    platform.allow(u64::MAX);
    for number in 100..120 {
        assert_eq!(echo.call(&echo_of(number)).unwrap(), echo_of(number));
    }
}

#[test]
fn without_credit_submit_waits_and_try_submit_does_not() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let held = submit_all(&echo, 0..4);
    assert!(matches!(echo.try_submit(b"x"), Err(Error::NoCredit)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| echo.submit(&echo_of(4)).unwrap().wait().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        platform.allow(u64::MAX);
        assert_eq!(waiting.join().unwrap(), echo_of(4));
    });
    assert_eq!(held.len(), 4);
}

#[test]
fn withdrawn_invocations_have_no_result_and_give_their_credits_back() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let withdrawable = echo.clone().withdrawable();
    let kept = withdrawable.submit(b"kept").unwrap();
    let withdrawn = withdrawable.submit(b"withdrawn").unwrap();
    let mut pipeline = withdrawable.pipeline().unwrap();
    pipeline.push(b"kept").unwrap();
    pipeline.push(b"withdrawn").unwrap();
    assert!(pipeline.withdraw_last());
    assert_eq!(pipeline.len(), 1);
    assert!(withdrawn.withdraw().is_ok());
    assert!(
        matches!(echo.try_submit(b"x"), Err(Error::NoCredit)),
        "the slot answers first"
    );
    platform.allow(u64::MAX);
    assert!(pipeline.pop(&mut [0; 8]).unwrap().is_some() && pipeline.is_empty());
    assert!(kept.wait().is_ok());
    for number in 0..8 {
        let published = echo.submit(&echo_of(number)).unwrap().withdraw();
        let Err(for_good) = published else {
            panic!("it was not published as withdrawable");
        };
        assert_eq!(for_good.wait().unwrap(), echo_of(number));
    }
}

#[test]
fn a_function_error_carries_number_and_output() {
    let (platform, _) = start(|_| {});
    let fail = platform.invoker.function("fail").unwrap();
    for error in [
        fail.call(b"why").unwrap_err(),
        fail.submit(b"why").unwrap().wait().unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Function { code: -7, output } if output == b"why"),
            "{error:?}"
        );
        assert_eq!(error.ran(), RunCertainty::Yes);
    }
}

#[test]
fn an_output_that_does_not_fit_the_callers_slice_is_named() {
    let (_platform, echo) = start(|_| {});
    let error = echo.submit(b"12345").unwrap().wait_into(&mut [0; 3]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::OutputTooLarge {
                produced: 5,
                capacity: 3
            }
        ),
        "{error:?}"
    );
}

#[test]
fn callbacks_are_called_once_each_and_a_panicking_one_stops_no_other() {
    let (_platform, echo) = start(|_| {});
    let (sender, receiver) = mpsc::channel();
    for number in 0..30u64 {
        let sender = sender.clone();
        let then = move |result: Result<Vec<u8>, Error>| {
            assert!(number != 3, "a test's own panic");
            sender.send(result.unwrap()).unwrap();
        };
        echo.submit_then(&echo_of(number), then).unwrap();
    }
    let mut results: Vec<Vec<u8>> = (0..29)
        .map(|_| {
            receiver
                .recv_timeout(Duration::from_secs(5))
                .expect("a callback is missing")
        })
        .collect();
    results.sort();
    let mut expected: Vec<Vec<u8>> = (0..30).filter(|n| *n != 3).map(echo_of).collect();
    expected.sort();
    assert_eq!(results, expected);
}

#[test]
fn futures_can_be_awaited_out_of_order_and_time_out() {
    let (platform, echo) = start(|_| {});
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let held = submit_all(&echo, 0..10);
        for (number, invocation) in held.into_iter().enumerate().rev() {
            assert_eq!(invocation.await.unwrap(), echo_of(number as u64));
        }
        platform.allow(0);
        let late = echo
            .clone()
            .timeout(Some(Duration::from_millis(30)))
            .submit(b"late")
            .unwrap();
        let error = late.await.unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    });
}

#[test]
fn waiting_with_a_limit_leaves_the_invocation_in_flight() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let mut invocation = echo.submit(b"x").unwrap();
    assert!(invocation.wait_timeout(Duration::from_millis(10)).is_none());
    assert!(invocation.try_take().is_none() && !invocation.is_done());
    platform.allow(1);
    assert_eq!(invocation.wait_timeout(Duration::from_secs(5)).unwrap().unwrap(), b"x");
}

#[test]
fn map_keeps_order_over_several_slots_and_a_death() {
    let (platform, echo) = start(|options| (options.workers, options.slots) = (2, 2));
    assert_eq!(platform.invoker.slots(), 4);
    let inputs: Vec<Vec<u8>> = (0..500).map(echo_of).collect();
    let killed = Mutex::new(false);
    let inputs_with_a_kill = inputs.iter().enumerate().inspect(|(index, _)| {
        if *index == 250 && !std::mem::replace(&mut *killed.lock().unwrap(), true) {
            // On a busy host one worker may do everything, and the threads of both workers may not have run yet.
            let has_served = |worker: &u16| platform.worker(*worker).served.load(Ordering::SeqCst) > 0;
            let limit = Instant::now() + Duration::from_secs(60);
            let worker = loop {
                match (0..2).find(has_served) {
                    Some(worker) => break worker,
                    None => assert!(Instant::now() < limit, "no worker serves"),
                }
                std::thread::yield_now();
            };
            platform.kill(worker, true);
        }
    });
    let echo = echo.idempotent(true);
    let results: Vec<Vec<u8>> = echo
        .map(inputs_with_a_kill.map(|(_, input)| input))
        .map(|result| result.unwrap())
        .collect();
    assert_eq!(results, inputs);
}

#[test]
fn a_pinned_function_uses_only_its_slot() {
    let (platform, echo) = start(|options| options.workers = 2);
    let pinned = echo.clone().on_slot(1).unwrap();
    for _ in 0..20 {
        pinned.call(b"x").unwrap();
    }
    assert_eq!(platform.worker(0).served.load(Ordering::SeqCst), 0);
    assert!(matches!(echo.on_slot(2), Err(Error::NoSuchSlot { index: 2, slots: 2 })));
}

#[test]
fn a_pipeline_gives_results_in_order_and_survives_its_worker() {
    let (platform, echo) = start(|_| {});
    let mut pipeline = echo.pipeline().unwrap();
    let mut output = [0; 8];
    let mut drawn = 0u64;
    for number in 0..100u64 {
        if pipeline.is_full() {
            assert!(matches!(pipeline.push(b"x"), Err(Error::NoCredit)));
            assert_eq!(pipeline.pop(&mut output).unwrap(), Some(8));
            assert_eq!(output, drawn.to_le_bytes());
            drawn += 1;
        }
        pipeline.push(&number.to_le_bytes()).unwrap();
    }
    while pipeline.pop(&mut output).unwrap().is_some() {
        assert_eq!(output, drawn.to_le_bytes());
        drawn += 1;
    }
    assert_eq!(drawn, 100);
    platform.allow(0);
    pipeline.push(b"a").unwrap();
    pipeline.push(b"b").unwrap();
    platform.allow_future();
    platform.kill(0, true);
    assert_eq!(pipeline.pop(&mut output).unwrap_err().ran(), RunCertainty::Unknown);
    assert_eq!(pipeline.pop(&mut output).unwrap_err().ran(), RunCertainty::No);
    pipeline.push(b"c").unwrap();
    assert_eq!(pipeline.pop(&mut output).unwrap(), Some(1));
    assert_eq!(output[0], b'c');
}

#[test]
fn buffers_are_registered_once_and_forgotten_when_dropped() {
    let (platform, echo) = start(|_| {});
    let mut output = platform.invoker.buffer::<u64>(100).unwrap();
    let worker = platform.worker(0);
    assert_eq!(worker.regions.lock().unwrap().len(), 1);
    for _ in 0..10 {
        assert_eq!(echo.invoke_buffer(&b"x"[..], &mut output).unwrap(), 5);
    }
    assert_eq!(
        echo.submit_buffer(&b"x"[..], output.slice_mut(..2))
            .unwrap()
            .wait()
            .unwrap(),
        5
    );
    // An input larger than an entry is staged by the library.
    echo.call(&[1; 10_000]).unwrap();
    echo.call(&[1; 20_000]).unwrap();
    assert_eq!(worker.regions.lock().unwrap().len(), 2);
    // The buffer is registered with the worker that replaces a dead one when the buffer is used.
    platform.kill(0, true);
    while echo.inner.open_channel(0).is_some() {
        std::thread::yield_now();
    }
    assert_eq!(echo.invoke_buffer(&b"x"[..], &mut output).unwrap(), 5);
    let worker = platform.worker(0);
    assert_eq!(worker.regions.lock().unwrap().len(), 1);
    drop(output);
    let dropped = Instant::now();
    while !worker.regions.lock().unwrap().is_empty() {
        assert!(
            dropped.elapsed() < Duration::from_secs(5),
            "the worker still has the buffer"
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_sleep_ends_when_it_is_woken_though_nothing_is_ready() {
    let (platform, _echo) = start(|_| {});
    let limit = Duration::from_secs(60);
    let (looked, looks) = mpsc::channel();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            platform.invoker.sleep(&[], limit, || {
                let _ = looked.send(());
                false
            });
        });
        looks.recv().unwrap();
        platform.invoker.wake();
    });
    assert!(begin.elapsed() < limit / 2, "it slept until its limit had passed");
}

#[test]
fn an_invocation_whose_deadline_is_its_slots_is_not_given_up_while_it_waits() {
    let (platform, echo) = start(|_| {});
    let patient = echo.timeout(Some(Duration::from_millis(1))).timed_by_slot();
    platform.allow(0);
    let mut invocation = patient.submit(b"x").unwrap();
    // If the client counted the timeout from the call, it would have given up by then: the slot does not answer.
    let waited = invocation.wait_timeout(Duration::from_secs(1));
    assert!(waited.is_none(), "{waited:?}");
    platform.allow(u64::MAX);
    assert_eq!(invocation.wait().unwrap(), b"x");
}
