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

/// Holds what an attempt took against a promise. The machine may be busy with something else, so a late one has two more chances: a
/// fault is late each time.
///
/// # Panics
/// If all three took longer; the message says `what` is promised.
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

/// Waits for a condition; how long that took.
///
/// # Panics
/// If it does not hold within `limit`; the message says `what` was awaited.
pub fn until_true(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    until(what, limit, || holds().then_some(())).1
}
