//! Reactions of the kernel to each event.

use super::Flow;
use crate::event::{Action, Event, Heard, Outcome, Place};
use crate::id::{NIL, TaskId, WorkerIndex};
use crate::nodes::State;

impl<P, R, E> Flow<P, R, E> {
    /// Applies an event, and appends the resulting actions to `actions`.
    pub fn step(&mut self, event: Event<R, E>, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        let heard = match event {
            Event::WorkerUp { worker, credits } => taken(self.workers.set(worker, credits)),
            Event::WorkerDown { worker } => self.worker_down(worker, actions),
            Event::Ended {
                task,
                attempt,
                outcome,
            } => self.ended(task, attempt, outcome, actions),
            Event::Cancel { task } => self.cancel(task, actions),
            Event::Hold { task } => self.hold(task),
            Event::Release { task } => self.release(task),
            Event::Want { task } => self.want(task, actions),
            Event::Fetched { task, result } => self.fetched(task, result, actions),
            Event::CopyLost { task, worker } => self.copy_lost(task, worker, actions),
        };
        self.settle(actions);
        heard
    }

    fn ended(
        &mut self,
        task: TaskId,
        attempt: u32,
        outcome: Outcome<R, E>,
        actions: &mut Vec<Action<P, R, E>>,
    ) -> Heard {
        let found = self.nodes.find(task);
        let Some(index) = found.filter(|index| self.nodes.at(*index).attempt == attempt) else {
            return stale(task, outcome, actions);
        };
        let node = self.nodes.at_mut(index);
        let (ran, stopping) = match node.state {
            State::Running(_) => (true, false),
            State::Stopping(_) => (true, true),
            // A promise has not started, and cannot be queued again.
            State::Promised if !matches!(outcome, Outcome::NotRun) => (false, false),
            _ => return stale(task, outcome, actions),
        };
        let worker = node.worker;
        if ran {
            node.worker = NIL;
            self.running -= 1;
            self.workers.give_back(worker);
        }
        let node = self.nodes.at_mut(index);
        match outcome {
            Outcome::Done { result, bytes, place } => {
                let worker = if place == Place::Worker { worker } else { NIL };
                self.done(index, result, bytes, worker, actions);
            }
            Outcome::Failed(error) | Outcome::Fatal(error) | Outcome::Died(error) if stopping => {
                let value = Err(error);
                actions.push(Action::Dropped { task, value });
                self.bad(index, State::Cancelled, actions);
            }
            Outcome::Failed(error) if ran && node.retries_left > 0 => {
                node.retries_left -= 1;
                self.again(index, error, actions);
            }
            Outcome::Died(error) if ran => {
                node.deaths = node.deaths.saturating_add(1);
                if node.flags.idempotent && node.deaths < self.limits.deaths_max {
                    self.again(index, error, actions);
                } else {
                    self.bad(index, State::Failed(error), actions);
                }
            }
            Outcome::Failed(error) | Outcome::Fatal(error) | Outcome::Died(error) => {
                self.bad(index, State::Failed(error), actions);
            }
            Outcome::NotRun if !stopping => self.requeue(index, actions),
            Outcome::NotRun | Outcome::Stopped => self.bad(index, State::Cancelled, actions),
        }
        Heard::Taken
    }

    /// Reports a failed run that another one follows, and queues the task again.
    fn again(&mut self, index: u32, error: E, actions: &mut Vec<Action<P, R, E>>) {
        actions.push(Action::Retried {
            task: self.nodes.id(index),
            attempt: self.nodes.at(index).attempt,
            error,
        });
        self.requeue(index, actions);
    }

    /// Queues a task again, unless an input was lost meanwhile.
    fn requeue(&mut self, index: u32, actions: &mut Vec<Action<P, R, E>>) {
        match self.broken_input(index) {
            Some(edge) => self.fail_by(index, edge, actions),
            None => self.make_ready(index),
        }
    }

    pub(super) fn make_ready(&mut self, index: u32) {
        let node = self.nodes.at_mut(index);
        let Some(payload) = node.turn(State::Vacant).into_payload() else {
            unreachable!("only what has a payload gets ready");
        };
        node.state = State::Ready(payload);
        self.ready.push(index, node.priority, node.sequence);
    }

