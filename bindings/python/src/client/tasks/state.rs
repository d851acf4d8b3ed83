//! State of a task, which the core and the task's future share, and all its transitions. No transition needs the GIL.
//!
//! | stage | the task | content | next stage |
//! |---|---|---|---|
//! | `Pending` | waits for inputs (`PlannedTask`) or a slot (`TaskJob`) | `Open` | `start`: `Running`; `cancel`: `Cancelled` |
//! | `Running` | is on a slot (`Flight`), or is sent again (`TaskJob`) | `Open` | `resolve`: `Finished` |
//! | `Finished` | has ended | `Ended`, `Shared`, `Taken` | |
//! | `Cancelled` | was cancelled before it was sent | `Cancelled` | |
//! | `Ending` | has ended; its watchers still see it running | `Ended`, `Shared` | `finish`: `Finished` |
//! | `Cancelling` | was cancelled; its watchers still see it pending | `Cancelled` | `finish`: `Cancelled` |
//!
//! `resolve` and `cancel` of a watched task lead to `Ending` and `Cancelling` first.
//!
//! A future is *watched*, for good, once a caller has asked for its condition or added a callback.
//! `concurrent.futures.wait` and `as_completed` hold the condition while they count the finished futures, so a watched
//! task must not become `Finished` at that time: a thread that holds the GIL finishes the task under the future's
//! condition. An unwatched future has no condition yet.
//!
//! The stage is a byte outside the lock: the core starts a task, and any thread reads the stage, without the lock. Only
//! `start` and `cancel` leave `Pending`, and one exchange of the byte decides between them. `resolve` and `cancel`
//! change content and stage under the lock, and `watch` sets the watcher under the lock. So the lock decides whether a
//! task was resolved first or watched first. `finish` changes only the stage.

use super::outcome::TaskOutcome;
use super::task_times::{Ending, TaskTimes};
use crate::locks::locked;
use hotlease_flow::TaskId;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Stage of a task; see the module. From the stage `Cancelling` on, the task has ended; from `Finished` on, its future
/// says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    Pending = 0,
    Running = 1,
    Cancelling = 2,
    Ending = 3,
    Finished = 4,
    Cancelled = 5,
}

/// Values of a task that exist only in certain stages.
enum StageContent {
    /// There is no outcome yet.
    Open {
        /// Identifier of the task in the graph, if the graph is told of the task's end.
        node: Option<TaskId>,
        /// Whether other tasks need the outcome.
        is_needed: bool,
    },
    /// The outcome, which only the future needs.
    Ended(TaskOutcome),
    /// The outcome, which other tasks may need: it stays here.
    Shared(Arc<TaskOutcome>),
    /// The future has taken the outcome.
    Taken,
    Cancelled,
}

struct CellContent {
    content: StageContent,
    /// The future, once it is watched: the future must stay alive until its watchers are told.
    watcher: Option<Py<PyAny>>,
}

/// State that a task and its future share.
///
/// Because of its alignment, a cell in an `Arc` has 80 bytes. So glibc's allocator does not put it into the size class
/// of a small request (64 bytes). In the same class, cells would take the places of requests, which have shorter lives,
/// and neighbouring places would not be free at the same time: with 30,000 futures held, a submission then took 1.4 us
/// instead of 0.7 us.
#[repr(align(16))]
pub struct TaskCell {
    stage: AtomicU8,
    inside: Mutex<CellContent>,
    /// Times of the task, if they are recorded.
    pub times: Option<Arc<TaskTimes>>,
}

const _: () = assert!(size_of::<TaskCell>() == 64);

/// State of a task as an argument of another task.
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

/// Parties that have to be told that a task has ended.
#[derive(Default)]
pub struct EndNotices {
    /// Whether a future is watched: then a thread that holds the GIL has to call [`TaskCell::finish`].
    pub is_watched: bool,
    /// Identifier of the task in the graph, and its outcome, if other tasks need the outcome.
    pub graph: Option<(TaskId, Arc<TaskOutcome>)>,
}

/// Parties that have to be told that a task was cancelled.
pub struct CancelNotices {
    /// Whether a future is watched: then a thread that holds the GIL has to call [`TaskCell::finish`].
    pub is_watched: bool,
    /// Identifier of the task in the graph, if the graph has to be told.
    pub graph: Option<TaskId>,
}

/// Answer to an attempt to cancel a task.
pub enum Cancellation {
    /// The task is cancelled now.
    Done(CancelNotices),
    /// The task was cancelled before.
    Earlier,
    /// The task was sent.
    TooLate,
}

impl TaskCell {
    /// Makes the state of a task that waits.
    pub fn new(times: Option<Arc<TaskTimes>>) -> Self {
        let (node, is_needed) = (None, false);
        Self::with(Stage::Pending, StageContent::Open { node, is_needed }, times)
    }

    /// Makes the state of a task that ended before it could be sent.
    pub fn with_outcome(outcome: TaskOutcome) -> Self {
        Self::with(Stage::Finished, StageContent::Ended(outcome), None)
    }

    fn with(stage: Stage, content: StageContent, times: Option<Arc<TaskTimes>>) -> Self {
        Self {
            stage: AtomicU8::new(stage as u8),
            inside: Mutex::new(CellContent { content, watcher: None }),
            times,
        }
    }

