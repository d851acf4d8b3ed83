//! Placement: the choice of a worker for each task, and the whereabouts of results.
//!
//! A result stays on the worker that made it. A task goes to the worker with credit that has most bytes of the task's
//! inputs, or else to the least busy worker. Missing inputs are forwarded from worker to worker, and are then on both
//! workers. A task never waits for the worker that has its inputs while another worker is idle.

use super::Flow;
use crate::event::FlowAction;
use crate::id::{NIL, WorkerIndex};
use crate::nodes::TaskState;

impl<P, R, E> Flow<P, R, E> {
    /// Sends ready tasks to workers while there is credit.
    pub(super) fn dispatch(&mut self, actions: &mut Vec<FlowAction<P, R, E>>) {
        while self.workers.any_has_credit() {
            let Some((index, sequence)) = self.ready.pop() else {
                return;
            };
            let node = self.nodes.at(index);
            if node.sequence != sequence || !matches!(node.state, TaskState::Ready(_)) {
                self.ready.note_popped_stale();
                continue;
            }
            let Some(worker) = self.choose(index) else {
                unreachable!("a worker has credit");
            };
            self.forward_inputs(index, worker, actions);
            self.workers.take(worker);
            self.running += 1;
            let task = self.nodes.id(index);
            let node = self.nodes.at_mut(index);
            node.worker = worker;
            // 0 is a promise's attempt.
            node.attempt = node.attempt.checked_add(1).unwrap_or(1);
            let Some(payload) = node.replace_state(TaskState::Vacant).into_payload() else {
                unreachable!("a ready task has a payload");
            };
            node.state = TaskState::Running(payload);
            actions.push(FlowAction::Run {
                task,
                attempt: node.attempt,
                worker: WorkerIndex(worker),
            });
        }
    }

    fn choose(&mut self, index: u32) -> Option<u32> {
        let mut edge = self.nodes.at(index).first_input;
        while edge != NIL {
            let here = self.edges.get(edge);
            edge = here.next_input;
            let producer = self.nodes.at(here.producer);
            if producer.worker == NIL {
                continue;
            }
            let copies = self.copies.get(&here.producer);
            let others = copies.into_iter().flatten().copied();
            for worker in std::iter::once(producer.worker).chain(others) {
                if self.weights.len() <= worker as usize {
                    self.weights.resize(worker as usize + 1, 0);
                }
                let weight = &mut self.weights[worker as usize];
                if *weight == 0 {
                    self.weighed.push(worker);
                }
                // At least 1, so that an empty result has a weight, and no worker is pushed twice.
                *weight = weight.saturating_add(producer.bytes.max(1));
            }
        }
        let mut best = None;
        for worker in self.weighed.drain(..) {
            let weight = std::mem::take(&mut self.weights[worker as usize]);
            if self.workers.has_credit(worker) {
                let load = self.workers.in_flight(WorkerIndex(worker));
                best = best.max(Some((weight, std::cmp::Reverse(load), std::cmp::Reverse(worker))));
            }
        }
        match best {
            Some((_, _, std::cmp::Reverse(worker))) => Some(worker),
            None => self.workers.least_busy(),
        }
    }

    /// Forwards the inputs that a run needs and its worker lacks. The driver sends its own inputs with the run.
    fn forward_inputs(&mut self, index: u32, to: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let mut edge = self.nodes.at(index).first_input;
        while edge != NIL {
            let here = self.edges.get(edge);
            edge = here.next_input;
            let producer = self.nodes.at(here.producer);
            if producer.flags.local || self.stands_on(here.producer, to) {
                continue;
            }
            actions.push(FlowAction::Forward {
                task: self.nodes.id(here.producer),
                bytes: producer.bytes,
                from: WorkerIndex(producer.worker),
                to: WorkerIndex(to),
            });
            self.copies.entry(here.producer).or_default().push(to);
        }
    }

    /// Whether a result is on this worker.
    pub(super) fn stands_on(&self, index: u32, worker: u32) -> bool {
        let node = self.nodes.at(index);
        let on_copies = || self.copies.get(&index).is_some_and(|copies| copies.contains(&worker));
        worker != NIL && matches!(node.state, TaskState::Done(_)) && (node.worker == worker || on_copies())
    }

    /// Removes a result from this worker; if it was the last copy, the result is lost.
    pub(super) fn leave_place(&mut self, index: u32, worker: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        if !self.stands_on(index, worker) {
            return;
        }
        let mut next = NIL;
        if let Some(copies) = self.copies.get_mut(&index) {
            copies.retain(|copy| *copy != worker);
            if self.nodes.at(index).worker == worker {
                next = copies.pop().unwrap_or(NIL);
            }
            if copies.is_empty() {
                self.copies.remove(&index);
            }
        }
        let node = self.nodes.at_mut(index);
        if node.worker != worker {
            return;
        }
        node.worker = next;
        if next == NIL && !node.flags.local {
            self.lose(index, actions);
        }
    }

    /// Orders all workers that have a result to forget it.
    pub(super) fn forget_places(&mut self, index: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let node = self.nodes.at(index);
        if node.worker == NIL {
            return;
        }
        let task = self.nodes.id(index);
        let copies = self.copies.remove(&index).unwrap_or_default();
        for worker in std::iter::once(node.worker).chain(copies) {
            let worker = WorkerIndex(worker);
            actions.push(FlowAction::Forget { task, worker });
        }
    }
}
