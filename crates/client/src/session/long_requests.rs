//! Requests that may take long at the agent. While the agent works on such a request, it renews the lease itself.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When each pending request was sent, the oldest first.
#[derive(Default)]
pub(super) struct LongRequests(Mutex<VecDeque<Instant>>);

impl LongRequests {
    /// Adds a request that is pending as long as the guard lives.
    pub(super) fn begin(&self) -> PendingRequest<'_> {
        let mut pending = self.pending();
        let sent = Instant::now();
        pending.push_back(sent);
        PendingRequest { of: self, sent }
    }

    /// Time for which the oldest pending request has been pending; `None` if no request is pending.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.pending().front().map(Instant::elapsed)
    }

    fn pending(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pending request.
pub(super) struct PendingRequest<'a> {
    of: &'a LongRequests,
    sent: Instant,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut pending = self.of.pending();
        // If several requests were sent at the same instant, it does not matter which of them is removed.
        let at = pending.iter().position(|sent| *sent == self.sent);
        at.map(|at| pending.remove(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_one_that_is_still_pending() {
        let requests = LongRequests::default();
        assert_eq!(requests.oldest(), None);
        let (first, second) = (requests.begin(), requests.begin());
        assert_eq!(requests.pending().front(), Some(&first.sent));
        drop(first);
        assert_eq!(requests.pending().front(), Some(&second.sent));
        assert!(requests.oldest().is_some());
        drop(second);
        assert_eq!(requests.oldest(), None);
    }
}
