//! Transitions of tasks in the core: accepted, sent, ended, cancelled. All transitions take place under the core's
//! `state` lock.
//!
//! ```text
//!   plan: PlannedTask, in the graph
//!            │ start, when its inputs are there
//!            ▼            send                             resolve, fail
//!   accept: TaskJob, in the queue ───────► Flight, on a slot ───────► outcome, in the TaskCell
//!               ▲                             │ (or its result is kept there until there is memory for it)
//!               └── its worker died ──────────┘
//! ```
//!
//! The future of a task sees these transitions as stages of the `TaskCell`; [`crate::client::tasks::state`] has the
//! transitions of stages. A task is in one place of the diagram at a time. Only the graph keeps its `PlannedTask` until
//! the task has ended.

use super::{Closed, CoreState, ExecutorCore, TurnClock};
use crate::client::tasks::job::{GraphRun, TaskJob, Waiter};
use crate::client::tasks::outcome::{Failed, TaskOutcome};
use crate::client::tasks::state::{CancelNotices, Cancellation, TaskCell};
use crate::client::tasks::target::Target;
use crate::locks::locked;
use hotlease_client::Error;
use hotlease_fabric::clock::monotonic_ns;
use hotlease_flow::TaskId;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

impl ExecutorCore {
    /// Accepts a task: sends it if a slot has room, else queues it. Fails if the core is closed.
    pub fn accept(&self, py: Python<'_>, job: TaskJob) -> Result<(), Closed> {
        self.with_state(py, |state| self.accept_into(state, job))
    }

    fn accept_into(&self, mut state: MutexGuard<'_, CoreState>, job: TaskJob) -> Result<(), Closed> {
        if let Some(closed) = &state.closed {
            return Err(closed.clone());
        }
        state.pending += 1;
        // Large arguments that need a copy are copied by the next thread that collects results, without the GIL.
        let is_large = job.size() > self.invoker.options().request_bytes as usize;
        let waits = !state.queue.is_empty() || is_large && job.is_copied();
        let clock = TurnClock::default();
        let left = if waits {
            Some(job)
        } else {
            self.send(&mut state, job, &clock)
        };
        let queued = left.is_some();
        if let Some(job) = left {
            state.queue.push_back(job);
        }
        // If a slot has room for the queued task, the keeper has to send it: perhaps no result is pending that would
        // cause that.
        let could_go = queued && state.lane_with_room(None, &clock).is_some();
        drop(state);
        self.keeper.tell(queued);
        if could_go {
            self.version.fetch_add(1, Ordering::Release);
            self.keeper.wake(&self.invoker);
        }
        Ok(())
    }

    /// Whether another task may be put into the queue now.
    pub fn has_room(&self, py: Python<'_>) -> bool {
        self.with_state(py, |state| self.has_room_in(&state))
    }

    fn has_room_in(&self, state: &CoreState) -> bool {
        let bytes = state.queue.bytes() + state.graph.bytes;
        let idle = state.queue.is_empty() && state.graph.bytes == 0;
        (bytes < self.queue_bytes_max || idle) && state.pending < self.pending_max || state.closed.is_some()
    }

    /// Sends the task to the slot with the fewest tasks; returns it if no slot has room.
    fn send(&self, state: &mut CoreState, job: TaskJob, clock: &TurnClock) -> Option<TaskJob> {
        let Some(at) = state.lane_with_room(job.waiter.nearest(), clock) else {
            return Some(job);
        };
        if state.graph.is_overtaken(job.waiter.run()) || !job.waiter.start() {
            // The task waits for an equal task, or was cancelled.
            state.drop_cancelled(&job);
            return None;
        }
        let lane = &mut state.lanes[at];
        let was_idle = lane.flights.is_empty();
        let timed = job.waiter.times().map(|times| (times.clone(), monotonic_ns()));
        match lane.send(job, &self.invoker, &self.pool) {
            Ok(()) => {
                if was_idle {
                    self.version.fetch_add(1, Ordering::Release);
                }
                if let Some((times, now)) = timed {
                    times.record_sent(at, now);
                }
            }
            Err((job, None)) => return Some(job),
            // The task is sent later, because tasks under way will free descriptors.
            Err((job, Some(error)))
                if error.lacks_descriptors() && state.lanes.iter().any(|lane| !lane.flights.is_empty()) =>
            {
                return Some(job);
            }
            Err((job, Some(error))) => self.fail(state, job, *error),
        }
        None
    }

    /// Sends queued tasks while there is room.
    pub fn refill(&self, state: &mut CoreState) {
        let clock = TurnClock::default();
        while let Some(job) = state.queue.pop_front() {
            if let Some(job) = self.send(state, job, &clock) {
                state.queue.push_front(job);
                return;
            }
        }
    }

