//! Tasks that depend on others, are retried, or are memoised: the core's calls to the dataflow kernel
//! ([`crate::client::dataflow`]), and the execution of its actions. All of it happens under the `state` lock and
//! without the GIL.

use super::{Closed, CoreState, ExecutorCore};
use crate::client::dataflow::graph::{EndCause, GraphAction, local_run_outcome};
use crate::client::tasks::Run;
use crate::client::tasks::job::InputPlace;
use crate::client::tasks::outcome::{Failed, FailureChain, TaskOutcome};
use crate::client::tasks::planned_tasks::PlannedTask;
use crate::client::tasks::state::{InputState, Stage, TaskCell};
use crate::client::tasks::target::Target;
use hotlease_flow::{FlowAction, FlowEvent, FlowTask, SubmitError, TaskId, TaskPhase};
use pyo3::prelude::*;
use std::sync::{Arc, MutexGuard};

/// Input of a task.
pub enum PlannedInput {
    /// A task of this executor.
    Task(Arc<TaskCell>, Option<Arc<Target>>),
    /// A foreign future, by the identifier of its promise in the kernel.
    Foreign(TaskId),
}

/// Reason why a task was not accepted.
pub enum PlanRefusal {
    /// The executor is closed.
    Closed(Closed),
    /// There are too many tasks; the refused task is returned.
    Full(Box<PlannedTask>),
    /// A result that the task needs was decoded meanwhile: the task has to be encoded again.
    Encode(Box<PlannedTask>),
}

/// Returns the location of these results: all are in this process, or some are with workers.
fn place_of(state: &CoreState, results: &[Arc<TaskOutcome>]) -> InputPlace {
    let away = || results.iter().filter_map(|result| result.remote_result());
    if away().all(|away| away.local_outcome().is_some()) {
        return InputPlace::Request;
    }
    let largest = away().max_by_key(|away| away.len());
    let nearest = largest.and_then(|largest| state.lane_of(largest));
    let nearest = nearest.map(|slot| slot as u32);
    InputPlace::Workers { nearest }
}

impl ExecutorCore {
    /// Accepts a task that depends on other tasks, or may need more than one run. `sources`: the futures among its
    /// arguments. The caller guarantees that no other thread has the task's cell yet.
    pub fn plan(&self, py: Python<'_>, planned: Box<PlannedTask>, sources: &[PlannedInput]) -> Result<(), PlanRefusal> {
        self.with_state(py, |state| self.plan_into(state, planned, sources))
    }

