//! Sleeping where a provider may have nothing to sleep on, or something to be given to it again.

use crate::link::Sleeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long not to look.
const NAP: Duration = Duration::from_micros(50);

/// See the module.
pub(super) struct Napper {
    inner: Arc<dyn Sleeper>,
    naps: AtomicBool,
}

impl Napper {
    /// Sleeps as this one does, while there is nothing to nap for.
    pub(super) fn new(inner: Arc<dyn Sleeper>) -> Self {
        Self {
            inner,
            naps: AtomicBool::new(false),
        }
    }

    /// Whether the next sleep is a nap.
    pub(super) fn naps(&self, naps: bool) {
        // It is set and read by whoever holds, or held last, the engine's lock.
        self.naps.store(naps, Ordering::Relaxed);
    }

    /// Ends the sleep of now: from then on there are naps.
    pub(super) fn nap(&self) {
        self.naps(true);
        self.inner.wake();
    }
}

impl Sleeper for Napper {
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
