//! Submission of tasks, and its refusal while the tables are full.

use super::Flow;
use crate::event::{Admission, FlowAction, FlowLimits, FlowTask, LimitKind, SubmitError};
use crate::id::{MemoKey, NIL, TaskId};
use crate::nodes::TaskState;

/// Number of entries at which a full table has room again: an eighth below its limit, so that a submitter wakes up once
/// for several tasks.
fn resume_at(limit: u32) -> u32 {
    limit.saturating_sub((limit / 8).max(1))
}

impl<P, R, E> Flow<P, R, E> {
    /// Submits a task that needs the results of `inputs`, in this order; an input may be named twice. The caller has
    /// one claim on the new task's result, see [`FlowEvent::Release`](crate::FlowEvent::Release).
    ///
    /// If an input has failed already, the task fails at once, which an ordinary action reports.
    ///
    /// # Errors
    ///
    /// [`SubmitError`], which returns the payload. Nothing has changed.
    pub fn submit(
        &mut self,
        task: FlowTask<P>,
        inputs: &[TaskId],
        actions: &mut Vec<FlowAction<P, R, E>>,
    ) -> Result<Admission<P>, SubmitError<P>> {
        if let Some(index) = task.key.and_then(|key| self.memo.find(&key))
            && let Some(holders) = self.nodes.at(index).holders.checked_add(1)
        {
            self.nodes.at_mut(index).holders = holders;
            return Ok(Admission::Joined {
                task: self.nodes.id(index),
                payload: task.payload,
            });
        }
        let payload = task.payload;
        if inputs.len() > self.limits.inputs_max as usize {
            return Err(SubmitError::TooManyInputs {
                inputs: inputs.len(),
                limit: self.limits.inputs_max,
                payload,
            });
        }
        if let Some(input) = inputs.iter().find(|input| self.nodes.find(**input).is_none()) {
            let input = *input;
            return Err(SubmitError::UnknownInput { input, payload });
        }
        if let Some((what, limit, wait_for)) = self.full(inputs.len() as u32) {
            return Err(SubmitError::Full {
                what,
                limit,
                wait_for,
                payload,
            });
        }
        let index = self.insert(TaskState::Waiting(payload), task.tag);
        let node = self.nodes.at_mut(index);
        node.priority = task.priority;
        node.retries_left = task.retries;
        node.flags.idempotent = task.idempotent;
        // If the key is still known here, the number of its task's claims is at the limit. The new task then gets no
        // key.
        if let Some(key) = task.key.filter(|key| self.memo.find(key).is_none()) {
            self.nodes.at_mut(index).flags.keyed = true;
            self.memo.begin(key, index);
        }
        let id = self.nodes.id(index);
        self.connect(index, inputs);
        match self.broken_input(index) {
            Some(edge) => self.fail_by(index, edge, actions),
            None if self.nodes.at(index).unmet == 0 => self.make_ready(index),
            None => {}
        }
        self.settle(actions);
        Ok(Admission::Accepted(id))
    }

    /// Makes a promise: a task that does not run here, but that the driver ends by
    /// [`FlowEvent::Ended`](crate::FlowEvent::Ended) with attempt 0. A promise stands for a future that a task
    /// returned, or for a future of another library. Other tasks can depend on it.
    /// The caller has one claim on it.
    ///
    /// # Errors
    ///
    /// [`SubmitError::Full`].
    pub fn promise(&mut self, tag: u64) -> Result<TaskId, SubmitError<()>> {
        match self.full(0) {
            Some((what, limit, wait_for)) => Err(SubmitError::Full {
                what,
                limit,
                wait_for,
                payload: (),
            }),
            None => {
                let index = self.insert(TaskState::Promised, tag);
                Ok(self.nodes.id(index))
            }
        }
    }

    /// Adds a computation that was done earlier, with its value from a checkpoint. Only the memo has a claim on the
    /// task.
    ///
    /// # Errors
    ///
    /// Returns the result if the key is known already, or if the number of known tasks is at its limit.
    pub fn restore(
        &mut self,
        key: MemoKey,
        result: R,
        bytes: u64,
        actions: &mut Vec<FlowAction<P, R, E>>,
    ) -> Result<TaskId, R> {
        if self.memo.find(&key).is_some() || self.nodes.len() >= self.limits.tasks_max {
            return Err(result);
        }
        let index = self.nodes.insert(TaskState::Done(result), self.sequence);
        self.sequence += 1;
        let node = self.nodes.at_mut(index);
        (node.bytes, node.flags.local) = (bytes, true);
        node.flags.keyed = true;
        // The claim with which every new task begins belongs to the memo.
        self.memo.remember(key, index, bytes);
        let id = self.nodes.id(index);
        self.bound_memo();
        self.settle(actions);
        Ok(id)
    }

