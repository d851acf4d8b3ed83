//! Reference for the kernel, as plain as possible: one list of tasks, which each operation goes through.

use hotlease_flow::{FlowAction, Reaction, TaskId};
use std::collections::BTreeSet;

/// Phase of a task. Whether a queued task is ready follows from its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Queued,
    Running,
    Stopping,
    Promised,
    Done,
    Failed,
    Dependency,
    Cancelled,
    Lost,
}

#[derive(Debug)]
pub struct Task {
    pub id: TaskId,
    pub inputs: Vec<usize>,
    pub priority: i32,
    pub retries: u16,
    pub idempotent: bool,
    pub key: Option<u8>,
    pub phase: Phase,
    pub holders: u32,
    pub attempt: u32,
    pub deaths: u8,
    pub worker: u32,
    /// Workers that have the result, and whether the driver has it.
    pub places: BTreeSet<u32>,
    pub local: bool,
    pub bytes: u64,
    /// Tasks from this task to the task where the failure began, as first reported.
    pub chain: Vec<usize>,
    pub is_promise: bool,
    pub ends_told: u32,
    pub payloads_back: u32,
    /// The token that stands for the result or error, while the kernel has it.
    pub value: Option<u64>,
    pub forgotten: bool,
}

impl Task {
    pub fn is_pending(&self) -> bool {
        matches!(
            self.phase,
            Phase::Queued | Phase::Running | Phase::Stopping | Phase::Promised
        )
    }

    pub fn is_bad(&self) -> bool {
        !self.is_pending() && self.phase != Phase::Done
    }
}

#[derive(Debug, Default)]
pub struct Reference {
    pub tasks: Vec<Task>,
    /// Credits of each worker that is up.
    pub workers: Vec<Option<u32>>,
    /// Done computations by key, the most recently used at the end.
    pub memo: Vec<(u8, usize)>,
    pub memo_max: usize,
    pub deaths_max: u8,
}

pub type TestAction = FlowAction<u64, u64, u64>;

impl Reference {
    pub fn find(&self, id: TaskId) -> usize {
        let found = self.tasks.iter().position(|task| task.id == id);
        found.unwrap_or_else(|| panic!("{id} is no task that was accepted"))
    }

    pub fn is_ready(&self, at: usize) -> bool {
        let task = &self.tasks[at];
        task.phase == Phase::Queued && task.inputs.iter().all(|input| self.tasks[*input].phase == Phase::Done)
    }

    pub fn pending(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_pending()).count()
    }

    pub fn in_flight(&self, worker: u32) -> u32 {
        let on_it = |task: &&Task| matches!(task.phase, Phase::Running | Phase::Stopping) && task.worker == worker;
        self.tasks.iter().filter(on_it).count() as u32
    }

    pub fn has_credit(&self, worker: u32) -> bool {
        let credits = self.workers.get(worker as usize).copied().flatten();
        credits.is_some_and(|credits| self.in_flight(worker) < credits)
    }

    /// For each task, whether a holder can still ask for it.
    pub fn known(&self) -> Vec<bool> {
        let mut known = vec![false; self.tasks.len()];
        for (_, at) in &self.memo {
            known[*at] = true;
        }
        // Consumers are younger than their inputs.
        for (at, task) in self.tasks.iter().enumerate().rev() {
            known[at] |= task.is_pending() || task.holders > 0;
            if task.is_pending() {
                task.inputs.iter().for_each(|input| known[*input] = true);
            } else if let (true, Some(by)) = (known[at], task.chain.get(1)) {
                known[*by] = true;
            }
        }
        known
    }

    /// The pending or remembered task of a key.
    pub fn recall(&mut self, key: u8) -> Option<usize> {
        let pending = |task: &Task| task.is_pending() && task.key == Some(key);
        if let Some(at) = self.tasks.iter().position(pending) {
            return Some(at);
        }
        let found = self.memo.iter().position(|(known, _)| *known == key)?;
        let entry = self.memo.remove(found);
        self.memo.push(entry);
        Some(entry.1)
    }

    pub fn remember(&mut self, key: u8, at: usize) {
        self.memo.push((key, at));
        if self.memo.len() > self.memo_max {
            self.memo.remove(0);
        }
    }

    pub fn done(&mut self, at: usize, value: u64, bytes: u64, on_worker: bool) {
        let worker = self.tasks[at].worker;
        let task = &mut self.tasks[at];
        let on_worker = on_worker && !task.is_promise;
        (task.phase, task.value, task.bytes, task.local) = (Phase::Done, Some(value), bytes, !on_worker);
        if let Some(key) = task.key {
            self.remember(key, at);
        }
        if on_worker {
            self.tasks[at].places.insert(worker);
            if self.workers[worker as usize].is_none() {
                self.leave(at, worker);
            }
        }
    }

    /// Removes a result from this worker.
    pub fn leave(&mut self, at: usize, worker: u32) {
        let task = &mut self.tasks[at];
        if task.phase == Phase::Done && task.places.remove(&worker) && task.places.is_empty() && !task.local {
            (task.phase, task.value) = (Phase::Lost, None);
            self.memo.retain(|(_, known)| *known != at);
        }
    }

    /// Ends the queued tasks that depend on a task that ended badly.
    pub fn fail_dependents(&mut self) {
        for at in 0..self.tasks.len() {
            let broken = |input: &usize| self.tasks[*input].is_bad();
            if self.tasks[at].phase == Phase::Queued && self.tasks[at].inputs.iter().any(broken) {
                self.tasks[at].phase = Phase::Dependency;
            }
        }
    }

    pub fn cancel(&mut self, at: usize) -> Reaction {
        let task = &mut self.tasks[at];
        if !task.is_pending() {
            return Reaction::TooLate;
        }
        if task.holders > 1 {
            task.holders -= 1;
            return Reaction::Shared;
        }
        match task.phase {
            Phase::Running | Phase::Stopping => {
                task.phase = Phase::Stopping;
                // A later submission of the same computation was not cancelled.
                task.key = None;
                Reaction::Stopping
            }
            _ => {
                task.phase = Phase::Cancelled;
                Reaction::Applied
            }
        }
    }

    /// Ends a run without a result. `again`: whether the kind of end allows another try.
    pub fn not_done(&mut self, at: usize, value: Option<u64>, again: bool) {
        let task = &mut self.tasks[at];
        match task.phase {
            Phase::Stopping => task.phase = Phase::Cancelled,
            _ if again => task.phase = Phase::Queued,
            _ if value.is_none() => task.phase = Phase::Cancelled,
            _ => (task.phase, task.value) = (Phase::Failed, value),
        }
    }
}
