//! Count of the pending requests during which the agent renews the lease itself.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts one request while it lives.
pub(super) struct KeepGuard<'a>(&'a AtomicUsize);

impl<'a> KeepGuard<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for KeepGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
