//! Times of a task's stages. They are recorded for all tasks with `ExecutorOptions(timing=...)`, otherwise for one task
//! in many.
//!
//! All times are measured on the client, except the running time of the function: the worker measures it, and the reply
//! contains it (`FORMAT.md`). So clocks of different nodes are never compared.

use crate::client::tasks::outcome::TaskOutcome;
use crate::client::tasks::target::Target;
use crate::locks::locked;
use hotlease_fabric::clock::monotonic_ns;
use hotlease_wire::task::reply;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// End of a task, in records.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum Ending {
    /// The task returned a result.
    Returned = 1,
    /// The task raised an exception of its own.
    Raised = 2,
    /// The task ended without a result or an exception of its own.
    Failed = 3,
    /// The task was cancelled.
    Cancelled = 4,
}

/// Moments of one task, nanoseconds of CLOCK_MONOTONIC; 0: the task did not reach that stage.
#[derive(Debug, Default)]
pub struct TaskTimes {
    submitted: AtomicU64,
    accepted: AtomicU64,
    ready: AtomicU64,
    sent: AtomicU64,
    ended: AtomicU64,
    /// Running time of the function.
    running: AtomicU64,
    /// Time to decode the result.
    reading: AtomicU64,
    /// Time in `submit`, without waiting for room.
    submitting: AtomicU64,
    slot: AtomicU32,
    runs: AtomicU32,
    ending: AtomicU8,
}

/// Times as Python gets them: submitted, accepted, ready, sent, ended, running, reading, slot, runs, ending.
pub type TimesRow = (u64, u64, u64, u64, u64, u64, u64, u32, u32, u8);

impl TaskTimes {
    /// Makes the times of a task that is about to be submitted.
    pub fn begin() -> Arc<Self> {
        let times = Self::default();
        times.submitted.store(monotonic_ns(), Ordering::Relaxed);
        Arc::new(times)
    }

    /// Records that the executor has accepted the task.
    pub fn accepted(&self) {
        let now = monotonic_ns();
        self.accepted.store(now, Ordering::Relaxed);
        self.ready.store(now, Ordering::Relaxed);
    }

    /// Records that all inputs of the task are available.
    pub fn ready(&self) {
        self.ready.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Records that `submit` is about to return, after it waited `room_ns` for room.
    pub fn submitted(&self, room_ns: u64) {
        let took = monotonic_ns() - self.submitted.load(Ordering::Relaxed);
        self.submitting.store(took.saturating_sub(room_ns), Ordering::Relaxed);
    }

    /// Records that the task was sent to this slot at this moment.
    pub fn record_sent(&self, slot: usize, at_ns: u64) {
        self.slot.store(slot as u32, Ordering::Relaxed);
        self.sent.store(at_ns, Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.running.store(0, Ordering::Relaxed);
    }

    /// Records that the task was taken back from its slot before it ran.
    pub fn taken_back(&self) {
        self.runs.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records the running time of the function.
    pub fn set_running(&self, ns: u64) {
        self.running.store(ns, Ordering::Relaxed);
    }

    /// Records the outcome.
    pub fn record_outcome(&self, outcome: &TaskOutcome) {
        let ending = match outcome.sent_bytes().and_then(|bytes| bytes.first().copied()) {
            Some(reply::PLAIN | reply::PICKLED | reply::LEFT) => Ending::Returned,
            Some(reply::EXCEPTION | reply::EXCEPTION_TEXT) => Ending::Raised,
            _ => Ending::Failed,
        };
        self.end(ending);
    }

    /// Records how the task ended.
    pub fn end(&self, ending: Ending) {
        self.ended.store(monotonic_ns(), Ordering::Relaxed);
        self.ending.store(ending as u8, Ordering::Release);
    }

    /// Records the time to decode the result.
    pub fn set_reading(&self, ns: u64) {
        self.reading.store(ns, Ordering::Relaxed);
    }

    /// Whether the task has ended.
    pub fn has_ended(&self) -> bool {
        self.ending.load(Ordering::Acquire) != 0
    }

    /// Times of submitting and of running the task, if it has ended and both are known.
    pub fn cost(&self) -> Option<(u64, u64)> {
        let ended = self.has_ended();
        let (submitting, running) = (
            self.submitting.load(Ordering::Relaxed),
            self.running.load(Ordering::Relaxed),
        );
        (ended && submitting > 0 && running > 0).then_some((submitting, running))
    }

    /// All times.
    pub fn row(&self) -> TimesRow {
        let ending = self.ending.load(Ordering::Acquire);
        let of = |moment: &AtomicU64| moment.load(Ordering::Relaxed);
        (
            of(&self.submitted),
            of(&self.accepted),
            of(&self.ready),
            of(&self.sent),
            of(&self.ended),
            of(&self.running),
            of(&self.reading),
            self.slot.load(Ordering::Relaxed),
            self.runs.load(Ordering::Relaxed),
            ending,
        )
    }
}

/// Times of the last tasks that were submitted.
pub struct TimesRecorder {
    kept_max: usize,
    kept: Mutex<VecDeque<(Arc<Target>, Arc<TaskTimes>)>>,
}

impl TimesRecorder {
    /// Makes a recorder for at most `kept_max` tasks.
    pub fn new(kept_max: usize) -> Self {
        Self {
            kept_max,
            kept: Mutex::default(),
        }
    }

    /// Adds a task; drops the oldest task if there are too many.
    pub fn keep(&self, target: &Arc<Target>, times: &Arc<TaskTimes>) {
        let mut kept = locked(&self.kept);
        if kept.len() >= self.kept_max {
            kept.pop_front();
        }
        kept.push_back((target.clone(), times.clone()));
    }

    /// Function and times of each task, in the order of submission.
    pub fn rows(&self) -> Vec<(Arc<Target>, TimesRow)> {
        let kept = locked(&self.kept);
        kept.iter()
            .map(|(target, times)| (target.clone(), times.row()))
            .collect()
    }
}
