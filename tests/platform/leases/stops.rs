//! Workers that a signal stops: another worker replaces them, and the outcome of their calls is reported as unknown.

use hotlease_client::{Error, Invoker, RunCertainty};
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::process::Process;
use hotlease_tests::wait::{until, until_true};
use nix::sys::signal::Signal;
use std::time::Duration;

fn platform(stopped_limit: &str) -> Platform {
    Platform::start_with(PlatformOptions {
        further: vec!["--stopped-limit".into(), stopped_limit.into()],
        ..PlatformOptions::default()
    })
}

fn worker_of(platform: &Platform, invoker: &Invoker) -> Process {
    let lease = invoker.lease().to_string();
    // A listing leaves out an agent that takes too long to answer.
    let listed = || {
        let workers = platform.manager().workers().ok()?;
        let worker = workers.into_iter().find(|worker| worker.lease == lease)?;
        Process::of(worker.pid as i32)
    };
    until("the worker is listed", LIMIT, listed).0
}

#[test]
fn worker_that_stays_stopped_is_told_as_unknown_and_replaced() {
    let platform = platform("300ms");
    let invoker = platform.invoker("misbehaved");
    let marks = Marks::new();
    let runs = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
    until_true("the function runs", LIMIT, || marks.count() == 1);
    worker_of(&platform, &invoker).signal(Signal::SIGSTOP);
    match runs.wait() {
        Err(Error::WorkerDied {
            output,
            ran: RunCertainty::Unknown,
            ..
        }) => assert!(output.contains("stopped"), "{output}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(marks.count(), 1);

    // Also between two calls; no call fails for good, with a timeout or without.
    let echo = invoker.function("echo").unwrap().idempotent(true);
    assert_eq!(echo.call(b"before").unwrap(), b"before");
    worker_of(&platform, &invoker).signal(Signal::SIGSTOP);
    assert_eq!(echo.call(b"after").unwrap(), b"after");
    let hasty = echo.timeout(Some(Duration::from_millis(50)));
    worker_of(&platform, &invoker).signal(Signal::SIGSTOP);
    // The worker may answer this call before the signal stops it.
    let _ = hasty.call(b"");
    until_true("calls succeed again", LIMIT, || hasty.call(b"").is_ok());
}

#[test]
fn worker_that_computes_for_long_is_not_taken_for_stopped() {
    let platform = platform("100ms");
    let invoker = platform.invoker("misbehaved");
    let marks = Marks::new();
    let mut runs = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
    until_true("the function runs", LIMIT, || marks.count() == 1);
    let worker = worker_of(&platform, &invoker);
    // The worker answers nothing for fifteen times as long.
    assert!(runs.wait_timeout(Duration::from_millis(1500)).is_none(), "it runs on");
    assert!(worker.is_alive());
}
