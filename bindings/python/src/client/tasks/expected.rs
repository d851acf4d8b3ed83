//! Prediction of a function's next result size. A worker that was given enough memory of the client writes its result
//! once, straight into it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// No result has been seen yet.
const UNKNOWN: usize = usize::MAX;
/// Number of smaller results in a row after which the prediction shrinks.
const PATIENCE: usize = 8;

/// Sizes of a function's recent results. Changed under the core's `state` only.
pub struct Expected {
    bytes: AtomicUsize,
    /// Smaller results since the last one that was not smaller, and the size of the largest of them.
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
    /// Predicted bytes of the next reply, to a request of `request_bytes`. An unknown function is predicted to return
    /// as many bytes as it gets: a prediction that is too large costs only untouched memory, one that is too small a
    /// second copy of the result and a second round trip.
    #[inline]
    pub fn of(&self, request_bytes: usize) -> usize {
        match self.bytes.load(Ordering::Relaxed) {
            UNKNOWN => request_bytes,
            bytes => bytes,
        }
    }

    /// Learns the size of a result. The prediction grows at once, and shrinks to the largest of the last results after
    /// a few: results of different sizes fit, and a single large one is forgotten.
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
