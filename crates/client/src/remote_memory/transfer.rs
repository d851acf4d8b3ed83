//! Copies to and from remote memory that were begun, and that other threads carry out.

use crate::Error;
use std::sync::mpsc::{Receiver, SendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Copies of one remote memory that were begun.
#[derive(Default)]
pub(super) struct Transfers {
    state: Mutex<TransferState>,
    ended: Condvar,
}

#[derive(Default)]
struct TransferState {
    under_way: usize,
    /// First error of a copy for whose end no thread has waited.
    failure: Option<Error>,
}

/// Largest number of copies of one remote memory under way; a further copy begins when one has ended.
const UNDER_WAY_MAX: usize = 64;

impl Transfers {
    fn lock(&self) -> MutexGuard<'_, TransferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&TransferState) -> bool) -> MutexGuard<'_, TransferState> {
        let waited = self.ended.wait_while(self.lock(), |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a copy that begins now.
    fn note_begin(self: &Arc<Self>) -> CopyUnderWay {
        self.wait_while(|state| state.under_way >= UNDER_WAY_MAX).under_way += 1;
        CopyUnderWay(self.clone())
    }

    fn note_failure(&self, failure: Error) {
        self.lock().failure.get_or_insert(failure);
    }

    /// Waits until no copy is under way.
    pub fn flush(&self) -> Result<(), Error> {
        let mut state = self.wait_while(|state| state.under_way > 0);
        state.failure.take().map_or(Ok(()), Err)
    }
}

/// A copy that is counted as under way until this is dropped, also by a panic of the copy.
struct CopyUnderWay(Arc<Transfers>);

impl Drop for CopyUnderWay {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
        self.0.ended.notify_all();
    }
}

/// A copy that was begun. If it is dropped, the copy goes on, and [`RemoteMemory::flush`](crate::RemoteMemory::flush)
/// reports its error.
#[must_use = "the copy may not have ended yet, and may fail: wait for it"]
pub struct MemoryTransfer<T> {
    result: Receiver<Result<T, Error>>,
    all: Arc<Transfers>,
}

impl<T: Send + 'static> MemoryTransfer<T> {
    pub(super) fn begin(
        all: &Arc<Transfers>,
        copy: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, result) = sync_channel(1);
        let under_way = all.note_begin();
        let body = move || {
            // If the receiver is gone, no thread waits for this copy.
            if let Err(SendError(Err(error))) = sender.send(copy()) {
                under_way.0.note_failure(error);
            }
        };
        let thread = std::thread::Builder::new().name("hotlease-memory".into());
        let started = thread.spawn(body);
        started.map_err(Error::local("start a thread for a copy"))?;
        Ok(Self {
            result,
            all: all.clone(),
        })
    }

    /// Waits for the end of the copy; returns what it has produced.
    ///
    /// # Errors
    /// Errors of [`RemoteMemory::read`](crate::RemoteMemory::read) and
    /// [`write`](crate::RemoteMemory::write).
    pub fn wait(self) -> Result<T, Error> {
        let ended = self.result.recv();
        ended.unwrap_or_else(|_| Err(Error::protocol("the thread of a copy has panicked")))
    }
}

impl<T> Drop for MemoryTransfer<T> {
    fn drop(&mut self) {
        if let Ok(Err(error)) = self.result.try_recv() {
            self.all.note_failure(error);
        }
    }
}
