//! Joining of equal computations: one of them runs, and the others wait for its result.
//!
//! Computations are equal if they have the same memo key. For the kernel, a task that waits for an equal task is
//! running; for all other parties, it is pending and can be cancelled. Only results are shared. If the running task
//! fails or is cancelled, the next task runs with its own retries, as if there were no equal task; no task gets the
//! failure of another task. Each future decodes the shared result for itself; see
//! [`crate::client::futures::decode::shared`].

use super::graph::{Graph, local_run_outcome};
use crate::client::tasks::Run;
use crate::client::tasks::outcome::TaskOutcome;
use crate::client::tasks::planned_tasks::PlannedTask;
use crate::client::tasks::state::Stage;
use hotlease_flow::{CREDITS_MAX, FlowEvent, MemoKey, TaskId, WorkerIndex};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Computations that have a key, and whose task is in the queue or on a worker.
#[derive(Default)]
pub struct JoinTable {
    under_way: HashMap<MemoKey, Computation>,
    /// Number of tasks that wait, over all computations.
    waiting: usize,
    /// Credits that the kernel was given for waiting tasks.
    credits: usize,
}

struct Computation {
    /// The run that is in the queue or on a worker.
    run: Run,
    /// The other runs, in the order of arrival.
    waiting: VecDeque<WaitingRun>,
    /// Number of waiting runs that were cancelled.
    gone: usize,
}

/// A run that waits for the result of an equal run.
struct WaitingRun {
    run: Run,
    /// Whether the run still has a job in the queue, where an equal run of higher priority has overtaken it.
    is_queued: bool,
}

impl Graph {
    /// Joins a task to an equal task that is under way. Returns `true` if the task waits for the equal task, `false` if
    /// the task itself has to run.
    pub fn join(&mut self, key: MemoKey, run: Run) -> bool {
        let under_way = match self.joined.under_way.entry(key) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => {
                let (waiting, gone) = (VecDeque::new(), 0);
                place.insert(Computation { run, waiting, gone });
                return false;
            }
        };
        if under_way.run.0 == run.0 {
            // A retry.
            under_way.run = run;
            return false;
        }
        let first = self.flow.payload(under_way.run.0);
        let overtakes = first.zip(self.flow.payload(run.0)).is_some_and(|(first, planned)| {
            planned.policy.priority > first.policy.priority && first.cell.stage() == Stage::Pending
        });
        if overtakes {
            // The new task gets a job of its own. With the old task's job, it would wait behind tasks of the old task's
            // lower priority.
            let first = std::mem::replace(&mut under_way.run, run);
            let is_queued = true;
            under_way.waiting.push_front(WaitingRun { run: first, is_queued });
        } else {
            let is_queued = false;
            under_way.waiting.push_back(WaitingRun { run, is_queued });
        }
        self.joined.waiting += 1;
        self.adjust_credits();
        !overtakes
    }

    /// Whether an equal task of higher priority runs instead of this task, whose job has just left the queue.
    pub fn is_overtaken(&mut self, run: Option<Run>) -> bool {
        let Some((task, _)) = run else { return false };
        let key = self.flow.payload(task).and_then(|planned| planned.key.get());
        let Some(under_way) = key.and_then(|key| self.joined.under_way.get_mut(&**key)) else {
            return false;
        };
        if under_way.run.0 == task {
            return false;
        }
        if let Some(waiting) = under_way.waiting.iter_mut().find(|waiting| waiting.run.0 == task) {
            waiting.is_queued = false;
        }
        true
    }

    /// Counts a waiting task that was cancelled.
    fn count_cancelled(&mut self, key: &MemoKey) {
        let Some(under_way) = self.joined.under_way.get_mut(key) else {
            return;
        };
        under_way.gone += 1;
        let before = under_way.waiting.len();
        // Not done after each cancelled task, because it visits all waiting tasks.
        if under_way.gone > before / 2 {
            let flow = &self.flow;
            under_way
                .waiting
                .retain(|waiting| flow.payload(waiting.run.0).is_some());
            under_way.gone = 0;
            self.joined.waiting -= before - under_way.waiting.len();
            self.adjust_credits();
        }
    }

    /// Chooses the next waiting task that is not cancelled as the task to run. Returns that task if it has no job in
    /// the queue.
    fn next_of(&mut self, key: &MemoKey) -> Option<Run> {
        let under_way = self.joined.under_way.get_mut(key)?;
        let before = under_way.waiting.len();
        let mut next = None;
        while next.is_none()
            && let Some(waiting) = under_way.waiting.pop_front()
        {
            let planned = self.flow.payload(waiting.run.0);
            next = planned
                .is_some_and(|planned| planned.cell.stage() == Stage::Pending)
                .then_some(waiting);
        }
        self.joined.waiting -= before - under_way.waiting.len();
        match &next {
            Some(next) => under_way.run = next.run,
            None => drop(self.joined.under_way.remove(key)),
        }
        self.adjust_credits();
        next.filter(|next| !next.is_queued).map(|next| next.run)
    }

    /// Adjusts the kernel's credits. A waiting task must not use up a credit of the core's worker. So the kernel gets
    /// one more credit for each waiting task, on extra workers that exist only for this purpose.
    fn adjust_credits(&mut self) {
        let (each, wanted) = (CREDITS_MAX as usize, self.joined.waiting);
        let had = std::mem::replace(&mut self.joined.credits, wanted);
        for number in had.min(wanted) / each..had.max(wanted).div_ceil(each) {
            let worker = WorkerIndex(1 + number as u32);
            let credits = wanted.saturating_sub(number * each).min(each) as u32;
            self.step(FlowEvent::WorkerUp { worker, credits });
        }
    }

    /// Handles the end of a task. A result is memoised, and equal tasks that wait get it, too. Without a result,
    /// returns the next of these tasks, which the caller puts into the queue.
    pub fn end_computation(
        &mut self,
        task: TaskId,
        planned: &PlannedTask,
        result: Option<&Arc<TaskOutcome>>,
    ) -> Option<Run> {
        let key = planned.key.get().map(|key| **key)?;
        let under_way = self.joined.under_way.get(&key);
        if under_way.is_none_or(|under_way| under_way.run.0 != task) {
            // The task got the result of another task, or was cancelled while it waited.
            self.count_cancelled(&key);
            return None;
        }
        let Some(result) = result else {
            return self.next_of(&key);
        };
        if self.flow.memoise(task, key, &mut self.actions)
            && let Some(unwritten) = &mut self.unwritten
        {
            unwritten.push((key, result.clone()));
        }
        let waiting = self.joined.under_way.remove(&key);
        let waiting = waiting.map_or_else(VecDeque::new, |under_way| under_way.waiting);
        self.joined.waiting -= waiting.len();
        for WaitingRun {
            run: (task, attempt), ..
        } in waiting
        {
            let planned = self.flow.payload(task);
            if let Some(times) = planned.and_then(|planned| planned.cell.times.as_ref()) {
                times.ready();
            }
            self.step(FlowEvent::Ended {
                task,
                attempt,
                outcome: local_run_outcome(result.clone()),
            });
        }
        self.adjust_credits();
        None
    }
}
