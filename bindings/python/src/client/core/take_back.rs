//! Withdrawal of tasks that wait on a slot behind a long task, while another slot is idle.
//!
//! A slot claims each request before it runs the request, and the client withdraws a request by the same claim
//! ([`hotlease_wire::frame::RequestClaim`]). So a task runs only once. Half of the waiting tasks go back to the queue,
//! the last task first, and from the queue to idle slots. Requests over a fabric cannot be withdrawn.

use super::lane::{Flight, Lane, SendPath};
use super::{CoreState, ExecutorCore};
use crate::client::tasks::job::TaskJob;
use hotlease_client::Pipeline;
use std::time::Instant;

impl ExecutorCore {
    /// Takes back tasks that wait on late slots, and sends them to idle slots.
    pub fn take_back(&self, state: &mut CoreState) {
        if !state.is_uneven() {
            return;
        }
        let now = Instant::now();
        for at in 0..state.lanes.len() {
            let lane = &mut state.lanes[at];
            if !(lane.can_be_relieved() && lane.beat.is_late(now)) {
                continue;
            }
            let places = lane.places;
            // The last task is pushed first, and so ends up behind the others.
            for job in lane.take_back() {
                state.queue.push_front(job);
            }
            if state.lanes[at].places < places {
                self.fetch_kept(state, at);
            }
            self.refill(state);
            if !state.has_idle_slot() {
                return;
            }
        }
    }
}

impl CoreState {
    /// Whether a slot has nothing to do, and the queue is empty.
    fn has_idle_slot(&self) -> bool {
        self.queue.is_empty() && self.lanes.iter().any(Lane::is_idle)
    }

    /// Whether tasks may have to be taken back soon, even if no result arrives.
    pub fn is_uneven(&self) -> bool {
        self.lanes.iter().any(Lane::can_be_relieved) && self.has_idle_slot()
    }
}

impl Lane {
    /// Whether the slot has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.is_usable()
    }

    /// Whether a task waits on the slot behind others.
    fn can_be_relieved(&self) -> bool {
        let waits = matches!(self.flights.back(), Some(Flight::Task(job, ..)) if !job.prepares());
        waits && self.flights.len() > 1 && self.shares_memory
    }

    /// Withdraws half of the tasks that wait, the last task first.
    fn take_back(&mut self) -> Vec<TaskJob> {
        self.beat.overtake();
        let share = (self.flights.len() - 1).div_ceil(2);
        std::iter::from_fn(|| self.withdraw_last()).take(share).collect()
    }

    fn withdraw_last(&mut self) -> Option<TaskJob> {
        if !self.can_be_relieved() {
            return None;
        }
        let (Some(pipeline), Some(Flight::Task(job, path, work_ns))) = (&mut self.pipeline, self.flights.pop_back())
        else {
            return None;
        };
        let has_place = matches!(path, SendPath::Placed(..));
        if let Err(path) = path.withdraw(pipeline) {
            self.flights.push_back(Flight::Task(job, path, work_ns));
            return None;
        }
        self.work_ns -= u64::from(work_ns);
        self.places -= usize::from(has_place);
        if let Some(times) = job.waiter.times() {
            times.taken_back();
        }
        Some(job)
    }
}

impl SendPath {
    /// Withdraws the request, so that no worker uses its memory. Returns the path if the request has begun.
    #[allow(clippy::result_large_err, reason = "it is the path itself, which goes on")]
    fn withdraw(self, pipeline: &mut Pipeline) -> Result<(), Self> {
        match self {
            Self::Ring if pipeline.withdraw_last() => Ok(()),
            Self::Ring => Err(Self::Ring),
            Self::Shared(invocation, extent) => match invocation.withdraw() {
                Ok(()) => {
                    extent.memory().set_returned();
                    Ok(())
                }
                Err(invocation) => Err(Self::Shared(invocation, extent)),
            },
            Self::Placed(invocation, extent, place) => match invocation.withdraw() {
                Ok(()) => {
                    extent.iter().for_each(|extent| extent.memory().set_returned());
                    place.set_returned();
                    Ok(())
                }
                Err(invocation) => Err(Self::Placed(invocation, extent, place)),
            },
        }
    }
}
