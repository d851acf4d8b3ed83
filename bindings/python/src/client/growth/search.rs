//! Search for workers while tasks wait: how long the search continues, what the program is told, and which tasks fail
//! because they have waited too long.

use crate::client::core::{CoreState, ExecutorCore};
use crate::locks::locked;
use hotlease_client::{EndReason, Error, Rejection, RunCertainty};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// First and longest pause after an attempt that was refused at once.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// No pause follows an attempt that took this long, because the attempt itself has waited.
const LONG: Duration = Duration::from_secs(2);
/// Time for which a platform of this host may be away before it is started anew: a platform that is being restarted is
/// available again earlier.
const RESTART_AFTER: Duration = Duration::from_secs(4);
/// Name of a quota that leases use up for good: the end of a lease returns nothing to the quota.
const CORE_TIME: &str = "core-seconds";
/// Longest time that tasks wait for a platform that does not answer, or for workers that do not start.
const TROUBLE_MAX: Duration = Duration::from_secs(60);
/// Time after which the program is told that its tasks wait.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// Whether the program was told that its tasks wait for workers. The program is told once, and again only after workers
/// have become available.
#[derive(Default)]
pub struct WaitNotice(AtomicBool);

/// Whether the platform was stopped while tasks ran, as by `hotlease down`: this program then does not start it again.
#[derive(Default)]
pub struct PlatformStop(AtomicBool);

impl WaitNotice {
    /// Marks that workers have become available.
    pub fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Writes a line to standard error, unless that was done.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = text();
        // `None` while the interpreter ends: no one reads the line then.
        let told = Python::try_attach(|py| py.import("hotlease._platform")?.call_method1("tell", (text,)).map(drop));
        drop(told);
    }
}

/// Search for workers while tasks wait, one attempt after the other.
pub struct WorkerSearch {
    since: Instant,
    /// Pause after the next attempt that is refused at once.
    pause: Duration,
    /// Start of the consecutive attempts that failed for a reason other than lack of room, and whether a platform was
    /// started since.
    trouble: Option<(Instant, bool)>,
}

impl WorkerSearch {
    /// Makes a search before its first attempt, and fails tasks that have waited for longer than the executor's
    /// timeout.
    pub fn new(core: &ExecutorCore) -> Self {
        core.give_up_late_tasks();
        Self {
            since: Instant::now(),
            pause: PAUSE.0,
            trouble: None,
        }
    }

    /// Returns whether another attempt may succeed after an attempt that began at `begun` and failed with `error`.
    /// Tells the program if the search takes long, and fails tasks that have waited for longer than the executor's
    /// timeout.
    pub fn goes_on(&mut self, core: &ExecutorCore, begun: Instant, error: &Error) -> bool {
        let goes_on = self.may_succeed(core, begun, error);
        if goes_on {
            core.give_up_late_tasks();
            if self.since.elapsed() >= TELL_AFTER {
                core.tell_waiting(
                    error,
                    self.trouble
                        .map(|(since, _)| TROUBLE_MAX.saturating_sub(since.elapsed())),
                );
            }
        }
        goes_on
    }

    fn may_succeed(&mut self, core: &ExecutorCore, begun: Instant, error: &Error) -> bool {
        if lacks_room(error) {
            // All cores compute for other clients or for batch jobs, so the executor's tasks wait.
            self.trouble = None;
            return true;
        }
        let (since, is_started) = self.trouble.get_or_insert((begun, false));
        if !may_pass(error) || since.elapsed() >= TROUBLE_MAX {
            return false;
        }
        let is_away = matches!(error, Error::NotRunning { .. }) && since.elapsed() >= RESTART_AFTER;
        let was_stopped = core.platform_stop.0.load(Ordering::Relaxed);
        if is_away && !was_stopped && !std::mem::replace(is_started, true) {
            start_platform(core);
        }
        true
    }

