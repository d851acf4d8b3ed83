//! Keeper, the core's own thread: collects results while no thread waits for a result, and tells the watchers of
//! futures.
//!
//! The keeper costs other threads little: a program that alternates submitting and waiting never wakes it. After work
//! the keeper naps for a while, and a task that is submitted meanwhile need not wake it either. Later the keeper parks,
//! and the next task wakes it.

use crate::client::core::lane::Lane;
use crate::client::core::lending::IdleSpan;
use crate::client::core::{Closed, ExecutorCore};
use hotlease_client::Invoker;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Nap while a stream of short tasks runs: all results that arrive in this time are collected at once.
const STREAM_NAP: Duration = Duration::from_micros(150);
/// Nap while other threads collect results, or no task is pending.
const NAP: Duration = Duration::from_millis(1);
/// Number of naps before the keeper parks.
const NAPS: u32 = 20;
/// Time to spin before a sleep, if a future is watched.
const SPIN: Duration = Duration::from_micros(20);
/// Limit of a sleep while tasks are pending.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Number of results in one collection that shows a stream of short tasks.
const STREAM: usize = 8;

const ACTIVE: u8 = 0;
const NAPPING: u8 = 1;
const PARKED: u8 = 2;

/// Function that tells the watchers of a core's ended tasks that these tasks have ended.
pub type FinishAll = fn(Python<'_>, &ExecutorCore);

/// Handle of the keeper for other threads.
#[derive(Default)]
pub struct KeeperHandle {
    thread: OnceLock<Thread>,
    mode: AtomicU8,
    has_lead: AtomicBool,
    is_woken: AtomicBool,
}

impl KeeperHandle {
    /// Tells the keeper that there is a new task. `queued`: the task waits until results are collected.
    #[inline]
    pub fn tell(&self, queued: bool) {
        let mode = self.mode.load(Ordering::SeqCst);
        if mode == PARKED || queued && mode == NAPPING {
            self.unpark();
        }
    }

    /// Tells the keeper that a future is watched, or has to be finished.
    pub fn attend(&self) {
        if self.mode.load(Ordering::SeqCst) != ACTIVE {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        self.mode.store(ACTIVE, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Whether the caller is the keeper.
    pub fn is_current(&self) -> bool {
        self.thread
            .get()
            .is_some_and(|thread| thread.id() == std::thread::current().id())
    }

    /// Whether the keeper is collecting results.
    pub fn has_lead(&self) -> bool {
        self.has_lead.load(Ordering::Acquire)
    }

    /// Makes the keeper look for work again, even if it sleeps or waits for results.
    pub fn wake(&self, invoker: &Invoker) {
        self.is_woken.store(true, Ordering::Release);
        self.unpark();
        invoker.wake();
    }

    /// Sleeps, unless there is work.
    fn rest(&self, mode: u8, limit: Option<Duration>, busy: impl Fn() -> bool) {
        self.mode.store(mode, Ordering::SeqCst);
        // A thread that adds a task after this store sees the mode; `busy` sees a task that was added before the store.
        if !busy() && !self.is_woken.swap(false, Ordering::AcqRel) {
            match limit {
                Some(limit) => std::thread::park_timeout(limit),
                None => std::thread::park(),
            }
        }
        self.mode.store(ACTIVE, Ordering::SeqCst);
    }
}

/// Starts the keeper of a core. The keeper ends when the core is closed and no task is pending, and then releases the
/// lease. `finish_all`: tells the watchers of tasks that have ended.
pub fn start(core: &Arc<ExecutorCore>, finish_all: FinishAll) -> std::io::Result<()> {
    let kept = core.clone();
    let thread = std::thread::Builder::new()
        .name("hotlease-keeper".into())
        .spawn(move || {
            keep(&kept, finish_all);
            give_back(&kept);
        })?;
    core.releases.wake(thread.thread().clone());
    let _ = core.keeper.thread.set(thread.thread().clone());
    Ok(())
}

fn keep(core: &Arc<ExecutorCore>, finish_all: FinishAll) {
    let keeper = &core.keeper;
    let mut awaited = Vec::new();
    let mut naps = 0;
    let mut idle = IdleSpan::begin(core);
    loop {
        finish_watched(core, finish_all);
        write_checkpoint(core, false);
        if core.is_finished() {
            // Once more, for tasks that have ended since the call above.
            finish_watched(core, finish_all);
            core.show_the_last();
            return;
        }
        if core.has_released() {
            core.release_left(&mut core.state());
        }
        if !core.begin_turn() {
            naps += 1;
            match naps {
                1 => idle = IdleSpan::begin(core),
                _ => idle.follow(core),
            }
            let (mode, limit) = if naps < NAPS {
                (NAPPING, Some(NAP))
            } else {
                (PARKED, core.lend(&idle))
            };
            let is_wanted = || limit.is_none() && core.is_room_wanted();
            let busy = || mode == PARKED && (core.state().pending > 0 || core.is_finished() || is_wanted());
            keeper.rest(mode, limit, busy);
            continue;
        }
        naps = 0;
        core.room_notices.forget();
        if core.waiters.load(Ordering::Acquire) > 0 {
            // The waiting threads collect results themselves.
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
                    || keeper.is_woken.swap(false, Ordering::AcqRel)
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

/// Tells the watchers of tasks that have ended.
fn finish_watched(core: &Arc<ExecutorCore>, finish_all: FinishAll) {
    if core.has_to_finish.load(Ordering::Acquire) {
        // `None` while the interpreter ends: no watcher is left then.
        let told = Python::try_attach(|py| finish_all(py, core));
        if told.is_none() {
            core.has_to_finish.store(false, Ordering::Release);
        }
        core.tell_followers();
    }
}

/// Writes memoised results to the checkpoint file; syncs them to the disk if this is the `last` write.
fn write_checkpoint(core: &ExecutorCore, last: bool) {
    core.memory.write(last, || match &mut core.state().graph.unwritten {
        Some(unwritten) if !unwritten.is_empty() => Some(std::mem::take(unwritten)),
        _ if last => Some(Vec::new()),
        _ => None,
    });
}

fn give_back(core: &Arc<ExecutorCore>) {
    write_checkpoint(core, true);
    let lanes: Vec<Lane> = {
        let mut state = core.state();
        state.closed.get_or_insert(Closed::ShutDown);
        state.lanes.drain(..).collect()
    };
    drop(lanes);
    if let Err(error) = core.invoker.clone().deallocate() {
        // The error is ignored: the lease ends by itself, or its loss was the reason why the core was closed.
        let _ = error;
    }
    core.showing.end();
    core.ended.store(true, Ordering::Release);
    core.tell_followers();
}