    fn plan_into(
        &self,
        mut guard: MutexGuard<'_, CoreState>,
        mut planned: Box<PlannedTask>,
        sources: &[PlannedInput],
    ) -> Result<(), PlanRefusal> {
        let state = &mut *guard;
        if let Some(closed) = &state.closed {
            return Err(PlanRefusal::Closed(closed.clone()));
        }
        let mut nodes = Vec::with_capacity(sources.len());
        let mut done = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let (cell, needed) = match source {
                PlannedInput::Foreign(node) => {
                    nodes.push(*node);
                    continue;
                }
                PlannedInput::Task(cell, target) => (cell, target),
            };
            let failed = match cell.as_input() {
                InputState::Pending => match state.graph.link(cell) {
                    Ok(Some(node)) => {
                        nodes.push(node);
                        continue;
                    }
                    Ok(None) => None,
                    Err(_) => return Err(PlanRefusal::Full(planned)),
                },
                InputState::Ended(outcome) if outcome.is_result() => {
                    done.push((number as u32, outcome));
                    continue;
                }
                InputState::Ended(outcome) => Some(outcome),
                InputState::Cancelled => None,
                InputState::Decoded => return Err(PlanRefusal::Encode(planned)),
            };
            let chain = FailureChain::of(planned.target.clone(), needed.as_ref(), failed.as_ref());
            planned.cell.start();
            planned.cell.resolve(TaskOutcome::Dependency(Box::new(chain)));
            self.act(state);
            return Ok(());
        }
        // The cast is exact, because there are at most `RESULTS_MAX` sources.
        (planned.inputs, planned.done) = (sources.len() as u32, done.into());
        if nodes.is_empty() && self.finish_memoised(state, &mut planned) {
            return Ok(());
        }
        let (cell, size) = (planned.cell.clone(), planned.size());
        let (priority, retries) = (planned.policy.priority, planned.policy.retries);
        let task = FlowTask::new(planned).priority(priority).retries(retries);
        let graph = &mut state.graph;
        match graph.flow.submit(task, &nodes, &mut graph.actions) {
            Ok(admission) => {
                graph.bytes += size;
                cell.link(admission.task());
            }
            Err(
                SubmitError::Full { payload, .. }
                | SubmitError::TooManyInputs { payload, .. }
                | SubmitError::UnknownInput { payload, .. },
            ) => return Err(PlanRefusal::Full(payload)),
        }
        state.pending += 1;
        self.act(state);
        self.refill(state);
        let queued = !state.queue.is_empty();
        drop(guard);
        self.keeper.tell(queued);
        Ok(())
    }

    /// Finishes a task at once if its result is memoised. Returns whether the task was finished.
    fn finish_memoised(&self, state: &mut CoreState, planned: &mut Box<PlannedTask>) -> bool {
        let results: Vec<_> = planned.done.iter().map(|(_, outcome)| outcome.clone()).collect();
        if planned.is_key_unknown_yet(&results) {
            return false;
        }
        if let Some(key) = planned.key_of(&results) {
            if let Some(outcome) = state.graph.recall(&key) {
                planned.cell.start();
                planned.cell.resolve(TaskOutcome::Shared(outcome));
                return true;
            }
            // Another thread may have set the key at the same time, to an equal value.
            let _ = planned.key.set(Box::new(key));
        }
        false
    }

    /// Makes a promise for a foreign future; `end_foreign` resolves the promise. Returns `None` if there are too many
    /// tasks.
    pub fn promise(&self) -> Option<TaskId> {
        self.state().graph.flow.promise(0).ok()
    }

    /// Resolves the promise of a foreign future. An `outcome` of `None` means that the future was cancelled.
    pub fn end_foreign(&self, task: TaskId, outcome: Option<Arc<TaskOutcome>>) {
        let mut state = self.state();
        self.end_promise(&mut state, task, None, outcome);
        self.refill(&mut state);
        let queued = !state.queue.is_empty();
        drop(state);
        self.keeper.tell(queued);
        self.tell_followers();
    }

    /// Resolves the kernel's promise for a linked task with the outcome of the task.
    pub fn end_promise(
        &self,
        state: &mut CoreState,
        task: TaskId,
        target: Option<Arc<Target>>,
        outcome: Option<Arc<TaskOutcome>>,
    ) {
        use hotlease_flow::RunOutcome as End;
        let end = match outcome {
            // The outcome is moved, so that this function keeps no reference: a result with one holder may be passed on
            // without a copy.
            Some(outcome) if outcome.is_result() => local_run_outcome(outcome),
            outcome => {
                state.graph.causes.insert(task, (target, outcome.clone()));
                outcome.map_or(End::Stopped, End::Fatal)
            }
        };
        let attempt = 0;
        state.graph.step(FlowEvent::Ended {
            task,
            attempt,
            outcome: end,
        });
        self.act(state);
    }

    /// Reports the end of a run of a task to the kernel.
    pub fn end_run(&self, state: &mut CoreState, (task, attempt): (TaskId, u32), outcome: TaskOutcome) {
        use hotlease_flow::RunOutcome as End;
        let outcome = outcome.share();
        let outcome = if outcome.is_result() {
            local_run_outcome(outcome)
        } else if outcome.is_raised() {
            End::Failed(outcome)
        } else {
            End::Fatal(outcome)
        };
        state.graph.step(FlowEvent::Ended { task, attempt, outcome });
        self.act(state);
    }

    /// Cancels a task in the kernel, for this cause.
    pub fn cancel_in_graph(&self, state: &mut CoreState, task: TaskId, cause: EndCause) {
        state.graph.causes.insert(task, cause);
        state.graph.step(FlowEvent::Cancel { task });
        self.act(state);
    }

    /// Returns the kernel's tasks that have not ended, each with its cell and function.
    pub fn planned(&self, state: &CoreState) -> Vec<(TaskId, Arc<TaskCell>, Arc<Target>)> {
        let flow = &state.graph.flow;
        let known = |task| {
            let planned = flow.payload(task)?;
            Some((task, planned.cell.clone(), planned.target.clone()))
        };
        flow.pending().filter_map(known).collect()
    }

    /// Ends all waiting tasks with this outcome, because no worker is left.
    pub fn end_planned(&self, state: &mut CoreState, outcome: TaskOutcome) {
        let outcome = outcome.share();
        state.graph.ended_by = Some(outcome.clone());
        for (task, cell, target) in self.planned(state) {
            // A task on a worker ends by itself.
            let waits = matches!(
                state.graph.flow.phase(task),
                Some(TaskPhase::Waiting | TaskPhase::Ready)
            );
            if waits || cell.stage() == Stage::Pending {
                self.cancel_in_graph(state, task, (Some(target), Some(outcome.clone())));
            }
        }
    }

    /// Carries out the kernel's actions.
    pub fn act(&self, state: &mut CoreState) {
        if std::mem::replace(&mut state.graph.is_acting, true) {
            // A call of this function that is running already carries out these actions, too.
            return;
        }
        while !state.graph.actions.is_empty() {
            let mut actions = std::mem::take(&mut state.graph.actions);
            for action in actions.drain(..) {
                self.carry_out(state, action);
            }
            if state.graph.actions.is_empty() {
                state.graph.actions = actions;
                break;
            }
        }
        if !state.graph.causes.is_empty() {
            state.graph.causes.clear();
        }
        state.graph.is_acting = false;
    }

    fn carry_out(&self, state: &mut CoreState, action: GraphAction) {
        match action {
            FlowAction::Run { task, attempt, .. } => self.run(state, task, attempt),
            FlowAction::Stop { task, attempt, .. } => {
                // The task is in the queue, and was cancelled there.
                let outcome = hotlease_flow::RunOutcome::Stopped;
                state.graph.step(FlowEvent::Ended { task, attempt, outcome });
            }
            FlowAction::Done { task, payload } => {
                if let Some(planned) = payload
                    && let Some(outcome) = state.graph.flow.result(task).cloned()
                {
                    self.end_task(state, &planned, TaskOutcome::Shared(outcome.clone()));
                    self.end_computation(state, task, &planned, Some(&outcome));
                }
                state.graph.release(task);
            }
            FlowAction::Failed { task, payload, root } => {
                if let Some(planned) = payload {
                    let outcome = self.failure(state, task, root, &planned.target);
                    let cause = (Some(planned.target.clone()), Some(outcome.clone()));
                    state.graph.causes.insert(task, cause);
                    self.end_task(state, &planned, TaskOutcome::Shared(outcome));
                    self.end_computation(state, task, &planned, None);
                }
                state.graph.release(task);
            }
            FlowAction::Cancelled { task, payload } => {
                if let Some(planned) = payload {
                    let by = state.graph.ended_by.clone();
                    let cause = (Some(planned.target.clone()), by.clone());
                    state.graph.causes.insert(task, cause);
                    // The task was not cancelled: its executor has no workers.
                    let gone = || TaskOutcome::Unprepared("its executor has no workers".into());
                    self.end_task(state, &planned, by.map_or_else(gone, TaskOutcome::Shared));
                    self.end_computation(state, task, &planned, None);
                }
                state.graph.release(task);
            }
            // Nothing to do: all results are in this process, and dropping the action releases them.
            FlowAction::Retried { .. }
            | FlowAction::Dropped { .. }
            | FlowAction::Lost { .. }
            | FlowAction::Forward { .. }
            | FlowAction::Fetch { .. }
            | FlowAction::Forget { .. }
            | FlowAction::Room { .. } => {}
        }
    }

    /// Outcome of a task that failed: its own error, or else the chain of tasks that leads to the first error.
    fn failure(&self, state: &CoreState, task: TaskId, root: TaskId, target: &Arc<Target>) -> Arc<TaskOutcome> {
        let graph = &state.graph;
        if task == root
            && let Some(error) = graph.flow.error(task)
        {
            return error.clone();
        }
        if let Some(by) = &graph.ended_by {
            return by.clone();
        }
        let needed = graph
            .flow
            .chain(task)
            .nth(1)
            .and_then(|needed| graph.causes.get(&needed));
        let (needed, outcome) = needed.map_or((None, None), |(target, outcome)| (target.as_ref(), outcome.as_ref()));
        let chain = FailureChain::of(target.clone(), needed, outcome);
        Arc::new(TaskOutcome::Dependency(Box::new(chain)))
    }

    /// Sets the outcome of a task that has ended in the kernel, unless the task was cancelled.
    fn end_task(&self, state: &mut CoreState, planned: &PlannedTask, outcome: TaskOutcome) {
        state.pending -= 1;
        state.graph.bytes -= planned.size();
        if let Some(away) = &planned.makes {
            return self.complete_fetch(state, away, outcome);
        }
        let cell = &planned.cell;
        if cell.start() && cell.resolve(outcome).is_watched {
            self.finish_later(cell.clone());
        }
    }

    /// Runs a task whose inputs are complete, unless its result is memoised or an equal task is running.
    pub fn run(&self, state: &mut CoreState, task: TaskId, attempt: u32) {
        let graph = &mut state.graph;
        let Some(planned) = graph.flow.payload(task) else {
            return;
        };
        let (results, alone) = graph.results(task, planned);
        if planned.is_key_unknown_yet(&results) && self.await_inputs(state, (task, attempt), &results, true) {
            return;
        }
        let graph = &mut state.graph;
        let Some(planned) = graph.flow.payload(task) else {
            return;
        };
        if planned.key.get().is_none()
            && let Some(key) = planned.key_of(&results)
        {
            // Another thread may have set the key at the same time, to an equal value.
            let _ = planned.key.set(Box::new(key));
        }
        if let Some(key) = planned.key.get().map(|key| **key) {
            if let Some(outcome) = graph.recall(&key) {
                let outcome = local_run_outcome(outcome);
                graph.step(FlowEvent::Ended { task, attempt, outcome });
                return;
            }
            if graph.join(key, (task, attempt)) {
                return;
            }
        }
        self.start(state, (task, attempt), &results, alone);
    }

    /// Handles the end of a task for which tasks with the same key may wait. If the task has no result for them, starts
    /// the next of them.
    fn end_computation(
        &self,
        state: &mut CoreState,
        task: TaskId,
        planned: &PlannedTask,
        result: Option<&Arc<TaskOutcome>>,
    ) {
        // The key of an unguarded request was computed before the executor's first lease in a sandbox: a result that
        // may come from a sandbox is not memoised under such a key.
        let result = result.filter(|_| planned.payload.is_guarded() || self.guard().is_none());
        let graph = &mut state.graph;
        if let Some(run) = graph.end_computation(task, planned, result)
            && let Some(planned) = graph.flow.payload(run.0)
        {
            let (results, alone) = graph.results(run.0, planned);
            self.start(state, run, &results, alone);
        }
    }

    /// Puts a task whose inputs are complete into the queue.
    pub fn start(&self, state: &mut CoreState, (task, attempt): Run, results: &[Arc<TaskOutcome>], alone: bool) {
        if self.await_inputs(state, (task, attempt), results, false) {
            return;
        }
        let inputs = place_of(state, results);
        let graph = &mut state.graph;
        let Some(planned) = graph.flow.payload(task) else {
            return;
        };
        match planned.request(results, alone, &self.invoker, &self.pool) {
            Ok(payload) => {
                if let Some(times) = &planned.cell.times {
                    times.ready();
                }
                state.queue.push_back(planned.job((task, attempt), payload, inputs));
            }
            Err(error) => {
                let outcome = TaskOutcome::Failed(Box::new(Failed { error, deaths: 0 }));
                let outcome = hotlease_flow::RunOutcome::Fatal(Arc::new(outcome));
                graph.step(FlowEvent::Ended { task, attempt, outcome });
            }
        }
    }
}
