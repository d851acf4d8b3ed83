//! The core's own thread: takes in results while nobody waits for one, and tells the watchers of futures.
//!
//! It is cheap to ignore: a program that submits and waits by turns never wakes it. After work it naps for a while, so
//! that a task that is submitted then need not wake it either; later it parks, and the next task does.

use super::core::{Closed, Core};
use super::future::finish_all;
use super::lane::Lane;
use hotlease_client::Invoker;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Between two looks while a stream of short tasks runs: as many results as come in this time are taken in at once.
const STREAM_NAP: Duration = Duration::from_micros(150);
/// Between two looks while others take in results, or nothing is pending.
const NAP: Duration = Duration::from_millis(1);
/// Naps before it parks.
const NAPS: u32 = 20;
/// Spinning before a sleep, where somebody watches a future.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep while something is pending.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Results at a time that make a stream.
const STREAM: usize = 8;

const ACTIVE: u8 = 0;
const NAPPING: u8 = 1;
const PARKED: u8 = 2;

/// The thread, as others see it.
#[derive(Default)]
pub struct Keeper {
    thread: OnceLock<Thread>,
    mode: AtomicU8,
    has_lead: AtomicBool,
    roused: AtomicBool,
}

impl Keeper {
    /// There is a new task. `queued`: it waits for results to be taken in.
    #[inline]
    pub fn tell(&self, queued: bool) {
        let mode = self.mode.load(Ordering::SeqCst);
        if mode == PARKED || queued && mode == NAPPING {
            self.wake();
        }
    }

    /// Somebody watches a future, or one has to be finished.
    pub fn attend(&self) {
        if self.mode.load(Ordering::SeqCst) != ACTIVE {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.mode.store(ACTIVE, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Whether this is it.
    pub fn is_current(&self) -> bool {
        self.thread
            .get()
            .is_some_and(|thread| thread.id() == std::thread::current().id())
    }

    /// Whether it takes in results now.
    pub fn has_lead(&self) -> bool {
        self.has_lead.load(Ordering::Acquire)
    }

    /// It has to look again, whatever it does.
    pub fn rouse(&self, invoker: &Invoker) {
        self.roused.store(true, Ordering::Release);
        self.wake();
        invoker.rouse();
    }

    /// Sleeps, unless told.
    fn rest(&self, mode: u8, limit: Option<Duration>, busy: impl Fn() -> bool) {
        self.mode.store(mode, Ordering::SeqCst);
        // Whoever adds a task afterwards sees the mode, and whoever did before is seen here.
        if !busy() && !self.roused.swap(false, Ordering::AcqRel) {
            match limit {
                Some(limit) => std::thread::park_timeout(limit),
                None => std::thread::park(),
            }
        }
        self.mode.store(ACTIVE, Ordering::SeqCst);
    }
}

/// Starts the thread of a core. It ends when the core is closed and nothing is pending, and gives the lease back then.
pub fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let kept = core.clone();
    let thread = std::thread::Builder::new()
        .name("hotlease-keeper".into())
        .spawn(move || {
            keep(&kept);
            give_back(&kept);
        })?;
    core.releases.wake(thread.thread().clone());
    let _ = core.keeper.thread.set(thread.thread().clone());
    Ok(())
}

fn keep(core: &Arc<Core>) {
    let keeper = &core.keeper;
    let mut awaited = Vec::new();
    let mut naps = 0;
    loop {
        finish_watched(core);
        core.write_checkpoint(false);
        if core.is_over() {
            // What ended since.
            finish_watched(core);
            core.show_the_last();
            return;
        }
        if core.has_released() {
            core.release_left(&mut core.state());
        }
        let pending = || core.state().pending > 0;
        if !pending() {
            naps += 1;
            let (mode, limit) = if naps < NAPS {
                (NAPPING, Some(NAP))
            } else {
                (PARKED, None)
            };
            let busy = || mode == PARKED && (pending() || core.is_over());
            keeper.rest(mode, limit, busy);
            continue;
        }
        naps = 0;
        if core.waiters.load(Ordering::Acquire) > 0 {
            // They do it themselves.
            keeper.rest(NAPPING, Some(NAP), || core.has_to_finish.load(Ordering::Acquire));
            continue;
        }
        let Some(mut scratch) = core.try_collecting() else {
            keeper.rest(NAPPING, Some(NAP), || false);
            continue;
        };
        keeper.has_lead.store(true, Ordering::Release);
        let results = core.collect(&mut scratch);
        let finish = core.has_to_finish.load(Ordering::Acquire);
        if results == 0 && !finish {
            let watched = core.watched.load(Ordering::Relaxed) > 0;
            let spin = if watched { SPIN } else { Duration::ZERO };
            let enough = || {
                core.waiters.load(Ordering::Acquire) > 0
                    || core.has_to_finish.load(Ordering::Acquire)
                    || keeper.roused.swap(false, Ordering::AcqRel)
            };
            core.await_any(&mut awaited, spin, Instant::now() + SLEEP_MAX, enough);
        }
        keeper.has_lead.store(false, Ordering::Release);
        drop(scratch);
        if core.followers.load(Ordering::Acquire) > 0 {
            core.tell_followers();
        }
        if results >= STREAM && !finish {
            keeper.rest(ACTIVE, Some(STREAM_NAP), || false);
        }
    }
}

/// Tells the watchers of what has ended.
fn finish_watched(core: &Arc<Core>) {
    if core.has_to_finish.load(Ordering::Acquire) {
        // None while the interpreter ends: there is nobody to be told then.
        let told = Python::try_attach(|py| finish_all(py, core));
        if told.is_none() {
            core.has_to_finish.store(false, Ordering::Release);
        }
        core.tell_followers();
    }
}

fn give_back(core: &Arc<Core>) {
    core.write_checkpoint(true);
    let lanes: Vec<Lane> = {
        let mut state = core.state();
        state.closed.get_or_insert(Closed::ShutDown);
        state.lanes.drain(..).collect()
    };
    drop(lanes);
    if let Err(error) = core.invoker.clone().deallocate() {
        // The lease ends by itself then; and it may be why the core was closed.
        let _ = error;
    }
    core.showing.end();
    core.ended.store(true, Ordering::Release);
    core.tell_followers();
}
