//! Tasks that depend on others, are retried, or are memoised: the dataflow kernel (`hotlease-flow`) behind the
//! executor. All of it happens under the core's `state` lock, without the GIL.
//!
//! Other tasks do not use this module, unless a task of the kernel needs their result. Such a task is linked: the
//! kernel has a promise for it, and the end of the task resolves the promise. When the kernel starts a task, the task
//! goes into the core's queue like any job, with the bytes of the results that it needs. So the kernel sees one worker,
//! the core. Results are passed on in the form in which they arrived, and are released as soon as neither a future nor
//! a task needs them.

use super::join_table::JoinTable;
use crate::client::tasks::outcome::{TaskOutcome, is_result};
use crate::client::tasks::planned_tasks::PlannedTask;
use crate::client::tasks::state::TaskCell;
use crate::client::tasks::target::Target;
use hotlease_flow::{
    CREDITS_MAX, Flow, FlowAction, FlowEvent, FlowLimits, MemoKey, Reaction, ResultPlace, SubmitError, TaskId,
    WorkerIndex,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Limit of the foreign futures for which tasks wait.
const FOREIGN_MAX: u32 = 1 << 20;

/// An action of the kernel.
pub type GraphAction = FlowAction<Box<PlannedTask>, Arc<TaskOutcome>, Arc<TaskOutcome>>;
/// Failed task (`None`: a foreign future) and its failure (`None`: it was cancelled).
pub type EndCause = (Option<Arc<Target>>, Option<Arc<TaskOutcome>>);

/// Results to write to the checkpoint.
pub type Unwritten = Vec<(MemoKey, Arc<TaskOutcome>)>;

/// State of tasks that depend on others.
pub struct Graph {
    pub flow: Flow<Box<PlannedTask>, Arc<TaskOutcome>, Arc<TaskOutcome>>,
    pub actions: Vec<GraphAction>,
    /// Whether the actions are being carried out.
    pub is_acting: bool,
    /// Causes of the tasks that ended without a result in the step that is being carried out.
    pub causes: HashMap<TaskId, EndCause>,
    /// Bytes of requests that wait.
    pub bytes: usize,
    /// Outcome of all tasks once no worker is left.
    pub ended_by: Option<Arc<TaskOutcome>>,
    /// Equal computations that are under way.
    pub joined: JoinTable,
    /// Results to write to the checkpoint; `None`: there is no checkpoint.
    pub unwritten: Option<Unwritten>,
}

impl Graph {
    /// Makes a graph for at most this many pending tasks. The core enforces this limit; the limit of the kernel is
    /// higher, because the kernel also counts the promises that tasks wait for.
    pub fn new(pending_max: u32) -> Self {
        let limits = FlowLimits {
            pending_max: pending_max.saturating_mul(2).saturating_add(FOREIGN_MAX),
            ..FlowLimits::default()
        };
        let mut graph = Self {
            flow: Flow::new(limits),
            actions: Vec::new(),
            is_acting: false,
            causes: HashMap::new(),
            bytes: 0,
            ended_by: None,
            joined: JoinTable::default(),
            unwritten: None,
        };
        let worker = WorkerIndex(0);
        let credits = CREDITS_MAX;
        graph
            .flow
            .step(FlowEvent::WorkerUp { worker, credits }, &mut graph.actions);
        graph
    }

    /// Restores a result of an earlier program from its checkpoint. Returns `false` if the reply is not a result, its
    /// key is known already, or there is no room.
    pub fn restore(&mut self, key: MemoKey, reply: Vec<u8>) -> bool {
        if !is_result(reply.first().copied()) {
            return false;
        }
        let bytes = reply.len() as u64;
        let outcome = Arc::new(TaskOutcome::Reply(reply.into()));
        self.flow.restore(key, outcome, bytes, &mut self.actions).is_ok()
    }

    pub fn step(&mut self, event: FlowEvent<Arc<TaskOutcome>, Arc<TaskOutcome>>) -> Reaction {
        self.flow.step(event, &mut self.actions)
    }

    pub fn release(&mut self, task: TaskId) {
        self.step(FlowEvent::Release { task });
    }

    pub fn recall(&mut self, key: &MemoKey) -> Option<Arc<TaskOutcome>> {
        let task = self.flow.recall(key)?;
        self.flow.result(task).cloned()
    }

    /// Links a task that has not ended. Returns its identifier in the kernel, or `None` if the task was cancelled.
    pub fn link(&mut self, cell: &TaskCell) -> Result<Option<TaskId>, SubmitError<()>> {
        if let Some(node) = cell.node() {
            return Ok(Some(node));
        }
        let node = self.flow.promise(0)?;
        if cell.link(node) {
            return Ok(Some(node));
        }
        self.step(FlowEvent::Cancel { task: node });
        self.release(node);
        Ok(None)
    }

    /// Returns the results that a task needs, in the order of their numbers, and whether no other task needs any of
    /// them.
    pub fn results(&self, task: TaskId, planned: &PlannedTask) -> (Vec<Arc<TaskOutcome>>, bool) {
        let mut done = planned.done.iter().peekable();
        let mut others = self.flow.inputs(task);
        let mut alone = true;
        let next = |number| match done.next_if(|(at, _)| *at == number) {
            Some((_, outcome)) => Some(outcome.clone()),
            None => others.next().map(|input| {
                alone &= input.alone;
                input.result.clone()
            }),
        };
        let results = (0..planned.inputs).filter_map(next).collect();
        (results, alone)
    }
}

/// Makes the outcome of a run with a result that this process holds.
pub fn local_run_outcome(result: Arc<TaskOutcome>) -> hotlease_flow::RunOutcome<Arc<TaskOutcome>, Arc<TaskOutcome>> {
    let away = result.remote_result().map(|away| away.len());
    let bytes = away.or_else(|| Some(result.bytes()?.len())).unwrap_or(0) as u64;
    let place = ResultPlace::Here;
    hotlease_flow::RunOutcome::Done { result, bytes, place }
}