    fn cancel(&mut self, task: TaskId, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        let Some(index) = self.nodes.find(task) else {
            return Heard::Stale;
        };
        let node = self.nodes.at_mut(index);
        if node.is_over() {
            return Heard::TooLate;
        }
        if node.holders > 1 {
            node.holders -= 1;
            return Heard::Shared;
        }
        match node.turn(State::Vacant) {
            State::Running(payload) => {
                node.state = State::Stopping(payload);
                actions.push(Action::Stop {
                    task,
                    attempt: node.attempt,
                    worker: WorkerIndex(node.worker),
                });
                // A client that submits the same computation now has not cancelled it: that is a new task.
                self.forget_key(index);
                Heard::Stopping
            }
            State::Stopping(payload) => {
                node.state = State::Stopping(payload);
                Heard::Stopping
            }
            state => {
                node.state = state;
                self.bad(index, State::Cancelled, actions);
                Heard::Taken
            }
        }
    }

    fn hold(&mut self, task: TaskId) -> Heard {
        let Some(index) = self.nodes.find(task) else {
            return Heard::Stale;
        };
        let node = self.nodes.at_mut(index);
        match node.holders.checked_add(1) {
            Some(holders) => {
                node.holders = holders;
                Heard::Taken
            }
            None => Heard::Stale,
        }
    }

    fn release(&mut self, task: TaskId) -> Heard {
        let Some(index) = self.nodes.find(task) else {
            return Heard::Stale;
        };
        let node = self.nodes.at_mut(index);
        // The driver cannot release the memo's claim.
        let memos = u32::from(node.flags.keyed && matches!(node.state, State::Done(_)));
        if node.holders <= memos {
            return Heard::Stale;
        }
        node.holders -= 1;
        self.loose.push(index);
        Heard::Taken
    }

    fn want(&mut self, task: TaskId, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        let Some(index) = self.nodes.find(task) else {
            return Heard::Stale;
        };
        let node = self.nodes.at_mut(index);
        node.flags.wanted = true;
        if matches!(node.state, State::Done(_)) && !node.flags.local {
            let from = WorkerIndex(node.worker);
            actions.push(Action::Fetch { task, from });
        }
        Heard::Taken
    }

    fn fetched(&mut self, task: TaskId, result: R, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        let found = self.nodes.find(task);
        if let Some(index) = found {
            let node = self.nodes.at_mut(index);
            if let State::Done(known) = &mut node.state
                && !node.flags.local
            {
                node.flags.local = true;
                let value = Ok(std::mem::replace(known, result));
                actions.push(Action::Dropped { task, value });
                return Heard::Taken;
            }
        }
        let value = Ok(result);
        actions.push(Action::Dropped { task, value });
        Heard::Stale
    }

    fn worker_down(&mut self, worker: WorkerIndex, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        if !self.workers.stop(worker) {
            return Heard::Stale;
        }
        for index in 0..self.nodes.places() {
            self.leave_place(index, worker.0, actions);
        }
        Heard::Taken
    }

    fn copy_lost(&mut self, task: TaskId, worker: WorkerIndex, actions: &mut Vec<Action<P, R, E>>) -> Heard {
        match self.nodes.find(task) {
            Some(index) if self.stands_on(index, worker.0) => {
                self.leave_place(index, worker.0, actions);
                Heard::Taken
            }
            _ => Heard::Stale,
        }
    }
}

fn taken(is: bool) -> Heard {
    if is { Heard::Taken } else { Heard::Stale }
}

/// Hands back the value of a report that does not belong to a present run.
fn stale<P, R, E>(task: TaskId, outcome: Outcome<R, E>, actions: &mut Vec<Action<P, R, E>>) -> Heard {
    let value = match outcome {
        Outcome::Done { result, .. } => Ok(result),
        Outcome::Failed(error) | Outcome::Fatal(error) | Outcome::Died(error) => Err(error),
        Outcome::NotRun | Outcome::Stopped => return Heard::Stale,
    };
    actions.push(Action::Dropped { task, value });
    Heard::Stale
}
