//! End of tasks, the effect on dependent tasks, and the forgetting of tasks.
//!
//! ```text
//!   done ──▶ consumers have one more input; the last input makes them ready
//!   failed, cancelled, lost ──▶ each consumer fails, with an edge to its failed input: the chain
//!                               └─▶ and its consumers in turn, until none is left
//!   over, no claim, no consumer ──▶ forgotten; its edges are removed, perhaps the last claims on its inputs
//! ```
//!
//! None of this is recursive: one loop fails a chain of a million tasks, and another loop forgets them.

use super::Flow;
use crate::event::FlowAction;
use crate::id::{NIL, WorkerIndex};
use crate::nodes::TaskState;

impl<P, R, E> Flow<P, R, E> {
    /// Ends a task with a result, which is on this worker, or with the driver if `worker` is `NIL`.
    pub(super) fn finish_done(
        &mut self,
        index: u32,
        result: R,
        bytes: u64,
        worker: u32,
        actions: &mut Vec<FlowAction<P, R, E>>,
    ) {
        let task = self.nodes.id(index);
        let node = self.nodes.at_mut(index);
        let payload = node.replace_state(TaskState::Done(result)).into_payload();
        (node.bytes, node.worker, node.flags.local) = (bytes, worker, worker == NIL);
        self.pending -= 1;
        actions.push(FlowAction::Done { task, payload });
        if node.flags.wanted && worker != NIL {
            let from = WorkerIndex(worker);
            actions.push(FlowAction::Fetch { task, from });
        }
        if node.flags.keyed {
            match node.holders.checked_add(1) {
                Some(holders) => {
                    node.holders = holders;
                    self.memo.finish(index, bytes);
                    self.bound_memo();
                }
                None => self.forget_key(index),
            }
        }
        self.release_inputs(index, NIL);
        let mut edge = self.nodes.at(index).consumers.first;
        while edge != NIL {
            let here = self.edges.get(edge);
            edge = here.next_consumer;
            let consumer = self.nodes.at_mut(here.consumer);
            consumer.unmet -= 1;
            if consumer.unmet == 0 {
                self.make_ready(here.consumer);
            }
        }
        self.loose.push(index);
        if worker != NIL && !self.workers.is_up(worker) {
            // The worker went down before this was reported.
            self.leave_place(index, worker, actions);
        }
    }

    /// Ends a task without a result, by its own failure or cancellation.
    pub(super) fn finish_bad(&mut self, index: u32, state: TaskState<P, R, E>, actions: &mut Vec<FlowAction<P, R, E>>) {
        let task = self.nodes.id(index);
        let before = self.end(index, state);
        let payload = before.into_payload();
        actions.push(match self.nodes.at(index).state {
            TaskState::Cancelled => FlowAction::Cancelled { task, payload },
            _ => FlowAction::Failed {
                task,
                payload,
                root: task,
            },
        });
        self.release_inputs(index, NIL);
        self.loose.push(index);
        self.fail_consumers(index, actions);
    }

    /// Ends a task because of the failed input to which this edge leads.
    pub(super) fn fail_by(&mut self, index: u32, edge: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let producer = self.edges.get(edge).producer;
        let root = match self.nodes.at(producer).state {
            TaskState::Chained(root) => root,
            _ => producer,
        };
        self.chain_to(index, edge, root, actions);
        self.fail_all_consumers(actions);
    }

    fn chain_to(&mut self, index: u32, edge: u32, root: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let before = self.end(index, TaskState::Chained(root));
        actions.push(FlowAction::Failed {
            task: self.nodes.id(index),
            payload: before.into_payload(),
            root: self.nodes.id(root),
        });
        self.release_inputs(index, edge);
        self.loose.push(index);
        self.failing.push((index, root));
    }

    fn fail_consumers(&mut self, index: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        self.failing.push((index, index));
        self.fail_all_consumers(actions);
    }

    fn fail_all_consumers(&mut self, actions: &mut Vec<FlowAction<P, R, E>>) {
        while let Some((producer, root)) = self.failing.pop() {
            let mut edge = self.nodes.at(producer).consumers.first;
            while edge != NIL {
                let consumer = self.edges.get(edge).consumer;
                // A running task already has its inputs; a task that is over has ended by another input.
                if matches!(
                    self.nodes.at(consumer).state,
                    TaskState::Waiting(_) | TaskState::Ready(_)
                ) {
                    self.chain_to(consumer, edge, root, actions);
                }
                // Read only now: `chain_to` removes other edges between the two tasks, but not this edge.
                edge = self.edges.get(edge).next_consumer;
            }
        }
    }

    /// Ends a pending task; returns its former state.
    fn end(&mut self, index: u32, state: TaskState<P, R, E>) -> TaskState<P, R, E> {
        let node = self.nodes.at_mut(index);
        let before = node.replace_state(state);
        self.pending -= 1;
        if matches!(before, TaskState::Ready(_)) {
            let nodes = &self.nodes;
            self.ready.note_stale(|index, sequence| {
                let node = nodes.at(index);
                node.sequence == sequence && matches!(node.state, TaskState::Ready(_))
            });
        }
        self.forget_key(index);
        before
    }

    /// Removes a task from the memo.
    pub(super) fn forget_key(&mut self, index: u32) {
        let node = self.nodes.at_mut(index);
        if std::mem::take(&mut node.flags.keyed) && self.memo.forget(index) {
            node.holders -= 1;
        }
    }

    /// Marks a result as lost with the only worker that had it.
    pub(super) fn lose(&mut self, index: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let task = self.nodes.id(index);
        self.forget_key(index);
        if let TaskState::Done(result) = self.nodes.at_mut(index).replace_state(TaskState::Lost) {
            actions.push(FlowAction::Lost { task, result });
        }
        self.loose.push(index);
        self.fail_consumers(index, actions);
    }

    /// Removes a task's edges to its inputs, except the edge `but` (`NIL` for no exception).
    fn release_inputs(&mut self, index: u32, but: u32) {
        let mut edge = self.nodes.at(index).first_input;
        self.nodes.at_mut(index).first_input = but;
        while edge != NIL {
            let here = self.edges.get(edge);
            if edge != but {
                let producer = self.nodes.at_mut(here.producer);
                self.edges.unlink(edge, &mut producer.consumers);
                if producer.holders == 0 && producer.consumers.is_empty() {
                    self.loose.push(here.producer);
                }
            }
            edge = here.next_input;
        }
        if but != NIL {
            self.edges.cut_after(but);
        }
    }

    /// Runs after every event: forgets tasks that are not needed any more, and sends ready tasks to workers.
    pub(super) fn settle(&mut self, actions: &mut Vec<FlowAction<P, R, E>>) {
        while let Some(index) = self.loose.pop() {
            let node = self.nodes.at(index);
            if node.holders == 0 && node.consumers.is_empty() && node.is_over() {
                self.forget(index, actions);
            }
        }
        self.dispatch(actions);
        self.tell_room(actions);
    }

    fn forget(&mut self, index: u32, actions: &mut Vec<FlowAction<P, R, E>>) {
        let task = self.nodes.id(index);
        self.release_inputs(index, NIL);
        self.forget_places(index, actions);
        let value = match self.nodes.remove(index) {
            TaskState::Done(result) => Ok(result),
            TaskState::Failed(error) => Err(error),
            _ => return,
        };
        actions.push(FlowAction::Dropped { task, value });
    }
}
