//! How large a function's next result is likely to be: a result is written once, into the client's memory, where the worker was
//! given memory for it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing has been seen yet.
const UNKNOWN: usize = usize::MAX;

/// What is known of a function's results. Changed under the core's `state` only.
pub struct Expected(AtomicUsize);

impl Default for Expected {
    fn default() -> Self {
        Self(AtomicUsize::new(UNKNOWN))
    }
}

impl Expected {
    /// Bytes of the next reply, to a request of so many. Of an unknown function as many as it is given: to expect too much costs
    /// no more than memory that nobody touches, to expect too little a second copy of the result and a second round.
    #[inline]
    pub fn of(&self, request_bytes: usize) -> usize {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => request_bytes,
            bytes => bytes,
        }
    }

    /// A result had so many bytes. What is expected grows at once and shrinks by half of the difference, so that results of
    /// different sizes fit, and a single large one is forgotten after a few.
    pub fn learn(&self, bytes: usize) {
        let before = match self.0.load(Ordering::Relaxed) {
            UNKNOWN => bytes,
            before => before,
        };
        let bytes = bytes.min(UNKNOWN - 1);
        self.0.store(bytes.max(before / 2 + bytes / 2), Ordering::Relaxed);
    }
}