    /// Sleeps before the next attempt, if the last attempt, which began at `begun`, was refused at once.
    pub fn pause(&mut self, core: &ExecutorCore, begun: Instant) {
        if begun.elapsed() < LONG {
            core.sleep_while_wanted(self.pause);
            self.pause = PAUSE.1.min(2 * self.pause);
        }
    }
}

/// Whether only resources are missing; tasks wait for resources without a time limit. The resources are used by leases
/// of any tenant or by batch jobs, or there are no nodes now.
pub(super) fn lacks_room(error: &Error) -> bool {
    let is_held = |refusal: &Rejection| match refusal {
        // The end of other leases does not return core time to a budget.
        Rejection::QuotaExceeded { what, used, .. } => *used > 0 && what != CORE_TIME,
        // The end of a worker does not show that resources are missing.
        Rejection::WorkerDied { .. } | Rejection::Timeout { .. } => false,
        refusal => refusal.may_pass(),
    };
    error.refusal().is_some_and(is_held)
}

/// Whether the next attempt may succeed: a daemon may come back, and new workers may live longer.
pub(super) fn may_pass(error: &Error) -> bool {
    error.retryable() || matches!(error, Error::OutcomeUnknown { .. })
}

/// Starts the platform of this host, unless the executor uses another platform. A platform that a program has started
/// ends when there are no leases, even if an executor has only lent its cores and will need them again.
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
    // `None` while the interpreter ends. If the platform does not start, the next attempt fails because no platform is
    // running.
    drop(Python::try_attach(start));
}

impl ExecutorCore {
    /// Tells the program once that its tasks wait for workers, why there are none, and after which time the tasks fail,
    /// if there is a limit.
    fn tell_waiting(&self, error: &Error, limit: Option<Duration>) {
        let waiting = self.state().pending;
        if waiting > 0 {
            let limit = limit.map(|limit| format!(" (and fail if there is none within {} s)", limit.as_secs()));
            let limit = limit.unwrap_or_default();
            self.wait_notice.tell(|| match waiting {
                1 => format!("a task waits for a worker, to run when there is one{limit}: {error}"),
                tasks => format!("{tasks} tasks wait for workers, to run when there is one{limit}: {error}"),
            });
        }
    }

    /// Fails the tasks that have waited for a worker for longer than the executor's timeout. The beginning of each
    /// task's wait is not recorded. Instead, all waiting tasks are marked, and marked tasks that still wait after the
    /// timeout fail.
    fn give_up_late_tasks(&self) {
        let Some(timeout) = self.invoker.options().timeout else {
            return;
        };
        let mut guard = self.state();
        let state = &mut *guard;
        if state.lanes.iter().any(|lane| lane.is_usable()) {
            // Some tasks run, and the other tasks wait for them.
            return;
        }
        let is_over = match state.waiting_since {
            None => false,
            Some(since) if since.elapsed() < timeout => return,
            Some(_) => true,
        };
        state.waiting_since = Some(Instant::now());
        for mut job in state.queue.take_all() {
            if std::mem::replace(&mut job.is_late, true) && is_over {
                let ran = RunCertainty::No;
                self.fail(state, job, Error::Deadline { timeout, ran });
            } else {
                state.queue.push_back(job);
            }
        }
        drop(guard);
        self.tell_followers();
        self.keeper.wake(&self.invoker);
    }

    /// Marks that there are workers again.
    pub fn end_waiting(&self, state: &mut CoreState) {
        state.waiting_since = None;
        self.wait_notice.end();
        self.platform_stop.0.store(false, Ordering::Relaxed);
    }

    /// Notes the error that ended a run, and returns it.
    pub fn note_end(&self, error: Error) -> Error {
        let was_stopped = matches!(
            error,
            Error::LeaseEnded {
                reason: EndReason::AgentStopping,
                ..
            }
        );
        if was_stopped {
            self.platform_stop.0.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Sleeps for this time, or until the executor has ended without a task left.
    fn sleep_while_wanted(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut guard = locked(&self.progress.0);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_unwanted() {
                return;
            }
            guard = match self.progress.1.wait_timeout(guard, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}
