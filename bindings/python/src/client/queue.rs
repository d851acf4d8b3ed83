//! Tasks that wait for a slot: those of a higher priority first, then in the order in which they came.

use super::job::Job;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Nearly always all have priority 0 and stand in one queue.
#[derive(Default)]
pub struct Queue {
    usual: VecDeque<Job>,
    others: BTreeMap<Reverse<i32>, VecDeque<Job>>,
}

impl Queue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.usual.is_empty() && self.others.is_empty()
    }

    fn of(&mut self, job: &Job) -> &mut VecDeque<Job> {
        match job.priority {
            0 => &mut self.usual,
            priority => self.others.entry(Reverse(priority)).or_default(),
        }
    }

    /// Behind all of its priority.
    pub fn push_back(&mut self, job: Job) {
        self.of(&job).push_back(job);
    }

    /// Before all of its priority: it was sent before.
    pub fn push_front(&mut self, job: Job) {
        self.of(&job).push_front(job);
    }

    /// The next one.
    pub fn pop_front(&mut self) -> Option<Job> {
        if let Some(mut first) = self.others.first_entry()
            && (first.key().0 > 0 || self.usual.is_empty())
        {
            let job = first.get_mut().pop_front();
            if first.get().is_empty() {
                first.remove();
            }
            return job;
        }
        self.usual.pop_front()
    }

    /// All of them, the next one first.
    pub fn take_all(&mut self) -> Vec<Job> {
        std::iter::from_fn(|| self.pop_front()).collect()
    }
}