    /// Returns the task of a done computation by its key, for drivers that can compute the key only when the inputs are
    /// done. The call makes no claim, so the returned task may be forgotten in the next call.
    pub fn recall(&mut self, key: &MemoKey) -> Option<TaskId> {
        self.memo.find_done(key).map(|index| self.nodes.id(index))
    }

    /// Remembers a done task under a key that the driver computed late. Returns `false` if the task is not done, or if
    /// the task or the key is remembered already.
    pub fn memoise(&mut self, task: TaskId, key: MemoKey, actions: &mut Vec<FlowAction<P, R, E>>) -> bool {
        let Some(index) = self.nodes.find(task) else {
            return false;
        };
        let known = self.memo.find(&key).is_some();
        let node = self.nodes.at_mut(index);
        if known || node.flags.keyed || !matches!(node.state, TaskState::Done(_)) || node.holders == u32::MAX {
            return false;
        }
        node.flags.keyed = true;
        node.holders += 1;
        let bytes = node.bytes;
        self.memo.remember(key, index, bytes);
        self.bound_memo();
        self.settle(actions);
        true
    }

    fn insert(&mut self, state: TaskState<P, R, E>, tag: u64) -> u32 {
        let index = self.nodes.insert(state, self.sequence);
        self.nodes.at_mut(index).tag = tag;
        self.sequence += 1;
        self.pending += 1;
        index
    }

    fn connect(&mut self, index: u32, inputs: &[TaskId]) {
        // In reverse order, because each edge is inserted before the others.
        for input in inputs.iter().rev() {
            let (node, producer) = self.nodes.pair_mut(index, input.index);
            self.edges
                .link(input.index, index, &mut node.first_input, &mut producer.consumers);
            node.unmet += u32::from(producer.is_pending());
        }
    }

    /// Edge of the first input that has ended without a result.
    pub(super) fn broken_input(&self, index: u32) -> Option<u32> {
        let mut edge = self.nodes.at(index).first_input;
        while edge != NIL {
            let here = self.edges.get(edge);
            let producer = self.nodes.at(here.producer);
            if producer.is_over() && !matches!(producer.state, TaskState::Done(_)) {
                return Some(edge);
            }
            edge = here.next_input;
        }
        None
    }

    /// Returns the table that has no room for a task with this many inputs, if any, with its limit and the number of
    /// entries that must be removed.
    fn full(&mut self, inputs: u32) -> Option<(LimitKind, u32, u32)> {
        let FlowLimits {
            pending_max,
            tasks_max,
            inputs_max,
            ..
        } = self.limits;
        let found = if self.pending >= pending_max {
            (LimitKind::Pending, pending_max, self.pending - resume_at(pending_max))
        } else if self.nodes.len() >= tasks_max {
            (
                LimitKind::Tasks,
                tasks_max,
                self.nodes.len() - resume_at(tasks_max).min(self.nodes.len()),
            )
        } else if self.edges.len() > inputs_max - inputs {
            let low = resume_at(inputs_max).min(inputs_max - inputs);
            (LimitKind::Inputs, inputs_max, self.edges.len() - low)
        } else {
            return None;
        };
        self.starved = Some(self.starved.unwrap_or(0).max(inputs));
        Some(found)
    }

    /// Reports to refused submitters when there is room again.
    pub(super) fn tell_room(&mut self, actions: &mut Vec<FlowAction<P, R, E>>) {
        let Some(inputs) = self.starved else {
            return;
        };
        let limits = self.limits;
        let low = resume_at(limits.inputs_max).min(limits.inputs_max - inputs);
        let roomy = self.pending <= resume_at(limits.pending_max)
            && self.nodes.len() <= resume_at(limits.tasks_max)
            && self.edges.len() <= low;
        if roomy {
            self.starved = None;
            actions.push(FlowAction::Room {
                free: limits.pending_max - self.pending,
            });
        }
    }

    /// Forgets the oldest computations that exceed the memo's limits.
    pub(super) fn bound_memo(&mut self) {
        while self.memo.len() > self.limits.memo_max as usize || self.memo.bytes() > self.limits.memo_bytes_max {
            let Some(index) = self.memo.forget_oldest() else {
                return;
            };
            let node = self.nodes.at_mut(index);
            node.flags.keyed = false;
            node.holders -= 1;
            self.loose.push(index);
        }
    }
}
