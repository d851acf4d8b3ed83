//! How the main thread hands things to a slot: a queue behind a lock, and a flag that the slot reads for
//! one load per turn, so that the lock is never touched on the hot path.

use crate::invoke::Regions;
use crate::library::FunctionTable;
use hotlease_fabric::channel::WorkerChannel;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::Memory;
use hotlease_wire::ids::RegionId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which client of the worker; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What a slot is told.
pub enum Letter {
    /// Serve this channel, whose spans may name these regions.
    Channel(ConnectionId, Box<WorkerChannel>, Regions),
    /// The client is gone: drop its channels and memory.
    Closed(ConnectionId),
    /// Spans of this connection may name this region.
    Region(ConnectionId, RegionId, Arc<Memory>),
    /// No longer.
    Forget(ConnectionId, RegionId),
    /// The functions there are, now.
    Functions(Arc<FunctionTable>),
}

/// One slot's.
pub struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    has_mail: AtomicBool,
    /// Rung by clients and by the main thread.
    pub doorbell: Doorbell,
}

impl Mailbox {
    /// Empty.
    pub fn new(doorbell: Doorbell) -> Self {
        Self {
            letters: Mutex::default(),
            has_mail: AtomicBool::new(false),
            doorbell,
        }
    }

    /// Main thread: delivers and wakes the slot.
    pub fn put(&self, letter: Letter) {
        self.letters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(letter);
        // Pairs with the acquire in `has_mail`: who sees the flag finds the letter.
        self.has_mail.store(true, Ordering::Release);
        self.doorbell.ring_always();
    }

    /// Slot: whether there is something.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Slot: takes everything.
    pub fn take(&self) -> Vec<Letter> {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that a letter put after this sets the flag again.
        self.has_mail.store(false, Ordering::Relaxed);
        std::mem::take(&mut letters)
    }
}
