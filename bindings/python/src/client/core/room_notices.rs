//! Notices that another program waits for room, and which of them are the executor's own.
//!
//! Uses nothing of Python and of this package, so that the tests below run: `tests/python` includes this file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time for which a notice is valid. A program that waits for room asks at least every second, and each refusal causes
/// a notice.
const NOTICE_LASTS: Duration = Duration::from_millis(1200);
/// Time within which the notices of the executor's own requests have arrived.
const OWN_NOTICES: Duration = Duration::from_millis(500);

/// Notices of agents that a request found no room. A notice does not name the request, and goes to all holders of
/// leases. So an executor that asks for more workers also gets the notices of its own requests. Times are of the
/// monotonic clock.
#[derive(Default)]
pub struct RoomNotices {
    /// Time of the latest notice; 0 if no notice is valid.
    latest_ns: AtomicU64,
    /// Notices up to this time may belong to the executor's own requests.
    own_until_ns: AtomicU64,
}

impl RoomNotices {
    /// Records that a notice has arrived.
    pub fn note(&self, now_ns: u64) {
        if now_ns > self.own_until_ns.load(Ordering::Acquire) {
            self.latest_ns.store(now_ns, Ordering::Release);
        }
    }

    /// Ignores all notices so far.
    pub fn forget(&self) {
        self.latest_ns.store(0, Ordering::Release);
    }

    /// Marks that the executor has made its last request for workers, for now.
    pub fn end_own(&self, now_ns: u64) {
        self.own_until_ns
            .store(now_ns + OWN_NOTICES.as_nanos() as u64, Ordering::Release);
        self.forget();
    }

    /// Whether another program waits for room.
    pub fn count(&self, now_ns: u64) -> bool {
        let latest = self.latest_ns.load(Ordering::Acquire);
        latest > 0 && now_ns.saturating_sub(latest) < NOTICE_LASTS.as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_notice_counts_for_little_longer_than_the_pause_of_a_program_that_waits() {
        let notices = RoomNotices::default();
        assert!(!notices.count(SECOND / 2), "there was none");
        notices.note(5 * SECOND);
        assert!(notices.count(5 * SECOND) && notices.count(6 * SECOND));
        assert!(!notices.count(7 * SECOND), "its program has what it needs, or is gone");
        notices.note(8 * SECOND);
        notices.forget();
        assert!(!notices.count(8 * SECOND));
    }

    #[test]
    fn notices_of_the_executor_s_own_requests_do_not_count() {
        let notices = RoomNotices::default();
        notices.note(5 * SECOND);
        notices.end_own(5 * SECOND);
        assert!(!notices.count(5 * SECOND));
        notices.note(5 * SECOND + 1);
        assert!(
            !notices.count(5 * SECOND + 1),
            "it came a little later than the refusal"
        );
        notices.note(6 * SECOND);
        assert!(notices.count(6 * SECOND), "of another program");
    }
}
