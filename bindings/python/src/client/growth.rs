//! Late workers: an executor that got fewer than it asked for gets the rest shortly afterwards, and one that has lent its
//! cores, or has lost its workers, gets others.
//!
//! A manager learns that cores were released when their agent reports next. So an executor that is made right after
//! another one was shut down finds some of them still taken; it starts with what it got, and a thread asks for the
//! rest.

use crate::client::core::lending::LendingPhase;
use crate::client::core::{Closed, ExecutorCore};
use hotlease_client::{Error, Rejection};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of asking for the missing workers: agents report every half second, thousands of them every two seconds.
const WITHIN: Duration = Duration::from_millis(2500);
/// First and longest pause after an attempt that was refused at once.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time for which a platform of this machine may be away before it is started anew: one that is restarted is back by then.
const RESTART_AFTER: Duration = Duration::from_secs(4);
/// Quota that other leases use up for good.
const CORE_TIME: &str = "core-seconds";
/// Time for which tasks wait for workers that cannot be had for another reason than lack of room.
const TROUBLE_MAX: Duration = Duration::from_secs(60);

/// Starts a thread that asks for the workers that are missing out of those that the executor was made with.
pub fn start(core: &Arc<ExecutorCore>) {
    if core.invoker.slots() >= wanted_workers(core) {
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

fn wanted_workers(core: &ExecutorCore) -> usize {
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
    while core.invoker.slots() < wanted_workers(core) {
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

/// Starts a thread that takes workers for an executor without any, as soon as there is room.
pub fn start_again(core: &Arc<ExecutorCore>) {
    let taking = core.clone();
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if let Err(error) = thread.spawn(move || take_again(&taking)) {
        let what = format!("there is no thread to take workers: {error}");
        lose(core, Error::Options { what });
    }
}

fn take_again(core: &Arc<ExecutorCore>) {
    let mut search = WorkerSearch::new();
    loop {
        let begun = Instant::now();
        let error = match take_workers(core, WITHIN) {
            Ok(()) => return ask_for_the_rest(core),
            Err(error) => error,
        };
        if !search.goes_on(core, begun, &error) {
            return lose(core, error);
        }
        if give_up_idle(core) {
            return;
        }
        search.pause(begun);
    }
}

/// Search for workers, for tasks that wait: one attempt after the other.
pub struct WorkerSearch {
    /// Pause after the next attempt that is refused at once.
    pause: Duration,
    /// Begin of the attempts that have failed for another reason than lack of room, and whether a platform was started.
    trouble: Option<(Instant, bool)>,
}

impl WorkerSearch {
    /// Search before its first attempt.
    pub const fn new() -> Self {
        Self {
            pause: PAUSE.0,
            trouble: None,
        }
    }

    /// Whether another attempt may succeed after one, begun at this time, that has failed.
    pub fn goes_on(&mut self, core: &ExecutorCore, begun: Instant, error: &Error) -> bool {
        if lacks_room(error) {
            // All cores compute for others: its tasks wait.
            self.trouble = None;
            return true;
        }
        let (since, is_started) = self.trouble.get_or_insert((begun, false));
        if !may_pass(error) || since.elapsed() >= TROUBLE_MAX {
            return false;
        }
        let is_away = matches!(error, Error::NotRunning { .. }) && since.elapsed() >= RESTART_AFTER;
        if is_away && !std::mem::replace(is_started, true) {
            start_platform(core);
        }
        true
    }

    /// Sleeps before the next attempt, if the last one, begun at this time, was refused at once.
    pub fn pause(&mut self, begun: Instant) {
        if begun.elapsed() < WITHIN {
            std::thread::sleep(self.pause);
            self.pause = PAUSE.1.min(2 * self.pause);
        }
    }
}

/// Whether other leases hold what is missing: those of others, or of this program's tenant.
fn lacks_room(error: &Error) -> bool {
    let is_held = |refusal: &Rejection| match refusal {
        // A budget of core time does not come back while others work.
        Rejection::QuotaExceeded { what, used, .. } => *used > 0 && what != CORE_TIME,
        refusal => refusal.may_pass(),
    };
    error.refusal().is_some_and(is_held)
}

/// Whether the next attempt may succeed: a party comes back, or other workers live longer.
fn may_pass(error: &Error) -> bool {
    error.retryable() || matches!(error, Error::OutcomeUnknown { .. })
}

/// Starts the platform of this machine, unless the executor uses another one. A platform that programs start ends without
/// leases, also while an executor has lent its cores.
fn start_platform(core: &ExecutorCore) {
    let options = core.invoker.options();
    if options.manager.is_some() || options.runtime_dir.is_some() {
        return;
    }
    let start = |py: Python<'_>| {
        let platform = py.import("hotlease._platform")?;
        if platform.call_method0("may_start")?.is_truthy()? {
            platform.call_method0("start")?;
        }
        PyResult::Ok(())
    };
    // `None` while the interpreter ends. A platform that does not start is not running, which the next attempt tells.
    drop(Python::try_attach(start));
}

/// Ends the search for workers if no task waits for them any more.
fn give_up_idle(core: &Arc<ExecutorCore>) -> bool {
    let mut state = core.state();
    let is_idle = state.pending == 0;
    if is_idle {
        state.lease = LendingPhase::Lent;
        drop(state);
        core.keeper.wake(&core.invoker);
    }
    is_idle
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
    core.keeper.wake(&core.invoker);
}
