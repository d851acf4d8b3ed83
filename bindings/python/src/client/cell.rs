//! What a task and its future share: a state, and an outcome. No lock of Python's is needed to resolve one that nobody
//! watches.
//!
//! ```text
//!            start               resolve, unwatched
//!  Pending ─────────► Running ─────────────────────────► Finished
//!     │ cancel            │ resolve, watched                ▲
//!     ▼                   └─► outcome stored; whoever has ──┘
//!  Cancelled                  Python's lock finishes it
//!  (watched: first Cancelling, until that is told)
//! ```
//!
//! *Watched* is a bit of the same word: set, for good, when somebody asks for the future's condition or adds a callback.
//! `concurrent.futures.wait` and `as_completed` hold the condition while they count what is done, so a watched future
//! must not become `Finished` at that time: it is finished under its condition. An unwatched one has no condition yet,
//! and one atomic exchange decides which of the two came first.

use super::memory::Memory;
use hotlease_client::Error;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STATE: u8 = 0x0f;
const WATCHED: u8 = 0x10;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Waits in the queue.
    Pending = 0,
    /// Was sent to a slot.
    Running = 1,
    /// Was cancelled before it was sent, and has to tell that to its watchers; they still see it pending.
    Cancelling = 2,
    /// Has an outcome.
    Finished = 3,
    /// Was cancelled before it was sent.
    Cancelled = 4,
}

/// How a task ended.
pub enum Outcome {
    /// With these bytes of a reply.
    Reply(Box<[u8]>),
    /// With a reply in shared memory.
    Large(Memory),
    /// Without a reply.
    Failed(Box<Failed>),
    /// With this exception.
    Raised(Py<PyAny>),
    /// It was not sent: no worker can be prepared, for this reason.
    Unprepared(String),
}

/// Why there is no reply.
pub struct Failed {
    /// What the client library says.
    pub error: Error,
    /// Workers that died of the task, this time included.
    pub deaths: u8,
}

/// The shared part.
pub struct Cell {
    word: AtomicU8,
    outcome: Mutex<Option<Outcome>>,
    /// The future, once it is watched: it must live until it has told its watchers.
    watcher: Mutex<Option<Py<PyAny>>>,
}

impl Cell {
    /// Of a task that waits.
    pub fn new() -> Self {
        Self {
            word: AtomicU8::new(Stage::Pending as u8),
            outcome: Mutex::new(None),
            watcher: Mutex::new(None),
        }
    }

    /// Where it stands.
    pub fn stage(&self) -> Stage {
        // Acquire pairs with the release in `exchange`: who sees it finished sees the outcome.
        match self.word.load(Ordering::Acquire) & STATE {
            0 => Stage::Pending,
            1 => Stage::Running,
            2 => Stage::Cancelling,
            3 => Stage::Finished,
            _ => Stage::Cancelled,
        }
    }

    /// Whether nothing will change any more.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE >= Stage::Finished as u8
    }

    fn exchange(&self, change: impl Fn(u8) -> Option<u8>) -> Result<u8, u8> {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
    }

    /// It is about to be sent; false: it was cancelled.
    pub fn start(&self) -> bool {
        let start = |word| (word & STATE == Stage::Pending as u8).then_some(word | Stage::Running as u8);
        self.exchange(start).is_ok()
    }

    /// Cancels what was not sent. `None`: it was sent; else whether watchers have to be told.
    pub fn cancel(&self) -> Option<bool> {
        let cancel = |word| {
            let next = if word & WATCHED == 0 {
                Stage::Cancelled
            } else {
                Stage::Cancelling
            };
            (word & STATE == Stage::Pending as u8).then_some(word | next as u8)
        };
        self.exchange(cancel).ok().map(|word| word & WATCHED != 0)
    }

    /// Stores the outcome. True: it is watched, and somebody with Python's lock has to call `finish`.
    pub fn resolve(&self, outcome: Outcome) -> bool {
        *self.outcome() = Some(outcome);
        let finish = |word: u8| (word & WATCHED == 0).then_some(Stage::Finished as u8);
        self.exchange(finish).is_err()
    }

    /// A watched task that has its outcome, or was cancelled, is that now for everybody to see.
    pub fn finish(&self) {
        let end = match self.stage() {
            Stage::Cancelling | Stage::Cancelled => Stage::Cancelled,
            _ => Stage::Finished,
        };
        self.word.store(end as u8 | WATCHED, Ordering::Release);
    }

    /// From now on whoever resolves it tells this future. Whether it was done already.
    pub fn watch(&self, future: impl FnOnce() -> Py<PyAny>) -> bool {
        if self.word.load(Ordering::Acquire) & WATCHED == 0 {
            *self.watcher() = Some(future());
        }
        let word = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        let is_done = word & STATE >= Stage::Finished as u8;
        if is_done {
            // Nobody will ask for it; kept, it would keep itself alive.
            drop(self.take_watcher());
        }
        is_done
    }

    /// The future that watches it.
    pub fn take_watcher(&self) -> Option<Py<PyAny>> {
        self.watcher().take()
    }

    /// What it ended with; once.
    pub fn take_outcome(&self) -> Option<Outcome> {
        self.outcome().take()
    }

    fn outcome(&self) -> MutexGuard<'_, Option<Outcome>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watcher(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
