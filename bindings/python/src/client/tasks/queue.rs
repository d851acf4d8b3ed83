//! Queue of tasks that wait for a slot: higher priorities first, then in the order of arrival.

use crate::client::tasks::job::TaskJob;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Queue by priority. Nearly always all tasks have priority 0 and are in one list.
#[derive(Default)]
pub struct Queue {
    usual: VecDeque<TaskJob>,
    others: BTreeMap<Reverse<i32>, VecDeque<TaskJob>>,
    bytes: usize,
}

impl Queue {
    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.usual.is_empty() && self.others.is_empty()
    }

    /// Bytes that the tasks keep.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, job: &TaskJob) -> &mut VecDeque<TaskJob> {
        self.bytes += job.size();
        match job.priority {
            0 => &mut self.usual,
            priority => self.others.entry(Reverse(priority)).or_default(),
        }
    }

    /// Adds a task behind all tasks of its priority.
    pub fn push_back(&mut self, job: TaskJob) {
        self.add(&job).push_back(job);
    }

    /// Adds a task that was sent before, in front of all tasks of its priority.
    pub fn push_front(&mut self, job: TaskJob) {
        self.add(&job).push_front(job);
    }

    /// Takes the next task.
    pub fn pop_front(&mut self) -> Option<TaskJob> {
        let job = self.next()?;
        self.bytes -= job.size();
        Some(job)
    }

    fn next(&mut self) -> Option<TaskJob> {
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

    /// Takes all tasks, the next one first.
    pub fn take_all(&mut self) -> Vec<TaskJob> {
        std::iter::from_fn(|| self.pop_front()).collect()
    }
}
