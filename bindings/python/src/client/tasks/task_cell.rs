//! State that a task and its future share: a stage, and an outcome. Resolving a task that is not watched needs no GIL.
//!
//! ```text
//!            start               resolve, unwatched
//!  Pending ─────────► Running ─────────────────────────► Finished
//!     │ cancel            │ resolve, watched                ▲
//!     ▼                   └─► outcome stored; a holder ────┘
//!  Cancelled                  of the GIL finishes it
//!  (watched: first Cancelling, until the watchers are told)
//! ```
//!
//! *Watched* is a bit of the same word: set, for good, when a caller asks for the future's condition or adds a
//! callback. `concurrent.futures.wait` and `as_completed` hold the condition while they count the finished futures, so
//! a watched future must not become `Finished` at that time: it is finished under its condition. An unwatched future
//! has no condition yet, and one atomic exchange decides whether resolving or watching came first.

use super::outcome::TaskOutcome;
use super::task_times::{Ending, TaskTimes};
use hotlease_flow::TaskId;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const STATE: u8 = 0x0f;
const WATCHED: u8 = 0x10;
/// The outcome is stored, and the task has to be finished. Set only if the task is watched.
const ENDED: u8 = 0x40;
/// The graph knows the task and is told of its end.
const LINKED: u8 = 0x20;

/// Stage of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Waits in the queue.
    Pending = 0,
    /// Was sent to a slot.
    Running = 1,
    /// Was cancelled before it was sent; its watchers are not told yet and still see it pending.
    Cancelling = 2,
    /// Has an outcome.
    Finished = 3,
    /// Was cancelled before it was sent.
    Cancelled = 4,
}

/// State that a task and its future share.
pub struct TaskCell {
    word: AtomicU8,
    inside: Mutex<CellContent>,
    /// Times of the task, if they are recorded.
    pub times: Option<Arc<TaskTimes>>,
}

#[derive(Default)]
struct CellContent {
    outcome: Option<TaskOutcome>,
    /// The future, once it is watched: it must live until its watchers are told.
    watcher: Option<Py<PyAny>>,
    /// The graph's name of the task.
    node: Option<TaskId>,
    /// The task is an argument of other tasks: its outcome is kept.
    is_input: bool,
}

/// State of a task as an argument of another one.
pub enum InputState {
    /// The task has no outcome yet.
    Pending,
    /// The task has this outcome.
    Ended(Arc<TaskOutcome>),
    /// The task was cancelled.
    Cancelled,
    /// The task had an outcome, which its future has decoded or is decoding.
    Decoded,
}

impl TaskCell {
    /// State of a task that waits.
    pub fn new(times: Option<Arc<TaskTimes>>) -> Self {
        Self {
            word: AtomicU8::new(Stage::Pending as u8),
            inside: Mutex::default(),
            times,
        }
    }

    /// Returns the stage.
    pub fn stage(&self) -> Stage {
        // Acquire pairs with the release in `exchange`: a thread that sees the task finished sees the outcome.
        match self.word.load(Ordering::Acquire) & STATE {
            0 => Stage::Pending,
            1 => Stage::Running,
            2 => Stage::Cancelling,
            3 => Stage::Finished,
            _ => Stage::Cancelled,
        }
    }

