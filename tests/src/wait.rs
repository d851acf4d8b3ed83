//! Waits for a condition, with a limit.

use std::time::{Duration, Instant};

/// Calls `ask` every millisecond until it returns a value; returns the value and the time that this took.
///
/// # Panics
/// If `ask` returns nothing within `limit`; the message contains `what` was awaited.
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

/// Compares the time of an attempt with a promise. The machine may be busy, so a late attempt is repeated up to twice;
/// a fault makes every attempt late.
///
/// # Panics
/// If all three attempts take longer; the message contains `what` is promised.
pub fn in_time(what: &str, promised: Duration, mut attempt: impl FnMut() -> Duration) -> Duration {
    let mut late = Vec::new();
    while late.len() < 3 {
        let took = attempt();
        if took <= promised {
            return took;
        }
        late.push(took);
    }
    panic!("{what}: not within {promised:?}, three times: {late:?}");
}

/// Waits for a condition; returns the time of the wait.
///
/// # Panics
/// If the condition does not hold within `limit`; the message contains `what` was awaited.
pub fn until_true(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    until(what, limit, || holds().then_some(())).1
}
