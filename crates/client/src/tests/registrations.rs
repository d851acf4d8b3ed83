//! Registrations: a worker's memory stays within limits, and calls do not notice.

use super::providers::candidates;
use super::start;
use crate::fake_platform::FakePlatform;
use crate::{Buffer, Error, LeaseOptions, RunCertainty};
use hotlease_fabric::fence;
use hotlease_fabric::ofi::OfiError;
use std::cell::Cell;
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 10;

fn known(platform: &FakePlatform) -> Vec<u32> {
    platform.worker(0).regions.lock().unwrap().clone()
}

fn ids(buffers: &[&Buffer<u8>]) -> Vec<u32> {
    buffers.iter().map(|buffer| buffer.region().id().0).collect()
}

/// Whether this kernel has no membarrier: then no registration is ever closed.
fn nothing_is_closed_here() -> bool {
    let here = !fence::heavy();
    if here {
        eprintln!("skipped: this kernel has no membarrier");
    }
    here
}

#[test]
fn the_least_recently_used_buffer_is_deregistered_until_its_next_use() {
    if nothing_is_closed_here() {
        return;
    }
    let (platform, echo) = start(|options| options.registered_buffers = 3);
    let [a, b, c] = [(); 3].map(|()| platform.invoker.buffer::<u8>(SIZE).unwrap());
    assert_eq!(known(&platform), ids(&[&a, &b, &c]));
    echo.invoke_buffer(&a, &mut [0; 8][..]).unwrap();
    let d = platform.invoker.buffer::<u8>(SIZE).unwrap();
    assert_eq!(
        known(&platform),
        ids(&[&a, &c, &d]),
        "b was not used since it was registered"
    );
    echo.invoke_buffer(&b, &mut [0; 8][..]).unwrap();
    assert_eq!(known(&platform), ids(&[&a, &d, &b]), "c was not used either");
    for buffer in [&a, &b, &c, &d, &a, &b, &c, &d] {
        assert_eq!(echo.invoke_buffer(buffer, &mut [0; 8][..]).unwrap(), 5);
        assert_eq!(known(&platform).len(), 3);
    }
}

#[test]
fn memory_of_an_invocation_in_flight_stays_registered_after_its_buffer_is_dropped() {
    if nothing_is_closed_here() {
        return;
    }
    let (platform, echo) = start(|options| options.registered_buffers = 2);
    let [a, mut b] = [(); 2].map(|()| platform.invoker.buffer::<u8>(SIZE).unwrap());
    let both = ids(&[&a, &b]);
    platform.allow(0);
    let in_flight = echo.submit_buffer(&a, b.slice_mut(..)).unwrap();
    // This buffer can be made now, because it is registered only when it is used.
    let c = platform.invoker.buffer::<u8>(SIZE).unwrap();
    let refused = |case: &str| {
        let error = echo.submit_from_buffer(&c).expect_err(case);
        assert!(
            matches!(error, Error::BuffersInUse { buffers: 2, .. }),
            "{case}: {error:?}"
        );
        assert!(error.retryable() && error.ran() == RunCertainty::No);
        let text = error.to_string();
        assert!(
            text.contains("wait for some") && text.contains("`registered_buffers`"),
            "{text}"
        );
        assert_eq!(known(&platform), both);
    };
    refused("both buffers are in use");
    drop((a, b));
    refused("both are in use although their buffers were dropped");
    platform.allow(u64::MAX);
    in_flight.wait().unwrap();
    assert_eq!(echo.invoke_buffer(&c, &mut [0; 8][..]).unwrap(), 5);
}

#[test]
fn buffers_of_an_abandoned_invocation_are_in_use_until_its_reply() {
    if nothing_is_closed_here() {
        return;
    }
    let (platform, echo) = start(|options| options.registered_buffers = 2);
    let [a, mut b, c] = [(); 3].map(|()| platform.invoker.buffer::<u8>(SIZE).unwrap());
    platform.allow(0);
    drop(echo.submit_buffer(&a, b.slice_mut(..)).unwrap());
    let error = echo.submit_from_buffer(&c).expect_err("both may still be written");
    assert!(matches!(error, Error::BuffersInUse { .. }), "{error:?}");
    platform.allow(u64::MAX);
    let until = Instant::now() + Duration::from_secs(20);
    // No other invocation takes the ring entry of the abandoned invocation.
    while let Err(error) = echo.invoke_buffer(&c, &mut [0; 8][..]) {
        assert!(matches!(error, Error::BuffersInUse { .. }), "{error:?}");
        assert!(Instant::now() < until, "still in use");
    }
}

