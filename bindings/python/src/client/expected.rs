//! How large a function's next result is likely to be: a result is written once, into the client's memory, where the worker was
//! given memory for it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing has been seen yet.
const UNKNOWN: usize = usize::MAX;
/// Smaller results in a row after which as much as before is expected no more.
const PATIENCE: usize = 8;

/// What is known of a function's results. Changed under the core's `state` only.
pub struct Expected {
    bytes: AtomicUsize,
    /// Smaller results since the last that was not, and the largest of them.
    smaller: AtomicUsize,
    largest: AtomicUsize,
}

impl Default for Expected {
    fn default() -> Self {
        Self {
            bytes: AtomicUsize::new(UNKNOWN),
            smaller: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
        }
    }
}

impl Expected {
    /// Bytes of the next reply, to a request of so many. Of an unknown function as many as it is given: to expect too much costs
    /// no more than memory that nobody touches, to expect too little a second copy of the result and a second round.
    #[inline]
    pub fn of(&self, request_bytes: usize) -> usize {
        match self.bytes.load(Ordering::Relaxed) {
            UNKNOWN => request_bytes,
            bytes => bytes,
        }
    }

    /// A result had so many bytes. What is expected grows at once, and shrinks to the largest of the last ones after a few: results
    /// of different sizes fit, and a single large one is forgotten.
    pub fn learn(&self, bytes: usize) {
        let bytes = bytes.min(UNKNOWN - 1);
        let before = self.bytes.load(Ordering::Relaxed);
        let smaller = self.smaller.load(Ordering::Relaxed) + 1;
        let largest = self.largest.load(Ordering::Relaxed).max(bytes);
        let (expected, smaller, largest) = match before {
            before if before == UNKNOWN || bytes >= before => (bytes, 0, 0),
            _ if smaller >= PATIENCE => (largest, 0, 0),
            before => (before, smaller, largest),
        };
        self.bytes.store(expected, Ordering::Relaxed);
        self.smaller.store(smaller, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
    }
}
