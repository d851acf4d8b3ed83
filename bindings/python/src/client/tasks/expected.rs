//! Prediction of a function's next result size. A worker that was given enough memory of the client writes its result
//! once, directly into that memory.

use std::sync::atomic::{AtomicUsize, Ordering};

/// No result has been seen yet.
const UNKNOWN: usize = usize::MAX;
/// Number of smaller results in a row after which the prediction shrinks.
const PATIENCE: usize = 8;

/// Sizes of a function's recent results. Changed under the core's `state` only.
pub struct Expected {
    bytes: AtomicUsize,
    /// Number of results since the last result that reached the prediction, and the size of the largest of them.
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
    /// Predicts the bytes of the next reply, to a request of `request_bytes`. The first result of a function is
    /// predicted to have the size of its request. A prediction that is too large costs only untouched memory. A
    /// prediction that is too small costs a second copy of the result and a second round trip.
    #[inline]
    pub fn of(&self, request_bytes: usize) -> usize {
        match self.bytes.load(Ordering::Relaxed) {
            UNKNOWN => request_bytes,
            bytes => bytes,
        }
    }

    /// Learns the size of a result. A larger result raises the prediction at once. After [`PATIENCE`] smaller results,
    /// the prediction shrinks to the largest of them. So results of different sizes fit, and a single large result is
    /// forgotten.
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