    /// Returns the stage.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Pending,
            1 => Stage::Running,
            2 => Stage::Cancelling,
            3 => Stage::Ending,
            4 => Stage::Finished,
            _ => Stage::Cancelled,
        }
    }

    /// Whether the stage is final.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= Stage::Finished as u8
    }

    /// Whether the task is done, or will be as soon as a thread has finished it.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.stage.load(Ordering::Acquire) >= Stage::Cancelling as u8
    }

    fn exchange(&self, from: Stage, to: Stage) -> Result<u8, u8> {
        self.stage
            .compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Marks the task as about to be sent, for the first time or again. Returns `false` if the task was cancelled.
    #[inline]
    pub fn start(&self) -> bool {
        let started = self.exchange(Stage::Pending, Stage::Running);
        started.is_ok() || started == Err(Stage::Running as u8)
    }

    /// Cancels the task if it was not sent.
    pub fn cancel(&self) -> Cancellation {
        let mut inside = self.inside();
        let node = match inside.content {
            StageContent::Open { node, .. } => node,
            StageContent::Cancelled => return Cancellation::Earlier,
            _ => return Cancellation::TooLate,
        };
        let is_watched = inside.watcher.is_some();
        let next = match is_watched {
            true => Stage::Cancelling,
            false => Stage::Cancelled,
        };
        if self.exchange(Stage::Pending, next).is_err() {
            return Cancellation::TooLate;
        }
        inside.content = StageContent::Cancelled;
        if let Some(times) = &self.times {
            times.end(Ending::Cancelled);
        }
        let graph = node;
        Cancellation::Done(CancelNotices { is_watched, graph })
    }

    /// Stores the outcome of a task that was started.
    #[inline]
    pub fn resolve(&self, outcome: TaskOutcome) -> EndNotices {
        if let Some(times) = &self.times {
            times.record_outcome(&outcome);
        }
        let mut inside = self.inside();
        let StageContent::Open { node, is_needed } = inside.content else {
            return EndNotices::default();
        };
        let mut graph = None;
        inside.content = if is_needed {
            let shared = outcome.share();
            graph = node.map(|node| (node, shared.clone()));
            StageContent::Shared(shared)
        } else {
            StageContent::Ended(outcome)
        };
        let is_watched = inside.watcher.is_some();
        let next = match is_watched {
            true => Stage::Ending,
            false => Stage::Finished,
        };
        self.stage.store(next as u8, Ordering::Release);
        EndNotices { is_watched, graph }
    }

    /// Makes the end of a watched task visible: `Ending` becomes `Finished`, and `Cancelling` becomes `Cancelled`.
    pub fn finish(&self) {
        let end = match self.stage() {
            Stage::Ending => Stage::Finished,
            Stage::Cancelling => Stage::Cancelled,
            _ => return,
        };
        self.stage.store(end as u8, Ordering::Release);
    }

    /// Links the task to the graph's task `to`, so that the graph is told of its end. Returns `false` if the task has
    /// ended.
    pub fn link(&self, to: TaskId) -> bool {
        match &mut self.inside().content {
            StageContent::Open { node, .. } => {
                *node = Some(to);
                true
            }
            _ => false,
        }
    }

    /// Identifier in the graph of a task that has not ended; `None` if the task is not linked, or has ended.
    pub fn node(&self) -> Option<TaskId> {
        match self.inside().content {
            StageContent::Open { node, .. } => node,
            _ => None,
        }
    }

    /// State of the task as an argument of other tasks; its outcome is kept from now on.
    pub fn as_input(&self) -> InputState {
        match &mut self.inside().content {
            StageContent::Open { is_needed, .. } => {
                *is_needed = true;
                InputState::Pending
            }
            StageContent::Cancelled => InputState::Cancelled,
            ended => ended.share().map_or(InputState::Decoded, InputState::Ended),
        }
    }

    /// Makes `future` the watcher, which will be told of the end. Returns `true` if the task had ended already.
    pub fn watch(&self, future: Py<PyAny>) -> bool {
        let mut inside = self.inside();
        let is_open = matches!(inside.content, StageContent::Open { .. });
        // A task that has ended gets no watcher: no thread would take the watcher out, so the future would keep itself
        // alive.
        if is_open {
            inside.watcher = Some(future);
        }
        !is_open
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

    /// Takes the outcome. If other tasks need the outcome, too, returns a shared reference to it.
    pub fn take_outcome(&self) -> Option<TaskOutcome> {
        let mut inside = self.inside();
        // A dependency error stays: it contains more than the exception that is made from it.
        if matches!(&inside.content, StageContent::Ended(outcome) if !outcome.is_dependency())
            && let StageContent::Ended(outcome) = std::mem::replace(&mut inside.content, StageContent::Taken)
        {
            return Some(outcome);
        }
        inside.content.share().map(TaskOutcome::Shared)
    }

    fn inside(&self) -> MutexGuard<'_, CellContent> {
        locked(&self.inside)
    }
}

impl StageContent {
    /// Returns a shared reference to the outcome, which stays here from now on.
    fn share(&mut self) -> Option<Arc<TaskOutcome>> {
        let shared = match std::mem::replace(self, Self::Taken) {
            Self::Ended(outcome) => outcome.share(),
            Self::Shared(shared) => shared,
            other => {
                *self = other;
                return None;
            }
        };
        *self = Self::Shared(shared.clone());
        Some(shared)
    }
}
