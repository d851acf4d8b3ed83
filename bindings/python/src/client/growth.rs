//! Late workers: an executor that got fewer than it asked for gets the rest shortly afterwards.
//!
//! A manager learns that cores were released when their agent reports next. So an executor that is made right after
//! another one was shut down finds some of them still taken; it starts with what it got, and a thread asks for the
//! rest.

use crate::client::core::ExecutorCore;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of asking for the missing workers: agents report every half second, thousands of them every two seconds.
const WITHIN: Duration = Duration::from_millis(2500);

/// Starts a thread that asks for the workers that are missing out of `workers`.
pub fn start(core: &Arc<ExecutorCore>, workers: usize) {
    if core.invoker.slots() >= workers {
        return;
    }
    let core = core.clone();
    let ask = move || {
        let end = Instant::now() + WITHIN;
        let more = |left| core.invoker.complete(left).and_then(|()| core.adopt());
        // If there are no more workers, or the executor has ended, it goes on with those it has.
        while core.invoker.slots() < workers && more(end.saturating_duration_since(Instant::now())).is_ok() {}
    };
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    // Without a thread it goes on with the workers it has.
    drop(thread.spawn(ask));
}
