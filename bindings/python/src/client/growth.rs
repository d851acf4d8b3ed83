//! Workers that are free a little later: for an executor that got fewer than it asked for.
//!
//! A manager knows of cores that were given back when their agent reports next. So an executor that is made right after another
//! one was shut down finds some of them still taken; it begins with what it got, and a thread asks for the rest.

use super::core::Core;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the rest is asked for: agents report every half second, thousands of them every two.
const WITHIN: Duration = Duration::from_millis(2500);

/// Asks for those of so many workers that are missing.
pub fn start(core: &Arc<Core>, workers: usize) {
    if core.invoker.slots() >= workers {
        return;
    }
    let core = core.clone();
    let ask = move || {
        let end = Instant::now() + WITHIN;
        let more = |left| core.invoker.complete(left).and_then(|()| core.adopt());
        // It goes on with what it has where there are no more, or it is over.
        while core.invoker.slots() < workers && more(end.saturating_duration_since(Instant::now())).is_ok() {}
    };
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    // As above where there is no thread.
    drop(thread.spawn(ask));
}
