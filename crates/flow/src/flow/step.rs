//! Reactions of the kernel to each event.

use super::Flow;
use crate::event::{FlowAction, FlowEvent, Reaction, ResultPlace, RunOutcome};
use crate::id::{NIL, TaskId, WorkerIndex};
use crate::nodes::TaskState;

impl<P, R, E> Flow<P, R, E> {
    /// Applies an event, and appends the resulting actions to `actions`.
    pub fn step(&mut self, event: FlowEvent<R, E>, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        let reaction = match event {
            FlowEvent::WorkerUp { worker, credits } => applied_if(self.workers.set(worker, credits)),
            FlowEvent::WorkerDown { worker } => self.worker_down(worker, actions),
            FlowEvent::Ended { task, attempt, outcome } => self.on_ended(task, attempt, outcome, actions),
            FlowEvent::Cancel { task } => self.cancel(task, actions),
            FlowEvent::Hold { task } => self.hold(task),
            FlowEvent::Release { task } => self.release(task),
            FlowEvent::Want { task } => self.want(task, actions),
            FlowEvent::Fetched { task, result } => self.on_fetched(task, result, actions),
            FlowEvent::CopyLost { task, worker } => self.on_copy_lost(task, worker, actions),
        };
        self.settle(actions);
        reaction
    }

    fn on_ended(
        &mut self,
        task: TaskId,
        attempt: u32,
        outcome: RunOutcome<R, E>,
        actions: &mut Vec<FlowAction<P, R, E>>,
    ) -> Reaction {
        let found = self.nodes.find(task);
        let Some(index) = found.filter(|index| self.nodes.at(*index).attempt == attempt) else {
            return hand_back_stale(task, outcome, actions);
        };
        let node = self.nodes.at_mut(index);
        let (ran, stopping) = match node.state {
            TaskState::Running(_) => (true, false),
            TaskState::Stopping(_) => (true, true),
            // A promise has not started, and cannot be queued again.
            TaskState::Promised if !matches!(outcome, RunOutcome::NotRun) => (false, false),
            _ => return hand_back_stale(task, outcome, actions),
        };
        let worker = node.worker;
        if ran {
            node.worker = NIL;
            self.running -= 1;
            self.workers.give_back(worker);
        }
        let node = self.nodes.at_mut(index);
        match outcome {
            RunOutcome::Done { result, bytes, place } => {
                let worker = if place == ResultPlace::Worker { worker } else { NIL };
                self.finish_done(index, result, bytes, worker, actions);
            }
            RunOutcome::Failed(error) | RunOutcome::Fatal(error) | RunOutcome::Died(error) if stopping => {
                let value = Err(error);
                actions.push(FlowAction::Dropped { task, value });
                self.finish_bad(index, TaskState::Cancelled, actions);
            }
            RunOutcome::Failed(error) if ran && node.retries_left > 0 => {
                node.retries_left -= 1;
                self.retry_run(index, error, actions);
            }
            RunOutcome::Died(error) if ran => {
                node.deaths = node.deaths.saturating_add(1);
                if node.flags.idempotent && node.deaths < self.limits.deaths_max {
                    self.retry_run(index, error, actions);
                } else {
                    self.finish_bad(index, TaskState::Failed(error), actions);
                }
            }
            RunOutcome::Failed(error) | RunOutcome::Fatal(error) | RunOutcome::Died(error) => {
                self.finish_bad(index, TaskState::Failed(error), actions);
            }
            RunOutcome::NotRun if !stopping => self.requeue(index, actions),
            RunOutcome::NotRun | RunOutcome::Stopped => self.finish_bad(index, TaskState::Cancelled, actions),
        }
        Reaction::Applied
    }

    /// Reports a failed run that is retried, and queues the task again.
    fn retry_run(&mut self, index: u32, error: E, actions: &mut Vec<FlowAction<P, R, E>>) {
        actions.push(FlowAction::Retried {
            task: self.nodes.id(index),
            attempt: self.nodes.at(index).attempt,
            error,
        });
        self.requeue(index, actions);
    }

    /// Queues a task again, unless an input was lost meanwhile.
    fn requeue(&mut self, index: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        match self.broken_input(index) {
            Some(edge) => self.fail_by(index, edge, actions),
            None => self.make_ready(index),
        }
    }

    pub(super) fn make_ready(&mut self, index: u32) {
        let node = self.nodes.at_mut(index);
        let Some(payload) = node.replace_state(TaskState::Vacant).into_payload() else {
            unreachable!("only a task with a payload becomes ready");
        };
        node.state = TaskState::Ready(payload);
        self.ready.push(index, node.priority, node.sequence);
    }

