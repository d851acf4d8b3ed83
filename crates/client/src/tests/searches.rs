//! Searches for another lease: they end with the invoker that they are made for.

use super::start;
use crate::control::Control;
use crate::{EndReason, Error};
use hotlease_wire::ids::JobId;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time of a search that does not end, because no platform runs.
const FOREVER: Duration = Duration::from_secs(3600);
/// Longest time that a search may go on after it was told to end.
const SOON: Duration = Duration::from_secs(4);

/// A directory without a platform, removed when dropped.
struct Nowhere(PathBuf);

impl Nowhere {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("hotlease-{name}-{}", std::process::id())))
    }
}

impl Drop for Nowhere {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_search_in_the_background_ends_when_its_invoker_is_dropped() {
    let nowhere = Nowhere::new("dropped");
    let (mut platform, echo) = start(|options| {
        options.workers = 2;
        options.replace_lease = true;
        options.move_within = FOREVER;
        options.runtime_dir = Some(nowhere.0.clone());
    });
    platform.end_lease(EndReason::BatchJob(JobId(7)));
    let slots = platform.invoker.inner().clone();
    while platform.invoker.is_open(0) || platform.invoker.is_open(1) {
        std::thread::yield_now();
    }
    // One repair searches, the other waits for the same part.
    (0..2).for_each(|slot| slots.repair_in_background(slot));
    // The control thread runs what it is given in turn: at the end of this call both repairs have begun.
    Control::get().unwrap().run(async { Ok(()) }).unwrap();
    let left = Arc::downgrade(&slots);
    drop((slots, echo));
    let (other, _) = start(|_| {});
    platform.invoker = other.invoker.clone();
    let dropped = Instant::now();
    while left.upgrade().is_some() {
        assert!(dropped.elapsed() < SOON, "the search goes on, and would take a lease");
        std::thread::yield_now();
    }
}

#[test]
fn an_invoker_that_is_told_to_stop_ends_searches_and_begins_none() {
    let nowhere = Nowhere::new("stopped");
    let (platform, echo) = start(|options| {
        options.replace_lease = true;
        options.move_within = FOREVER;
        options.runtime_dir = Some(nowhere.0.clone());
    });
    let mut pipeline = echo.pipeline().unwrap();
    platform.end_lease(EndReason::BatchJob(JobId(7)));
    while !pipeline.is_closed() {
        std::thread::yield_now();
    }
    let searching = std::thread::spawn(move || pipeline.repair());
    // After this call the search has usually begun. If it has not, it begins after the stop below, and fails at once
    // with the same error.
    Control::get().unwrap().run(async { Ok(()) }).unwrap();
    platform.invoker.stop_searching();
    let stopped = Instant::now();
    for error in [searching.join().unwrap().unwrap_err(), echo.pipeline().unwrap_err()] {
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
    }
    assert!(stopped.elapsed() < SOON, "it took {:?}", stopped.elapsed());
}
