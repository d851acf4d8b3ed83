//! Lending of the cores of an idle executor: it gives up its leases when another program finds no room, and takes others
//! when it is given tasks.

use super::{CoreState, ExecutorCore};
use crate::client::growth;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time without a task after which an executor gives up its leases. Programs that compute in turns keep theirs.
const IDLE: Duration = Duration::from_secs(1);

/// Phase of an executor's leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LendingPhase {
    /// It has slots.
    Held,
    /// It has slots, and a thread asks for more.
    Growing,
    /// It has given up its leases, and has no task for others.
    Lent,
    /// It has no slots, and a thread takes leases for its tasks.
    Returning,
}

/// Time for which an executor has had no task.
pub struct IdleSpan {
    since: Instant,
    /// Number of tasks that it had been given by then.
    submitted: u64,
}

impl IdleSpan {
    /// Begins now.
    pub fn begin(core: &ExecutorCore) -> Self {
        Self {
            since: Instant::now(),
            submitted: core.submitted.load(Ordering::Relaxed),
        }
    }

    /// Begins anew if the executor was given tasks since: short ones may have ended unseen.
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
    /// Lets other programs have the cores while the executor is idle.
    pub fn lend_when_idle(self: &Arc<Self>) {
        let core: Weak<Self> = Arc::downgrade(self);
        self.invoker.on_room_wanted(move || {
            if let Some(core) = core.upgrade() {
                core.room_wanted.store(true, Ordering::Release);
                core.keeper.attend();
            }
        });
    }

    /// Gives up the leases if they are wanted, after the executor was idle for a while. Returns the time to look again.
    pub fn lend(&self, idle: &IdleSpan) -> Option<Duration> {
        if !self.room_wanted.load(Ordering::Acquire) {
            return None;
        }
        let left = IDLE.saturating_sub(idle.since.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        self.room_wanted.store(false, Ordering::Release);
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

    /// Takes leases again for the tasks that wait.
    pub fn take_lent(self: &Arc<Self>) {
        let mut state = self.state();
        if state.lease == LendingPhase::Lent && state.pending > 0 {
            state.lease = LendingPhase::Returning;
            drop(state);
            growth::start_again(self);
        }
    }
}

impl CoreState {
    /// Whether nothing is under way, and nothing of the program is on workers alone: over a fabric, results may be.
    fn can_lend(&self) -> bool {
        let is_idle = self.pending == 0 && self.closed.is_none() && self.lease == LendingPhase::Held;
        is_idle && self.lanes.iter().all(|lane| lane.is_idle() && lane.shares_memory)
    }
}
