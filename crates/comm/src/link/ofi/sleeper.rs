//! Sleeper for a provider that may have no descriptor to sleep on, or that may refuse messages, which must be offered
//! again.

use crate::link::Sleeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Length of a nap, in which the link is not polled.
const NAP: Duration = Duration::from_micros(50);

/// Sleeper that can sleep in naps.
pub(super) struct NapSleeper {
    inner: Arc<dyn Sleeper>,
    naps: AtomicBool,
}

impl NapSleeper {
    /// Makes a sleeper that sleeps as `inner` does, while there is no reason for naps.
    pub(super) fn new(inner: Arc<dyn Sleeper>) -> Self {
        Self {
            inner,
            naps: AtomicBool::new(false),
        }
    }

    /// Sets whether the next sleep is a nap.
    pub(super) fn set_naps(&self, naps: bool) {
        // Written and read only by the thread that holds, or held last, the engine's lock.
        self.naps.store(naps, Ordering::Relaxed);
    }

    /// Ends the current sleep; naps follow.
    pub(super) fn nap(&self) {
        self.set_naps(true);
        self.inner.wake();
    }
}

impl Sleeper for NapSleeper {
    fn sleep(&self, at_most: Option<Duration>) {
        if !self.naps.load(Ordering::Relaxed) {
            return self.inner.sleep(at_most);
        }
        std::thread::sleep(at_most.map_or(NAP, |at_most| at_most.min(NAP)));
        self.inner.sleep(Some(Duration::ZERO));
    }

    fn wake(&self) {
        self.inner.wake();
    }
}