    fn cancel(&mut self, task: TaskId, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        let Some(index) = self.nodes.find(task) else {
            return Reaction::Stale;
        };
        let node = self.nodes.at_mut(index);
        if node.is_over() {
            return Reaction::TooLate;
        }
        if node.holders > 1 {
            node.holders -= 1;
            return Reaction::Shared;
        }
        match node.replace_state(TaskState::Vacant) {
            TaskState::Running(payload) => {
                node.state = TaskState::Stopping(payload);
                actions.push(FlowAction::Stop {
                    task,
                    attempt: node.attempt,
                    worker: WorkerIndex(node.worker),
                });
                // A later submission of the same computation was not cancelled, so it must become a new task.
                self.forget_key(index);
                Reaction::Stopping
            }
            TaskState::Stopping(payload) => {
                node.state = TaskState::Stopping(payload);
                Reaction::Stopping
            }
            state => {
                node.state = state;
                self.finish_bad(index, TaskState::Cancelled, actions);
                Reaction::Applied
            }
        }
    }

    fn hold(&mut self, task: TaskId) -> Reaction {
        let Some(index) = self.nodes.find(task) else {
            return Reaction::Stale;
        };
        let node = self.nodes.at_mut(index);
        match node.holders.checked_add(1) {
            Some(holders) => {
                node.holders = holders;
                Reaction::Applied
            }
            None => Reaction::Stale,
        }
    }

    fn release(&mut self, task: TaskId) -> Reaction {
        let Some(index) = self.nodes.find(task) else {
            return Reaction::Stale;
        };
        let node = self.nodes.at_mut(index);
        // The driver cannot release the memo's claim.
        let memos = u32::from(node.flags.keyed && matches!(node.state, TaskState::Done(_)));
        if node.holders <= memos {
            return Reaction::Stale;
        }
        node.holders -= 1;
        self.loose.push(index);
        Reaction::Applied
    }

    fn want(&mut self, task: TaskId, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        let Some(index) = self.nodes.find(task) else {
            return Reaction::Stale;
        };
        let node = self.nodes.at_mut(index);
        node.flags.wanted = true;
        if matches!(node.state, TaskState::Done(_)) && !node.flags.local {
            let from = WorkerIndex(node.worker);
            actions.push(FlowAction::Fetch { task, from });
        }
        Reaction::Applied
    }

    fn on_fetched(&mut self, task: TaskId, result: R, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        let found = self.nodes.find(task);
        if let Some(index) = found {
            let node = self.nodes.at_mut(index);
            if let TaskState::Done(known) = &mut node.state
                && !node.flags.local
            {
                node.flags.local = true;
                let value = Ok(std::mem::replace(known, result));
                actions.push(FlowAction::Dropped { task, value });
                return Reaction::Applied;
            }
        }
        let value = Ok(result);
        actions.push(FlowAction::Dropped { task, value });
        Reaction::Stale
    }

    fn worker_down(&mut self, worker: WorkerIndex, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        if !self.workers.stop(worker) {
            return Reaction::Stale;
        }
        for index in 0..self.nodes.places() {
            self.leave_place(index, worker.0, actions);
        }
        Reaction::Applied
    }

    fn on_copy_lost(&mut self, task: TaskId, worker: WorkerIndex, actions: &mut Vec<FlowAction<P, R, E>>) -> Reaction {
        match self.nodes.find(task) {
            Some(index) if self.stands_on(index, worker.0) => {
                self.leave_place(index, worker.0, actions);
                Reaction::Applied
            }
            _ => Reaction::Stale,
        }
    }
}

fn applied_if(is_applied: bool) -> Reaction {
    if is_applied { Reaction::Applied } else { Reaction::Stale }
}

/// Returns the value of a report that does not belong to the task's present run.
fn hand_back_stale<P, R, E>(
    task: TaskId,
    outcome: RunOutcome<R, E>,
    actions: &mut Vec<FlowAction<P, R, E>>,
) -> Reaction {
    let value = match outcome {
        RunOutcome::Done { result, .. } => Ok(result),
        RunOutcome::Failed(error) | RunOutcome::Fatal(error) | RunOutcome::Died(error) => Err(error),
        RunOutcome::NotRun | RunOutcome::Stopped => return Reaction::Stale,
    };
    actions.push(FlowAction::Dropped { task, value });
    Reaction::Stale
}
