//! The tasks themselves: one array, whose places are used again.

use crate::edges::Ends;
use crate::id::{NIL, TaskId};

/// Where a task is in its life, with what it carries there.
#[derive(Debug)]
pub(crate) enum State<P, R, E> {
    /// Nobody's place.
    Vacant,
    /// For inputs.
    Waiting(P),
    /// For a worker.
    Ready(P),
    /// On a worker.
    Running(P),
    /// The same, and it is to be stopped.
    Stopping(P),
    /// Ended by the driver, without running here.
    Promised,
    Done(R),
    Failed(E),
    /// An input failed; its first input's edge leads to it. And where that began.
    Chained(u32),
    Cancelled,
    /// It was done, and its result went with the worker on which alone it was.
    Lost,
}

/// What a task may need told about it, one bit each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flags {
    /// May run again after its worker died.
    pub idempotent: bool,
    /// Somebody waits for the value itself.
    pub wanted: bool,
    /// It has a key in the memo.
    pub keyed: bool,
    /// The driver has the result itself, whatever workers have it too.
    pub local: bool,
}

#[derive(Debug)]
pub(crate) struct Node<P, R, E> {
    pub state: State<P, R, E>,
    /// When it was submitted, relative to others.
    pub sequence: u64,
    /// How large its result is.
    pub bytes: u64,
    /// The driver's own.
    pub tag: u64,
    pub generation: u32,
    /// Claims on its result, other than those of tasks.
    pub holders: u32,
    /// Inputs that are not there yet.
    pub unmet: u32,
    /// Of a vacant place: the next one.
    pub first_input: u32,
    pub consumers: Ends,
    /// On which it runs, or its result stands; `NIL`: none.
    pub worker: u32,
    pub priority: i32,
    /// Runs so far, the present one too.
    pub attempt: u32,
    /// Failures that may still happen.
    pub retries_left: u16,
    /// Workers that died of it, or with it.
    pub deaths: u8,
    pub flags: Flags,
}

impl<P, R, E> State<P, R, E> {
    /// What was to run.
    pub fn into_payload(self) -> Option<P> {
        match self {
            Self::Waiting(payload)
            | Self::Ready(payload)
            | Self::Running(payload)
            | Self::Stopping(payload) => Some(payload),
            _ => None,
        }
    }
}

impl<P, R, E> Node<P, R, E> {
    /// Puts another state in the place of this one.
    pub fn turn(&mut self, state: State<P, R, E>) -> State<P, R, E> {
        std::mem::replace(&mut self.state, state)
    }

    pub fn is_over(&self) -> bool {
        !self.is_pending() && !matches!(self.state, State::Vacant)
    }

    pub fn is_pending(&self) -> bool {
        matches!(
            self.state,
            State::Waiting(_) | State::Ready(_) | State::Running(_) | State::Stopping(_) | State::Promised
        )
    }
}

#[derive(Debug)]
pub(crate) struct Nodes<P, R, E> {
    entries: Vec<Node<P, R, E>>,
    free: u32,
    used: u32,
}

impl<P, R, E> Nodes<P, R, E> {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NIL,
            used: 0,
        }
    }

    /// Places in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Places that were ever used.
    pub fn places(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn at(&self, index: u32) -> &Node<P, R, E> {
        &self.entries[index as usize]
    }

    pub fn at_mut(&mut self, index: u32) -> &mut Node<P, R, E> {
        &mut self.entries[index as usize]
    }

    /// Two different ones.
    pub fn pair_mut(&mut self, one: u32, other: u32) -> (&mut Node<P, R, E>, &mut Node<P, R, E>) {
        let (low, high) = (one.min(other) as usize, one.max(other) as usize);
        let (below, above) = self.entries.split_at_mut(high);
        let (low, high) = (&mut below[low], &mut above[0]);
        if one < other { (low, high) } else { (high, low) }
    }

    /// Which place this task has; `None`: it is gone.
    pub fn find(&self, task: TaskId) -> Option<u32> {
        let node = self.entries.get(task.index as usize)?;
        let lives = node.generation == task.generation && !matches!(node.state, State::Vacant);
        lives.then_some(task.index)
    }

    pub fn id(&self, index: u32) -> TaskId {
        TaskId {
            index,
            generation: self.at(index).generation,
        }
    }

    /// A place with everything at its beginning.
    pub fn insert(&mut self, state: State<P, R, E>, sequence: u64) -> u32 {
        let mut node = Node {
            state,
            sequence,
            bytes: 0,
            tag: 0,
            generation: 0,
            holders: 1,
            unmet: 0,
            first_input: NIL,
            consumers: Ends::EMPTY,
            worker: NIL,
            priority: 0,
            attempt: 0,
            retries_left: 0,
            deaths: 0,
            flags: Flags::default(),
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

    /// Frees a place; with what was there.
    pub fn remove(&mut self, index: u32) -> State<P, R, E> {
        let free = self.free;
        let node = self.at_mut(index);
        let state = std::mem::replace(&mut node.state, State::Vacant);
        self.used -= 1;
        let node = self.at_mut(index);
        // After four thousand million tasks the place stays empty, so that no name comes again.
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

    /// The figure of [`Flow`](crate::Flow)'s documentation.
    #[test]
    fn a_task_takes_96_bytes() {
        assert_eq!(size_of::<Node<[u64; 2], [u64; 2], [u64; 2]>>(), 96);
    }
}
