//! The express entry of a channel, and the thread that holds it.
//!
//! An invocation that its thread waits for goes through the express entry (see `hotlease_fabric::channel`) if
//! that thread holds it: it got it with its first call, and keeps it until it uses another channel or ends.
//! The holder counts, publishes and harvests with plain loads and stores. A locked instruction waits for
//! everything before it, so that the copy of one call's output could not overlap the start of the next. Measured
//! where the cores are near, and with the clock off this path too: about 10 ns less for 8 bytes, 30 for 64.
//!
//! Whoever does not hold it uses the ring.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One channel's. Its holder alone calls what is marked so.
#[derive(Default)]
pub(crate) struct Express {
    held: AtomicBool,
    /// The next invocation's number.
    next: AtomicU64,
    /// Whether the last invocation was not harvested: it is in flight, or was given up.
    open: AtomicBool,
}

impl Express {
    /// Holder: the number of a new invocation, whose request the caller must publish. `None` if the one
    /// before was given up and not [`Express::end`]ed.
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

    /// Holder: the reply to the last invocation was harvested.
    #[inline]
    pub(crate) fn end(&self) {
        self.open.store(false, Ordering::Relaxed);
    }

    /// The invocation in flight or given up. For the holder exact, for others as of a moment ago.
    #[inline]
    pub(crate) fn open(&self) -> Option<u64> {
        let open = self.open.load(Ordering::Relaxed);
        open.then(|| self.next.load(Ordering::Relaxed).wrapping_sub(1))
    }

    fn take(&self) -> bool {
        // Acquire pairs with the release in `Held::release`: the new holder sees the old one's numbers, and
        // the old one is done with the entry's memory.
        !self.held.load(Ordering::Relaxed)
            && self
                .held
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }
}

/// What a thread holds.
struct Held {
    /// Address of `express`, to compare with; null for none.
    address: Cell<*const Express>,
    express: RefCell<Option<Arc<Express>>>,
}

thread_local! {
    static HELD: Held = const { Held { address: Cell::new(std::ptr::null()), express: RefCell::new(None) } };
}

impl Held {
    fn release(&self) {
        self.address.set(std::ptr::null());
        if let Some(express) = self.express.take() {
            // Pairs with the acquire in `take`.
            express.held.store(false, Ordering::Release);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// Whether this thread holds it, or could get it now.
#[inline]
pub(crate) fn hold(express: &Arc<Express>) -> bool {
    HELD.try_with(|held| held.address.get() == Arc::as_ptr(express) || change(held, express))
        .unwrap_or(false)
}

#[cold]
fn change(held: &Held, express: &Arc<Express>) -> bool {
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
    fn one_thread_holds_it_until_it_ends() {
        let express = Arc::<Express>::default();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (go, wait) = std::sync::mpsc::channel();
            let shared = express.clone();
            scope.spawn(move || {
                tell.send(hold(&shared) && hold(&shared) && shared.begin() == Some(0))
                    .unwrap();
                wait.recv().unwrap();
            });
            assert!(told.recv().unwrap());
            assert!(!hold(&express), "another thread holds it");
            go.send(()).unwrap();
        });
        // A scope may end before its threads' locals are gone.
        while !hold(&express) {
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
        assert!(hold(&first) && hold(&second));
        assert_eq!(Arc::strong_count(&first), 1, "the first was let go");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (hold(&first), hold(&second)));
            assert_eq!(other.join().unwrap(), (true, false));
        });
    }
}