    /// Whether the stage is final.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE >= Stage::Finished as u8
    }

    /// Whether the task is done, or will be as soon as a thread has finished it.
    #[inline]
    pub fn has_ended(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & STATE >= Stage::Cancelling as u8 || word & ENDED != 0
    }

    fn exchange(&self, change: impl Fn(u8) -> Option<u8>) -> Result<u8, u8> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
    }

    /// Marks the task as about to be sent; false: it was cancelled.
    pub fn start(&self) -> bool {
        let start = |word| (word & STATE == Stage::Pending as u8).then_some(word | Stage::Running as u8);
        self.exchange(start).is_ok()
    }

    /// Cancels the task if it was not sent. Returns the parties to tell; `None`: it was sent.
    pub fn cancel(&self) -> Option<CancelNotices> {
        let cancel = |word| {
            let next = if word & WATCHED == 0 {
                Stage::Cancelled
            } else {
                Stage::Cancelling
            };
            (word & STATE == Stage::Pending as u8).then_some(word | next as u8)
        };
        let told = |word| CancelNotices {
            watchers: word & WATCHED != 0,
            graph: word & LINKED != 0,
        };
        let before = self.exchange(cancel).ok()?;
        if let Some(times) = &self.times {
            times.end(Ending::Cancelled);
        }
        Some(told(before))
    }

    /// Stores the outcome. True: the task is watched, and a thread that holds the GIL has to call `finish`.
    pub fn resolve(&self, outcome: TaskOutcome) -> bool {
        if let Some(times) = &self.times {
            times.ended(&outcome);
        }
        self.inside().outcome = Some(outcome);
        let finish = |word: u8| {
            Some(if word & WATCHED == 0 {
                Stage::Finished as u8
            } else {
                word | ENDED
            })
        };
        let before = self.exchange(finish).unwrap_or_else(|word| word);
        before & WATCHED != 0
    }

    /// Links the task to the graph's `node`, which is told of its end from now on; false: it was cancelled.
    pub fn link(&self, node: TaskId) -> bool {
        self.inside().node = Some(node);
        let link = |word: u8| {
            let may_end = word & STATE <= Stage::Running as u8;
            may_end.then_some(word | LINKED)
        };
        self.exchange(link).is_ok()
    }

    /// Whether the graph is told of the task's end.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.word.load(Ordering::Acquire) & LINKED != 0
    }

    /// The graph's name of the task.
    pub fn node(&self) -> Option<TaskId> {
        self.inside().node
    }

    /// State of the task as an argument of others; its outcome is kept from now on.
    pub fn as_input(&self) -> InputState {
        let mut inside = self.inside();
        inside.is_input = true;
        if let Some(outcome) = inside.outcome.take() {
            let shared = outcome.share();
            inside.outcome = Some(TaskOutcome::Shared(shared.clone()));
            return InputState::Ended(shared);
        }
        match self.stage() {
            Stage::Pending | Stage::Running => InputState::Pending,
            Stage::Cancelling | Stage::Cancelled => InputState::Cancelled,
            Stage::Finished => InputState::Decoded,
        }
    }

    /// Makes a watched task that has its outcome, or was cancelled, visibly so.
    pub fn finish(&self) {
        let end = match self.stage() {
            Stage::Cancelling | Stage::Cancelled => Stage::Cancelled,
            _ => Stage::Finished,
        };
        let rest = self.word.load(Ordering::Acquire) & LINKED;
        self.word.store(end as u8 | WATCHED | rest, Ordering::Release);
    }

    /// Makes `future` the watcher, which is told of the end from now on. Returns whether the task was done already.
    pub fn watch(&self, future: impl FnOnce() -> Py<PyAny>) -> bool {
        if self.word.load(Ordering::Acquire) & WATCHED == 0 {
            let future = future();
            self.inside().watcher = Some(future);
        }
        let word = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        let is_done = word & STATE >= Stage::Finished as u8;
        if is_done {
            // No thread will ask for the watcher; a stored one would keep itself alive.
            drop(self.take_watcher());
        }
        is_done
    }

    /// The future that watches the task; it stays the watcher.
    pub fn watcher(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let inside = self.inside();
        inside.watcher.as_ref().map(|future| future.clone_ref(py))
    }

    /// Takes the future that watches the task.
    pub fn take_watcher(&self) -> Option<Py<PyAny>> {
        self.inside().watcher.take()
    }

    /// Takes the outcome, which exists once, or a share of it if other tasks need it.
    pub fn take_outcome(&self) -> Option<TaskOutcome> {
        let mut inside = self.inside();
        let outcome = inside.outcome.take()?;
        // A dependency error holds more than the exception that is made of it.
        if !inside.is_input && !outcome.is_dependency() {
            return Some(outcome);
        }
        let shared = outcome.share();
        inside.outcome = Some(TaskOutcome::Shared(shared.clone()));
        Some(TaskOutcome::Shared(shared))
    }

    fn inside(&self) -> MutexGuard<'_, CellContent> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parties to tell that a task was cancelled.
pub struct CancelNotices {
    /// The watchers of its future.
    pub watchers: bool,
    /// The graph.
    pub graph: bool,
}
