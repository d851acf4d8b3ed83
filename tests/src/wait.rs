//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Asks every millisecond until there is an answer; how long that took with it.
///
/// # Panics
/// If there is none within `limit`; the message says `what` was awaited.
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return (answer, start.elapsed());
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a condition; how long that took.
///
/// # Panics
/// If it does not hold within `limit`; the message says `what` was awaited.
pub fn until_true(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    until(what, limit, || holds().then_some(())).1
}
