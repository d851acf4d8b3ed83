//! Memory that is registered with workers, and the connections to these workers.

use crate::Error;
use crate::control::Control;
use crate::session::connection::WorkerConnection;
use hotlease_fabric::fence;
use hotlease_fabric::forks::ProcessMark;
use hotlease_fabric::memory::Memory;
use hotlease_wire::ids::RegionId;
use std::sync::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Memory, and the connections with whose workers it is registered. It has one number for all connections, unique in
/// the process.
///
/// A buffer holds one reference, and each invocation in flight that uses it holds another, made before
/// [`Region::register`]. Two parties use the word `last` and the count of references: the thread of an invocation, and
/// a task that deregisters an unused region ([`Region::remove_connection`]). Each party writes one of the two words,
/// and then reads the other:
///
/// ```text
///   invocation                             leave
///   count the reference                    last = 0
///   light fence                            heavy fence
///   last says registered?                  is the buffer's the only reference?
/// ```
///
/// Because of the fences, at least one of the two parties sees the other's write: a request never names a region that
/// the worker was told to deregister.
pub(crate) struct Region {
    memory: Arc<Memory>,
    pub(crate) id: RegionId,
    /// Twice the number of the connection on which the region was last used (0: none), plus [`MARK`]. Avoids the lock
    /// of `known_to` on the hot path. Only the mark is changed without the lock.
    last: AtomicU64,
    /// Whether the buffer still exists.
    pub(crate) owned: AtomicBool,
    known_to: Mutex<Vec<ConnectionEntry>>,
    made_by: ProcessMark,
}

/// Bit that is set if the memory was used since the last search for memory not used lately.
const MARK: u64 = 1;

struct ConnectionEntry {
    id: u64,
    connection: Weak<WorkerConnection>,
    /// Whether the region was used on this connection since the last search, like [`MARK`]. It is noted here while
    /// `last` names another connection.
    marked: bool,
}

impl Region {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self {
            memory,
            id: RegionId(NEXT.fetch_add(1, Ordering::Relaxed)),
            last: AtomicU64::new(0),
            owned: AtomicBool::new(true),
            known_to: Mutex::new(Vec::new()),
            made_by: ProcessMark::here(),
        }
    }

    /// Registers this memory with the connection's worker, if it is not registered there yet; after the first time this
    /// costs one load. The memory stays registered as long as the caller holds a reference that was made before the
    /// call.
    #[inline]
    pub(crate) fn register(self: &Arc<Self>, connection: &Arc<WorkerConnection>) -> Result<(), Error> {
        fence::light();
        // Relaxed: this thread, or the thread that wrote the word, has waited for the worker's answer, and the request
        // that names the region is published after that.
        if self.last.load(Ordering::Relaxed) == connection.id() << 1 | MARK {
            return Ok(());
        }
        self.register_slow(connection)
    }

    #[cold]
    fn register_slow(self: &Arc<Self>, connection: &Arc<WorkerConnection>) -> Result<(), Error> {
        let here = connection.id() << 1;
        let marked = self
            .last
            .compare_exchange(here, here | MARK, Ordering::Relaxed, Ordering::Relaxed);
        if marked.is_ok() || marked == Err(here | MARK) {
            return Ok(());
        }
        let mut known_to = self.known_to();
        // The mark moves to the list when `last` is about to name another connection.
        let last = self.last.load(Ordering::Relaxed);
        if let Some(known) = known_to.iter_mut().find(|known| known.id == last >> 1) {
            known.marked |= last & MARK != 0;
        }
        match known_to.iter_mut().find(|known| known.id == connection.id()) {
            Some(known) => known.marked = true,
            None => {
                known_to.retain(|known| known.connection.strong_count() > 0);
                let (asked, memory, id) = (connection.clone(), self.memory.clone(), self.id);
                // Weak, because a strong reference would mean that an invocation uses the region.
                let region = Arc::downgrade(self);
                Control::get()?.run(async move { asked.register(id, region, &memory).await })?;
                known_to.push(ConnectionEntry {
                    id: connection.id(),
                    connection: Arc::downgrade(connection),
                    marked: false,
                });
            }
        }
        self.last.store(here, Ordering::Relaxed);
        Ok(())
    }

    fn known_to(&self) -> MutexGuard<'_, Vec<ConnectionEntry>> {
        self.known_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks as [`Region::known_to`] does, for the control thread, which must not wait for the lock: its owner may wait
    /// for the control thread.
    fn try_known_to(&self) -> Option<MutexGuard<'_, Vec<ConnectionEntry>>> {
        match self.known_to.try_lock() {
            Ok(known_to) => Some(known_to),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // A thread is registering the region with some worker, to use it next.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether the region was used again on this connection since the last call; clears the mark.
    pub(crate) fn take_mark(&self, connection: u64) -> bool {
        let Some(mut known_to) = self.try_known_to() else {
            return true;
        };
        let here = connection << 1;
        let last = self
            .last
            .compare_exchange(here | MARK, here, Ordering::Relaxed, Ordering::Relaxed);
        let known = known_to.iter_mut().find(|known| known.id == connection);
        let elsewhere = known.is_some_and(|known| std::mem::take(&mut known.marked));
        last.is_ok() || elsewhere
    }

    /// Removes the connection unless the region is in use; the caller must then tell the connection's worker to
    /// deregister the region. Runs on the control thread; the caller holds the only reference besides the references of
    /// the buffer and of invocations.
    pub(crate) fn remove_connection(self: &Arc<Self>, connection: u64) -> bool {
        let Some(mut known_to) = self.try_known_to() else {
            return false;
        };
        if !self.is_idle() {
            return false;
        }
        let last = self.last.load(Ordering::Relaxed);
        if last >> 1 == connection {
            self.last.store(0, Ordering::Relaxed);
        }
        // Threads that find the 0 wait for the lock, and then use the list.
        if !fence::heavy() || !self.is_idle() {
            self.last.store(last, Ordering::Relaxed);
            return false;
        }
        known_to.retain(|known| known.id != connection);
        true
    }

    /// Whether only the buffer and the caller hold references.
    fn is_idle(self: &Arc<Self>) -> bool {
        if Arc::strong_count(self) != 2 {
            return false;
        }
        // If the buffer's reference is gone, the two references are the caller's and an invocation's. Then the load
        // below sees `owned` as it was written before the buffer's reference was dropped. The fence also orders later
        // accesses after the end of every invocation.
        atomic::fence(Ordering::Acquire);
        self.owned.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> RegionId {
        self.id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The connections belong to the process that was forked.
        if self.made_by.is_foreign() {
            return;
        }
        let known_to = std::mem::take(self.known_to.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Ok(control) = Control::get() else { return };
        for connection in known_to.into_iter().filter_map(|known| known.connection.upgrade()) {
            let id = self.id;
            control.spawn(async move { connection.deregister(id).await });
        }
    }
}
