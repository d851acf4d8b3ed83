//! The express entry of a channel, and the thread that holds it.
//!
//! An invocation whose thread waits for it goes through the express entry (see `hotlease_fabric::channel`) if that
//! thread holds the entry. A thread gets the free entry with its first call, and holds it until the thread uses another
//! channel or ends. The holder counts, publishes and harvests with plain loads and stores. With a locked instruction,
//! which waits for all earlier accesses, the copy of one call's output could not overlap the start of the next call.
//! Measured with near cores: about 10 ns less for 8 bytes, 30 ns less for 64 bytes. A part of the gain comes from
//! another change: this path does not read the clock.
//!
//! Threads that do not hold the entry use the ring.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The express entry of one channel. Only its holder calls the functions marked "Holder".
#[derive(Default)]
pub(crate) struct Express {
    held: AtomicBool,
    /// Number of the next invocation.
    next: AtomicU64,
    /// Whether the reply to the last invocation is not harvested: the invocation is in flight, or was abandoned.
    open: AtomicBool,
}

impl Express {
    /// Holder: the number of a new invocation, whose request the caller must publish. Returns `None` if the previous
    /// invocation was abandoned and not [`Express::end`]ed.
    #[inline]
    pub(crate) fn begin(&self) -> Option<u64> {
        if self.open.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number + 1, Ordering::Relaxed);
        self.open.store(true, Ordering::Relaxed);
        Some(number)
    }

    /// Holder: notes that the reply to the last invocation was harvested.
    #[inline]
    pub(crate) fn end(&self) {
        self.open.store(false, Ordering::Relaxed);
    }

    /// The invocation that is in flight or abandoned. Threads that do not hold the entry may get a slightly outdated
    /// value.
    #[inline]
    pub(crate) fn open(&self) -> Option<u64> {
        let open = self.open.load(Ordering::Relaxed);
        open.then(|| self.next.load(Ordering::Relaxed).wrapping_sub(1))
    }

    fn take(&self) -> bool {
        // Acquire pairs with the release in `ThreadEntry::release`: the new holder sees the numbers of the previous
        // holder, which has finished with the entry's memory.
        !self.held.load(Ordering::Relaxed)
            && self
                .held
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

/// The express entry that a thread holds.
struct ThreadEntry {
    /// Address of `express`, for comparison; null for none.
    address: Cell<*const Express>,
    express: RefCell<Option<Arc<Express>>>,
}

thread_local! {
    static HELD: ThreadEntry = const { ThreadEntry { address: Cell::new(std::ptr::null()), express: RefCell::new(None) } };
}

impl ThreadEntry {
    fn release(&self) {
        self.address.set(std::ptr::null());
        if let Some(express) = self.express.take() {
            // Pairs with the acquire in `take`.
            express.held.store(false, Ordering::Release);
        }
    }
}

impl Drop for ThreadEntry {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns whether this thread holds the entry, after an attempt to get it.
#[inline]
pub(crate) fn try_hold(express: &Arc<Express>) -> bool {
    HELD.try_with(|held| held.address.get() == Arc::as_ptr(express) || change(held, express))
        .unwrap_or(false)
}

#[cold]
fn change(held: &ThreadEntry, express: &Arc<Express>) -> bool {
    if !express.take() {
        return false;
    }
    held.release();
    held.address.set(Arc::as_ptr(express));
    held.express.replace(Some(express.clone()));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_holds_the_express_entry_until_it_ends() {
        let express = Arc::<Express>::default();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (go, wait) = std::sync::mpsc::channel();
            let shared = express.clone();
            scope.spawn(move || {
                tell.send(try_hold(&shared) && try_hold(&shared) && shared.begin() == Some(0))
                    .unwrap();
                wait.recv().unwrap();
            });
            assert!(told.recv().unwrap());
            assert!(!try_hold(&express), "another thread holds it");
            go.send(()).unwrap();
        });
        // A scope may end before its threads' locals are dropped.
        while !try_hold(&express) {
            std::thread::yield_now();
        }
        assert_eq!(express.open(), Some(0), "what its last holder left open stays so");
        assert_eq!(express.begin(), None);
        express.end();
        assert_eq!(
            (express.open(), express.begin(), express.open()),
            (None, Some(1), Some(1))
        );
    }

    #[test]
    fn a_thread_holds_one_at_a_time() {
        let (first, second) = (Arc::<Express>::default(), Arc::<Express>::default());
        assert!(try_hold(&first) && try_hold(&second));
        assert_eq!(Arc::strong_count(&first), 1, "the first was let go");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (try_hold(&first), try_hold(&second)));
            assert_eq!(other.join().unwrap(), (true, false));
        });
    }
}