    /// Fails a task with an error of the client library.
    pub fn fail(&self, state: &mut CoreState, job: TaskJob, error: Error) {
        if job.prepares() {
            state.pending -= 1;
            return self.close(state, Closed::Lost(error));
        }
        let outcome = job.failed(error);
        self.resolve(state, job, outcome);
    }

    /// Sets the outcome of a task.
    #[inline]
    pub fn resolve(&self, state: &mut CoreState, job: TaskJob, outcome: TaskOutcome) {
        let TaskJob {
            waiter,
            target,
            payload,
            ..
        } = job;
        // The payload is dropped first: the receiver of the result may send the same memory again.
        drop(payload);
        match waiter {
            Waiter::Future(cell) => {
                state.pending -= 1;
                let notices = cell.resolve(outcome);
                match notices.is_watched {
                    true => self.finish_later(cell),
                    // If the future is dropped, this releases the result.
                    false => drop(cell),
                }
                if let Some((node, outcome)) = notices.graph {
                    self.end_promise(state, node, Some(target), Some(outcome));
                }
            }
            Waiter::Graph(GraphRun { cell, run, .. }) => {
                // Dropped first: if the cell outlived its future, the cell would have a reference to the result, which
                // is passed on in place only if there is no other reference.
                drop(cell);
                self.end_run(state, run, outcome);
            }
            Waiter::Worker => state.pending -= 1,
        }
    }

    /// Queues a watched task, which the core's own thread finishes.
    pub fn finish_later(&self, cell: Arc<TaskCell>) {
        let mut to_finish = locked(&self.to_finish);
        to_finish.push(cell);
        self.has_to_finish.store(true, Ordering::Release);
    }

    /// Stops accepting tasks; unless the reason is a shutdown, queued tasks fail.
    pub fn close(&self, state: &mut CoreState, why: Closed) {
        if matches!(state.closed, None | Some(Closed::ShutDown)) {
            state.closed = Some(why.clone());
        }
        let Some(outcome) = why.outcome() else { return };
        self.end_planned(state, outcome);
        for job in state.queue.take_all() {
            if !job.waiter.start() {
                state.drop_cancelled(&job);
                continue;
            }
            match &why {
                _ if job.prepares() => state.pending -= 1,
                Closed::Lost(error) => self.fail(state, job, error.clone()),
                Closed::Unprepared(why) => {
                    self.resolve(state, job, TaskOutcome::Unprepared(why.as_str().into()));
                }
                Closed::ShutDown => {}
            }
        }
    }

    /// Cancels all tasks that were not sent.
    pub fn cancel_queued(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut cancelled = Vec::new();
        // All tasks are cancelled before any is finished, so that no task fails because of another cancelled task.
        for (task, cell, target) in self.planned(state) {
            if let Cancellation::Done(CancelNotices { is_watched, .. }) = cell.cancel() {
                cancelled.push((cell, is_watched, Some(task), target));
            }
        }
        for job in state.queue.take_all() {
            match (job.waiter.cell().map(|cell| cell.cancel()), &job.waiter) {
                (None | Some(Cancellation::TooLate), _) => state.queue.push_back(job),
                (Some(Cancellation::Done(notices)), Waiter::Future(cell)) => {
                    state.pending -= 1;
                    cancelled.push((cell.clone(), notices.is_watched, notices.graph, job.target.clone()));
                }
                (Some(Cancellation::Earlier), Waiter::Future(_)) => state.pending -= 1,
                // The loop above has cancelled the graph's tasks, and the loop below tells the graph.
                (Some(_), Waiter::Graph(_) | Waiter::Worker) => {}
            }
        }
        for (cell, is_watched, node, target) in cancelled {
            if let Some(node) = node {
                self.cancel_linked(state, node, Some(target));
            }
            if is_watched {
                self.finish_later(cell);
            }
        }
        drop(guard);
        self.keeper.wake(&self.invoker);
    }

    /// Tells the kernel that one of its tasks was cancelled.
    pub fn cancel_linked(&self, state: &mut CoreState, task: TaskId, target: Option<Arc<Target>>) {
        if state.graph.flow.phase(task).is_some() {
            self.cancel_in_graph(state, task, (target, None));
        }
    }
}

impl CoreState {
    /// Drops a job of the queue that must not be sent. The thread that cancelled a task has told all parties.
    fn drop_cancelled(&mut self, job: &TaskJob) {
        if let Waiter::Future(_) = job.waiter {
            self.pending -= 1;
        }
    }
}

impl Closed {
    /// Outcome of tasks that do not run for this reason; `None` if accepted tasks still run.
    fn outcome(&self) -> Option<TaskOutcome> {
        match self {
            Self::Lost(error) => Some(TaskOutcome::Failed(Box::new(Failed {
                error: error.clone(),
                deaths: 0,
            }))),
            Self::Unprepared(why) => Some(TaskOutcome::Unprepared(why.as_str().into())),
            Self::ShutDown => None,
        }
    }
}
