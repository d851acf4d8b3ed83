//! Queue of tasks that only wait for a worker: the highest priority first, then the oldest.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Entry of a ready task; the greater of two entries runs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    priority: i32,
    age: Reverse<u64>,
    index: u32,
}

/// Queue of ready tasks.
///
/// Most tasks become ready in the order in which they were submitted, and with the same priority. These tasks are in a
/// queue, which needs fewer cache lines for a task than a heap. All other tasks are in a heap. The next task is the
/// greater of the first tasks of both.
///
/// The entry of a cancelled task stays until it is popped, or until half of all entries are stale and all stale entries
/// are removed together. So the caller must check that a popped entry is still valid.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    queue: VecDeque<Entry>,
    heap: BinaryHeap<Entry>,
    /// Number of entries known to be stale.
    stale: usize,
}

impl ReadyQueue {
    pub fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            heap: BinaryHeap::new(),
            stale: 0,
        }
    }

    /// Number of ready tasks.
    pub fn len(&self) -> usize {
        self.queue.len() + self.heap.len() - self.stale
    }

    pub fn push(&mut self, index: u32, priority: i32, sequence: u64) {
        let entry = Entry {
            priority,
            age: Reverse(sequence),
            index,
        };
        match self.queue.back() {
            Some(last) if entry > *last => self.heap.push(entry),
            _ => self.queue.push_back(entry),
        }
    }

    /// Takes the next entry: a task, and its submission's sequence number.
    pub fn pop(&mut self) -> Option<(u32, u64)> {
        let entry = match (self.queue.front(), self.heap.peek()) {
            (Some(first), Some(top)) if top > first => self.heap.pop(),
            (Some(_), _) => self.queue.pop_front(),
            (None, _) => self.heap.pop(),
        };
        entry.map(|entry| (entry.index, entry.age.0))
    }

    /// Notes that a popped entry was stale.
    pub fn note_popped_stale(&mut self) {
        self.stale = self.stale.saturating_sub(1);
    }

    /// Notes that an entry has become stale. `holds` returns whether an entry is still valid.
    pub fn note_stale(&mut self, holds: impl Fn(u32, u64) -> bool) {
        self.stale += 1;
        if self.stale > 64 && self.stale > (self.queue.len() + self.heap.len()) / 2 {
            self.queue.retain(|entry| holds(entry.index, entry.age.0));
            self.heap.retain(|entry| holds(entry.index, entry.age.0));
            self.stale = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_priority_comes_first_and_then_the_oldest() {
        let mut ready = ReadyQueue::new();
        for (index, priority, sequence) in [(0, 0, 5), (1, 0, 3), (2, 7, 9), (3, -1, 1), (4, 0, 6), (5, 7, 8)] {
            ready.push(index, priority, sequence);
        }
        let order: Vec<_> = std::iter::from_fn(|| ready.pop()).map(|(index, _)| index).collect();
        assert_eq!(order, [5, 2, 1, 0, 4, 3]);
    }

    #[test]
    fn cancelled_tasks_do_not_pile_up() {
        let mut ready = ReadyQueue::new();
        for sequence in 0..100_000 {
            ready.push(sequence as u32, 0, sequence);
            ready.note_stale(|_, _| false);
        }
        assert!(
            ready.queue.len() + ready.heap.len() < 200,
            "{} entries",
            ready.queue.len()
        );
        assert_eq!(ready.len(), ready.queue.len() + ready.heap.len() - ready.stale);
    }
}
