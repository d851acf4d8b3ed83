//! Late workers: an executor that got fewer than it asked for gets the rest shortly afterwards, and one that has lent its
//! cores gets others.
//!
//! A manager learns that cores were released when their agent reports next. So an executor that is made right after
//! another one was shut down finds some of them still taken; it starts with what it got, and a thread asks for the
//! rest.

use crate::client::core::lending::LendingPhase;
use crate::client::core::{Closed, ExecutorCore};
use hotlease_client::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of asking for the missing workers: agents report every half second, thousands of them every two seconds.
const WITHIN: Duration = Duration::from_millis(2500);

/// Starts a thread that asks for the workers that are missing out of those that the executor was made with.
pub fn start(core: &Arc<ExecutorCore>) {
    if core.invoker.slots() >= wanted(core) {
        return;
    }
    core.state().lease = LendingPhase::Growing;
    let asking = core.clone();
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if thread.spawn(move || ask_for_the_rest(&asking)).is_err() {
        // It goes on with the workers it has.
        core.hold();
    }
}

fn wanted(core: &ExecutorCore) -> usize {
    usize::from(core.invoker.options().workers)
}

/// Takes workers, as many as are available now, and makes them slots of the executor.
fn take_workers(core: &ExecutorCore, within: Duration) -> Result<(), Error> {
    core.invoker.complete(within)?;
    core.adopt().inspect_err(|_| {
        // Leases of which no task knows would be paid for nothing. One whose agent does not answer ends by itself.
        let slots = core.state().lanes.len();
        drop(core.invoker.suspend_from(slots));
    })
}

fn ask_for_the_rest(core: &Arc<ExecutorCore>) {
    let end = Instant::now() + WITHIN;
    while core.invoker.slots() < wanted(core) {
        let left = end.saturating_duration_since(Instant::now());
        match take_workers(core, left) {
            Ok(()) => {}
            // New workers were lost at once.
            Err(error) if may_pass(&error) && !left.is_zero() => {}
            // If there are no more workers, or the executor has ended, it goes on with those it has.
            Err(_) => break,
        }
    }
    core.hold();
}

/// Whether the next attempt may succeed: a party comes back, or other workers live longer.
fn may_pass(error: &Error) -> bool {
    error.retryable() || matches!(error, Error::OutcomeUnknown { .. })
}

/// Starts a thread that takes workers for an executor without any, as soon as there is room.
pub fn start_again(core: &Arc<ExecutorCore>) {
    let taking = core.clone();
    let take = move || {
        let core = taking;
        loop {
            match take_workers(&core, WITHIN) {
                Ok(()) => return ask_for_the_rest(&core),
                // All cores compute for others: its tasks wait.
                Err(Error::Refused(refusal)) if refusal.may_pass() && core.state().pending > 0 => {}
                Err(error) => return lose(&core, error),
            }
        }
    };
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if let Err(error) = thread.spawn(take) {
        let what = format!("there is no thread to take workers: {error}");
        lose(core, Error::Options { what });
    }
}

/// Ends the tasks of an executor that gets no workers; without tasks it may try again.
fn lose(core: &Arc<ExecutorCore>, error: Error) {
    let mut state = core.state();
    state.lease = LendingPhase::Lent;
    if state.pending > 0 {
        core.close(&mut state, Closed::Lost(error));
    }
    drop(state);
    core.tell_followers();
    core.keeper.rouse(&core.invoker);
}
