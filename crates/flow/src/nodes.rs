//! Table of the tasks: one array, whose entries are reused.

use crate::edges::ConsumerList;
use crate::id::{NIL, TaskId};

/// State of a task, with the values that it carries in that state.
#[derive(Debug)]
pub(crate) enum TaskState<P, R, E> {
    /// The entry belongs to no task.
    Vacant,
    /// Waits for inputs.
    Waiting(P),
    /// Waits for a worker.
    Ready(P),
    /// Runs on a worker.
    Running(P),
    /// Runs on a worker, and is to be stopped.
    Stopping(P),
    /// The driver will end the task, which does not run here.
    Promised,
    Done(R),
    Failed(E),
    /// An input failed. The edge of the first input leads to that input. The number is the task where the failure
    /// began.
    Chained(u32),
    Cancelled,
    /// The task was done, but its result was lost with the only worker that had it.
    Lost,
}

/// Flags of a task, one bit each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeFlags {
    /// Whether the task may run again after its worker died.
    pub idempotent: bool,
    /// Whether the driver wants the value itself.
    pub wanted: bool,
    /// Whether the task has a key in the memo.
    pub keyed: bool,
    /// Whether the driver has the result itself; workers may have it too.
    pub local: bool,
}

#[derive(Debug)]
pub(crate) struct TaskNode<P, R, E> {
    pub state: TaskState<P, R, E>,
    /// Submission order relative to other tasks.
    pub sequence: u64,
    /// Size of the result, bytes.
    pub bytes: u64,
    /// The driver's own number.
    pub tag: u64,
    pub generation: u32,
    /// Number of claims on the result, without the claims of dependent tasks.
    pub holders: u32,
    /// Number of inputs that are not done yet.
    pub unmet: u32,
    /// Edge of the first input; in a vacant entry, the next vacant entry.
    pub first_input: u32,
    pub consumers: ConsumerList,
    /// Worker on which the task runs, or on which its result is; `NIL` if there is none.
    pub worker: u32,
    pub priority: i32,
    /// Number of runs so far, including the present run.
    pub attempt: u32,
    /// Number of failures that are still retried.
    pub retries_left: u16,
    /// Number of workers that died while they ran the task.
    pub deaths: u8,
    pub flags: NodeFlags,
}

impl<P, R, E> TaskState<P, R, E> {
    /// The payload of a task that has not ended.
    pub fn into_payload(self) -> Option<P> {
        match self {
            Self::Waiting(payload) | Self::Ready(payload) | Self::Running(payload) | Self::Stopping(payload) => {
                Some(payload)
            }
            _ => None,
        }
    }
}

impl<P, R, E> TaskNode<P, R, E> {
    /// Replaces the state; returns the former state.
    pub fn replace_state(&mut self, state: TaskState<P, R, E>) -> TaskState<P, R, E> {
        std::mem::replace(&mut self.state, state)
    }

    pub fn is_over(&self) -> bool {
        !self.is_pending() && !matches!(self.state, TaskState::Vacant)
    }

    pub fn is_pending(&self) -> bool {
        matches!(
            self.state,
            TaskState::Waiting(_)
                | TaskState::Ready(_)
                | TaskState::Running(_)
                | TaskState::Stopping(_)
                | TaskState::Promised
        )
    }
}

#[derive(Debug)]
pub(crate) struct TaskNodes<P, R, E> {
    entries: Vec<TaskNode<P, R, E>>,
    free: u32,
    used: u32,
}

impl<P, R, E> TaskNodes<P, R, E> {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NIL,
            used: 0,
        }
    }

    /// Number of entries in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Number of entries that were ever used.
    pub fn places(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn at(&self, index: u32) -> &TaskNode<P, R, E> {
        &self.entries[index as usize]
    }

    pub fn at_mut(&mut self, index: u32) -> &mut TaskNode<P, R, E> {
        &mut self.entries[index as usize]
    }

    /// Two different entries.
    pub fn pair_mut(&mut self, one: u32, other: u32) -> (&mut TaskNode<P, R, E>, &mut TaskNode<P, R, E>) {
        let (low, high) = (one.min(other) as usize, one.max(other) as usize);
        let (below, above) = self.entries.split_at_mut(high);
        let (low, high) = (&mut below[low], &mut above[0]);
        if one < other { (low, high) } else { (high, low) }
    }

    /// Index of this task's entry; `None` if the task is gone.
    pub fn find(&self, task: TaskId) -> Option<u32> {
        let node = self.entries.get(task.index as usize)?;
        let lives = node.generation == task.generation && !matches!(node.state, TaskState::Vacant);
        lives.then_some(task.index)
    }

    pub fn id(&self, index: u32) -> TaskId {
        TaskId {
            index,
            generation: self.at(index).generation,
        }
    }

    /// Adds a task in its initial state; returns its index.
    pub fn insert(&mut self, state: TaskState<P, R, E>, sequence: u64) -> u32 {
        let mut node = TaskNode {
            state,
            sequence,
            bytes: 0,
            tag: 0,
            generation: 0,
            holders: 1,
            unmet: 0,
            first_input: NIL,
            consumers: ConsumerList::EMPTY,
            worker: NIL,
            priority: 0,
            attempt: 0,
            retries_left: 0,
            deaths: 0,
            flags: NodeFlags::default(),
        };
        self.used += 1;
        if self.free == NIL {
            self.entries.push(node);
            return (self.entries.len() - 1) as u32;
        }
        let index = self.free;
        let place = self.at_mut(index);
        node.generation = place.generation;
        let next = place.first_input;
        *place = node;
        self.free = next;
        index
    }

    /// Frees an entry; returns its state.
    pub fn remove(&mut self, index: u32) -> TaskState<P, R, E> {
        let free = self.free;
        let node = self.at_mut(index);
        let state = std::mem::replace(&mut node.state, TaskState::Vacant);
        self.used -= 1;
        let node = self.at_mut(index);
        // After four thousand million tasks the entry stays vacant, so that no name is used twice.
        if let Some(next) = node.generation.checked_add(1) {
            node.generation = next;
            node.first_input = free;
            self.free = index;
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the figure in the documentation of [`Flow`](crate::Flow).
    #[test]
    fn a_task_takes_96_bytes() {
        assert_eq!(size_of::<TaskNode<[u64; 2], [u64; 2], [u64; 2]>>(), 96);
    }
}
