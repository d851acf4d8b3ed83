//! Lending of an idle executor's cores: the executor gives up its leases when another program finds no room, and takes
//! new leases when it is given tasks.

use super::{CoreState, ExecutorCore};
use crate::client::growth;
use hotlease_fabric::clock::monotonic_ns;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time without a task after which an executor gives up its leases. A program with shorter pauses between tasks keeps
/// its leases.
const IDLE: Duration = Duration::from_secs(1);

/// Phase of an executor's leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LendingPhase {
    /// The executor has slots.
    Held,
    /// The executor has slots, and a thread asks for more slots.
    Growing,
    /// The executor has given up its leases, and no task needs new leases.
    Lent,
    /// The executor has no slots, and a thread takes leases for its tasks.
    Returning,
}

/// Time for which an executor has had no task.
pub struct IdleSpan {
    since: Instant,
    /// Number of tasks that the executor had been given at that time.
    submitted: u64,
}

impl IdleSpan {
    /// Begins a span now.
    pub fn begin(core: &ExecutorCore) -> Self {
        Self {
            since: Instant::now(),
            submitted: core.submitted.load(Ordering::Relaxed),
        }
    }

    /// Begins the span anew if the executor was given tasks since the beginning: short tasks may have ended unnoticed.
    pub fn follow(&mut self, core: &ExecutorCore) {
        if self.is_interrupted(core) {
            *self = Self::begin(core);
        }
    }

    fn is_interrupted(&self, core: &ExecutorCore) -> bool {
        core.submitted.load(Ordering::Relaxed) != self.submitted
    }
}

impl ExecutorCore {
    /// Makes the executor give its cores to other programs while it is idle.
    pub fn lend_when_idle(self: &Arc<Self>) {
        let core: Weak<Self> = Arc::downgrade(self);
        self.invoker.on_room_wanted(move || {
            if let Some(core) = core.upgrade() {
                core.room_notices.note(monotonic_ns());
                core.keeper.attend();
            }
        });
    }

    /// Whether another program waits for room.
    pub fn is_room_wanted(&self) -> bool {
        self.room_notices.count(monotonic_ns())
    }

    /// Gives up the leases if another program waits for room and the executor was idle for a while. If the executor has
    /// to be idle for longer, returns the time that is left.
    pub fn lend(&self, idle: &IdleSpan) -> Option<Duration> {
        if !self.is_room_wanted() {
            return None;
        }
        let left = IDLE.saturating_sub(idle.since.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        self.room_notices.forget();
        let lanes = {
            let mut state = self.state();
            if !state.can_lend() || idle.is_interrupted(self) {
                return None;
            }
            state.lease = LendingPhase::Lent;
            std::mem::take(&mut state.lanes)
        };
        drop(lanes);
        // A lease whose agent does not answer ends by itself.
        drop(self.invoker.suspend());
        None
    }

    /// Returns whether tasks are pending. If so, takes leases again if the executor has lent its cores, and asks for
    /// missing workers. Ends all searches for workers once no task will need workers.
    pub fn begin_turn(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        let is_busy = state.pending > 0;
        if is_busy && state.lease == LendingPhase::Lent {
            state.lease = LendingPhase::Returning;
            drop(state);
            growth::start_again(self);
        } else if is_busy {
            growth::ask_later(self, &mut state);
        } else if state.is_unwanted() {
            drop(state);
            // A lease that a search took now would keep its cores from other programs until the keeper releases the
            // lease.
            self.invoker.stop_searching();
            self.tell_followers();
        }
        is_busy
    }

    /// Whether no task is pending, and no more tasks are accepted.
    pub fn is_unwanted(&self) -> bool {
        self.state().is_unwanted()
    }

    /// Marks that the executor continues with the workers that it has.
    pub fn hold(&self) {
        self.room_notices.end_own(monotonic_ns());
        self.state().lease = LendingPhase::Held;
    }
}

impl CoreState {
    /// Whether no task is pending, and no more tasks are accepted.
    pub fn is_unwanted(&self) -> bool {
        self.pending == 0 && self.closed.is_some()
    }

    /// Whether the executor has no tasks, and no result exists only on a worker. Over a fabric a worker may have the
    /// only copy of a result, so an executor with such slots lends nothing.
    fn can_lend(&self) -> bool {
        let is_idle = self.pending == 0 && self.closed.is_none() && self.lease == LendingPhase::Held;
        is_idle && self.lanes.iter().all(|lane| lane.is_idle() && lane.shares_memory)
    }
}
