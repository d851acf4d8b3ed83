//! Late workers. An executor that got fewer workers than it asked for gets the rest when cores are free. An executor
//! that has lent its cores, or has lost its workers, gets other workers.
//!
//! A manager learns of released cores only from the next report of their agent. So an executor that is made right after
//! another executor was shut down may find some cores still taken. It starts with the workers that it got, and a thread
//! asks for the rest. Cores that batch jobs use may become free minutes later. So an executor with more tasks than
//! workers continues to ask, one request at a time, with growing pauses.

mod search;

use crate::client::core::lending::LendingPhase;
use crate::client::core::{Closed, CoreState, ExecutorCore};
use hotlease_client::Error;
use search::{lacks_room, may_pass};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use search::{PlatformStop, WaitNotice, WorkerSearch};

/// Time limit of the first requests for missing workers: agents report every half second, or every two seconds if there
/// are thousands of agents.
const WITHIN: Duration = Duration::from_millis(2500);
/// First and longest pause between later requests for missing workers, while more tasks than workers are pending.
const LATER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Time after which the program is told that workers are missing.
const TELL_AFTER: Duration = Duration::from_secs(10);

/// Later requests for workers that were missing at first.
#[derive(Default)]
pub struct LaterGrowth {
    /// Time of the next request, the pause after it, and the time of the first request; `None`: requests do not help,
    /// or no request was refused yet.
    next: Option<(Instant, Duration, Instant)>,
}

/// Starts a thread that asks for missing workers, if the executor got fewer workers than it asked for.
pub fn start(core: &Arc<ExecutorCore>) {
    if core.invoker.slots() >= wanted_workers(core) {
        return;
    }
    core.state().lease = LendingPhase::Growing;
    let asking = core.clone();
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if thread.spawn(move || ask_for_the_rest(&asking)).is_err() {
        // The executor continues with the workers that it has.
        core.hold();
    }
}

fn wanted_workers(core: &ExecutorCore) -> usize {
    usize::from(core.invoker.options().workers)
}

/// Takes the missing workers that become available in the time `within`, and makes them slots of the executor.
fn take_workers(core: &ExecutorCore, within: Duration) -> Result<(), Error> {
    core.invoker.complete(within)?;
    core.adopt().inspect_err(|_| {
        // Leases that no task uses would be paid for nothing, so they are released. A lease whose agent does not answer
        // ends by itself.
        let slots = core.state().lanes.len();
        drop(core.invoker.suspend_from(slots));
    })
}

fn ask_for_the_rest(core: &Arc<ExecutorCore>) {
    let begun = Instant::now();
    let end = begun + WITHIN;
    let mut refused = None;
    while core.invoker.slots() < wanted_workers(core) {
        let left = end.saturating_duration_since(Instant::now());
        match take_workers(core, left) {
            Ok(()) => {}
            // The new workers were lost at once; the next request asks again.
            Err(error) if may_pass(&error) && !left.is_zero() => {}
            // If there are no more workers, or the executor has ended, the executor continues with the workers that it
            // has.
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    if refused.is_some_and(|error| lacks_room(&error)) {
        core.state().growth.begin(begun);
    }
    core.hold();
}

impl LaterGrowth {
    /// Begins to ask, after a first pause. `since`: time of the first request.
    fn begin(&mut self, since: Instant) {
        self.next = Some((Instant::now() + LATER.0, LATER.0, since));
    }

    /// Notes the end of a request. Returns the refusal if workers have been missing for so long that the program has to
    /// be told.
    fn note(&mut self, taken: Result<(), Error>, is_complete: bool) -> Option<Error> {
        let now = Instant::now();
        let (_, pause, since) = self.next?;
        let missing_for = now - since;
        let pause = LATER.1.min(2 * pause);
        // A pause does not extend beyond the time at which the program has to be told.
        let next = match TELL_AFTER.saturating_sub(missing_for) {
            Duration::ZERO => now + pause,
            left => now + pause.min(left),
        };
        match taken {
            Ok(()) if !is_complete => self.begin(now),
            Err(error) if lacks_room(&error) || may_pass(&error) => {
                self.next = Some((next, pause, since));
                return (missing_for >= TELL_AFTER).then_some(error);
            }
            Ok(()) | Err(_) => self.next = None,
        }
        None
    }

    /// Whether another request is due.
    fn is_due(&self) -> bool {
        self.next.is_some_and(|(next, ..)| Instant::now() >= next)
    }
}

/// Starts a thread that asks once more for missing workers, if the next request is due and more tasks than workers are
/// pending. The caller holds the state's lock.
pub fn ask_later(core: &Arc<ExecutorCore>, state: &mut CoreState) {
    let live = state.lanes.iter().filter(|lane| lane.is_usable()).count();
    let is_wanted = state.lease == LendingPhase::Held && state.growth.is_due();
    // Lost workers are replaced by the threads of their slots.
    if !is_wanted || live < state.lanes.len() || state.pending <= live {
        return;
    }
    state.lease = LendingPhase::Growing;
    let asking = core.clone();
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if thread.spawn(move || ask_once(&asking)).is_err() {
        state.lease = LendingPhase::Held;
        state.growth.begin(Instant::now());
    }
}

fn ask_once(core: &Arc<ExecutorCore>) {
    let taken = take_workers(core, Duration::ZERO);
    let is_complete = core.invoker.slots() >= wanted_workers(core);
    // This is a separate statement, so that the lock is released before the program is told.
    let refused = core.state().growth.note(taken, is_complete);
    if let Some(error) = refused {
        tell_missing(core, &error);
    }
    core.hold();
}

/// Tells the program once that it has fewer workers than it asked for.
fn tell_missing(core: &ExecutorCore, error: &Error) {
    let (workers, tasks) = {
        let state = core.state();
        (state.lanes.len(), state.pending)
    };
    let wanted = wanted_workers(core);
    core.wait_notice.tell(|| {
        format!("{workers} of {wanted} workers are there, for {tasks} tasks; the others are asked for while tasks wait: {error}")
    });
}

/// Starts a thread that takes workers for an executor without workers, as soon as there is room.
pub fn start_again(core: &Arc<ExecutorCore>) {
    let taking = core.clone();
    let thread = std::thread::Builder::new().name("hotlease-growth".into());
    if let Err(error) = thread.spawn(move || take_again(&taking)) {
        let what = format!("there is no thread to take workers: {error}");
        lose(core, Error::Options { what });
    }
}

fn take_again(core: &Arc<ExecutorCore>) {
    let mut search = WorkerSearch::new(core);
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
        search.pause(core, begun);
    }
}

/// Ends the search for workers if no task waits for them any more. Returns whether the search has ended.
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

/// Fails the tasks of an executor that gets no workers. An executor without tasks stays open, and may try again.
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