#[test]
fn requests_of_many_threads_name_only_what_is_registered() {
    if nothing_is_closed_here() {
        return;
    }
    // Each thread uses one buffer at a time: one of its own three buffers, or the buffer that all threads share.
    let (platform, echo) = start(|options| options.registered_buffers = 4);
    let shared = platform.invoker.buffer::<u8>(SIZE).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (echo, invoker, shared) = (echo.clone(), &platform.invoker, &shared);
            scope.spawn(move || {
                let own = [(); 3].map(|()| invoker.buffer::<u8>(SIZE).unwrap());
                for round in 0..300 {
                    let buffer = if round % 2 == 0 {
                        shared
                    } else {
                        &own[(round / 2 + thread) % 3]
                    };
                    let length = echo.invoke_buffer(buffer, &mut [0; 8][..]);
                    assert_eq!(length.unwrap(), 5, "thread {thread}, round {round}");
                }
            });
        }
    });
    let known = known(&platform).len();
    assert!(known <= 4, "the worker knows {known} buffers instead of at most 4");
}

#[test]
fn over_a_fabric_what_is_registered_stays_within_bytes_and_goes_with_the_buffers() {
    if nothing_is_closed_here() || candidates().is_empty() {
        return eprintln!("skipped: no provider leads to other hosts here");
    }
    let options = LeaseOptions {
        transport: Some("ofi".into()),
        replace_lease: false,
        depth: 4,
        registered_bytes: 5 * SIZE as u64 - 1,
        ..LeaseOptions::default()
    };
    let platform = FakePlatform::start(options);
    let connection = platform.invoker.connection(0);
    let registrations = || connection.holdings().expect("a port").registrations;
    let before = registrations();
    let echo = platform.invoker.function("echo").unwrap();
    let buffers: Vec<Buffer<u8>> = (0..50).map(|_| platform.invoker.buffer(SIZE).unwrap()).collect();
    for buffer in buffers.iter().chain(&buffers) {
        assert_eq!(echo.invoke_buffer(buffer, &mut [0; 8][..]).unwrap(), 5);
        assert_eq!(registrations() - before, 4, "as many as fit, here");
        assert_eq!(known(&platform).len(), 4, "and in the worker");
    }
    let error = platform.invoker.buffer::<u8>(5 * SIZE).unwrap_err();
    assert!(matches!(error, Error::Unregistered { .. }), "{error:?}");
    assert!(error.to_string().contains("`registered_bytes`"), "{error}");
    drop(buffers);
    let until = Instant::now() + Duration::from_secs(20);
    while registrations() > before || !known(&platform).is_empty() {
        assert!(
            Instant::now() < until,
            "registrations of dropped buffers are left: {} here",
            registrations() - before
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn a_full_provider_is_cleared_once_and_then_the_error_names_the_limit() {
    if nothing_is_closed_here() {
        return;
    }
    let platform = tokio::task::spawn_blocking(|| start(|_| {}).0).await.unwrap();
    let connection = platform.invoker.connection(0);
    let invoker = platform.invoker.clone();
    let _buffers = tokio::task::spawn_blocking(move || [(); 4].map(|()| invoker.buffer::<u8>(SIZE).unwrap()))
        .await
        .unwrap();
    let no_room = || OfiError::Call {
        provider: "verbs".into(),
        call: "fi_mr_reg",
        code: 12,
        why: "Cannot allocate memory".into(),
    };
    let (size, tries) = (2 * SIZE as u64, Cell::new(0));
    let mut registrations = connection.registrations.lock().await;
    let attempt = || {
        tries.set(tries.get() + 1);
        if tries.get() == 1 { Err(no_room()) } else { Ok(()) }
    };
    let made = connection.make_room_and_try(&mut registrations, size, attempt);
    made.await.unwrap();
    assert_eq!(known(&platform).len(), 2, "as much as was wanted was closed");
    tries.set(0);
    let attempt = || {
        tries.set(tries.get() + 1);
        Err::<(), _>(no_room())
    };
    let made = connection.make_room_and_try(&mut registrations, size, attempt);
    let error = made.await.unwrap_err();
    assert_eq!((tries.get(), known(&platform).len()), (2, 0));
    let text = error.to_string();
    for part in [
        "fi_mr_reg: Cannot allocate memory",
        "`ulimit -l`",
        "2 that were not in use",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    let made = connection.make_room_and_try(&mut registrations, size, attempt);
    made.await.unwrap_err();
    assert_eq!(tries.get(), 3, "with nothing to close, it is not tried again");
}
