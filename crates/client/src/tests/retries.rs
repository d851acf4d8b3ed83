//! Retries: which invocations are sent to another worker, how often, and with which memory.

use super::{echo_of, start, submit_all};
use crate::fake_platform::FakePlatform;
use crate::{LeaseOptions, RunCertainty};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn an_idempotent_invocation_runs_again_on_a_new_worker() {
    let (platform, echo) = start(|_| {});
    let echo = echo.idempotent(true);
    platform.allow(0);
    let held = submit_all(&echo, 0..3);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| echo.call(b"sync"));
        std::thread::sleep(Duration::from_millis(20));
        platform.allow_future();
        platform.kill(0, true);
        assert_eq!(call.join().unwrap().unwrap(), b"sync");
    });
    for (number, invocation) in held.into_iter().enumerate() {
        assert_eq!(invocation.wait().unwrap(), echo_of(number as u64));
    }
}

#[test]
fn an_invocation_that_did_not_run_is_resubmitted_even_if_not_idempotent() {
    let (platform, echo) = start(|_| {});
    platform.allow(0);
    let first = echo.submit(b"first").unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| echo.call(b"second"));
        std::thread::sleep(Duration::from_millis(20));
        platform.allow_future();
        platform.kill(0, true);
        assert_eq!(second.join().unwrap().unwrap(), b"second");
    });
    assert_eq!(first.wait().unwrap_err().ran(), RunCertainty::Unknown);
}

/// The workers of an agent that is gone end one after the other. An invocation that was cut off at the first of them
/// must not spend its only retry on the second.
#[test]
fn the_loss_of_an_agent_costs_an_invocation_one_retry() {
    let options = LeaseOptions {
        depth: 4,
        replace_lease: false,
        ..LeaseOptions::default()
    };
    let platform = FakePlatform::start_on(options, &[2, 1]);
    let echo = platform.invoker.function("echo").unwrap().idempotent(true);
    let [first, second] = [0, 1].map(|worker| platform.worker(worker));
    first.allowed.store(0, Ordering::SeqCst);
    let held = echo.submit(b"held").unwrap();
    // This thread remembers the second worker's slot, which is idle and answers nothing any more.
    assert_eq!(echo.submit(b"x").unwrap().wait().unwrap(), b"x");
    assert_eq!(second.served.load(Ordering::SeqCst), 1, "the first worker was busy");
    second.allowed.store(0, Ordering::SeqCst);
    platform.lose_agent();
    platform.kill(0, false);
    assert_eq!(held.wait().unwrap(), b"held", "it ran on the worker of the other agent");
}

#[test]
fn an_input_of_a_map_runs_as_often_as_any_other_invocation() {
    let (platform, echo) = start(|_| {});
    let echo = echo.idempotent(true);
    platform.allow(0);
    std::thread::scope(|scope| {
        let mapped = scope.spawn(|| echo.batch(&[b"x"]).remove(0));
        let mut killed = None;
        for allow_next in [false, true] {
            // Waits until the invocation is in flight on another incarnation of the worker.
            while echo
                .inner
                .open_channel(0)
                .is_none_or(|channel| Some(channel.connection().epoch()) == killed || channel.load(1) == 0)
            {
                std::thread::yield_now();
            }
            if allow_next {
                platform.allow_future();
            }
            killed = Some(platform.worker(0).epoch);
            platform.kill(0, true);
        }
        let error = mapped.join().unwrap().unwrap_err();
        assert_eq!(error.ran(), RunCertainty::Unknown, "it has run twice: {error:?}");
    });
}

/// The worker of the first attempt may still write, so no later attempt may use the same memory.
#[test]
fn memory_that_a_lost_worker_may_still_write_is_not_used_again() {
    let (platform, echo) = start(|_| {});
    let echo = echo.idempotent(true).output_bytes(1 << 20);
    platform.allow(0);
    let held = echo.submit(b"x").unwrap();
    let first = platform.worker(0);
    platform.allow_future();
    platform.kill(0, false);
    assert_eq!(held.wait().unwrap().len(), 5, "it ran again, on another worker");
    let (first, second) = (
        first.regions.lock().unwrap(),
        platform.worker(0).regions.lock().unwrap().clone(),
    );
    assert!(!second.is_empty() && second.iter().all(|region| !first.contains(region)));
}

#[test]
fn a_lost_worker_that_may_still_write_to_the_callers_buffer_ends_the_invocation() {
    let (platform, echo) = start(|_| {});
    let echo = echo.idempotent(true);
    platform.allow(0);
    let mut buffer = platform.invoker.buffer::<u8>(1000).unwrap();
    let held = echo.submit_buffer(&b"x"[..], buffer.slice_mut(..)).unwrap();
    platform.allow_future();
    platform.kill(0, false);
    assert_eq!(held.wait().unwrap_err().ran(), RunCertainty::Unknown);
}

#[test]
fn a_later_refusal_does_not_hide_that_an_earlier_attempt_may_have_run() {
    let (platform, _) = start(|_| {});
    let refused = platform.invoker.function("unread").unwrap().idempotent(true);
    assert_eq!(refused.call(b"x").unwrap_err().ran(), RunCertainty::No);
    for submits in [false, true] {
        platform.allow(0);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| match submits {
                true => refused.submit(b"x").and_then(|invocation| invocation.wait()),
                false => refused.call(b"x"),
            });
            while refused.inner.open_channel(0).is_none_or(|channel| channel.load(1) == 0) {
                std::thread::yield_now();
            }
            platform.allow_future();
            platform.kill(0, true);
            let error = call.join().unwrap().unwrap_err();
            assert_eq!(error.ran(), RunCertainty::Unknown, "submits: {submits}: {error:?}");
        });
    }
}
