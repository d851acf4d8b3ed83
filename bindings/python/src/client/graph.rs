//! Tasks that depend on others, are retried, or are memoised: the dataflow kernel (`hotlease-flow`) behind the
//! executor. All of it happens under the core's `state` lock, without the GIL.
//!
//! Any other task never comes here. A task that another one needs is linked: the kernel has a promise for it, which the
//! end of the task resolves. A task that the kernel wants to run goes into the core's queue like any job, with the
//! bytes of the results that it needs; so the kernel has one worker, the core. Results are passed on as they arrived,
//! and are released as soon as neither a future nor a task needs them.

use super::cell::{Cell, Chain, Known, Outcome, Stage};
use super::core::{Core, State};
use super::job::Target;
use super::joined::Joined;
use super::planned::{Planned, Refused, Source, is_result};
use hotlease_flow::{
    Action, CREDITS_MAX, Event, Flow, Heard, Key, Limits, Phase, Place, Refusal, Task, TaskId, WorkerIndex,
};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

/// Limit of the foreign futures that may be waited for.
const FOREIGN_MAX: u32 = 1 << 20;

type Wanted = Action<Box<Planned>, Arc<Outcome>, Arc<Outcome>>;
/// Failed task (`None`: a foreign future) and its failure (`None`: it was cancelled).
type Cause = (Option<Arc<Target>>, Option<Arc<Outcome>>);

/// State of tasks that depend on others.
pub struct Graph {
    pub(super) flow: Flow<Box<Planned>, Arc<Outcome>, Arc<Outcome>>,
    pub(super) actions: Vec<Wanted>,
    /// The actions are being carried out.
    is_acting: bool,
    /// Causes of the tasks that ended without a result in the step that is being carried out.
    causes: HashMap<TaskId, Cause>,
    /// Bytes of requests that wait.
    pub bytes: usize,
    /// Outcome of all tasks once no worker is left.
    ended_by: Option<Arc<Outcome>>,
    /// Equal computations that are under way.
    pub(super) joined: Joined,
    /// Results to write to the checkpoint; `None`: there is no checkpoint.
    pub unwritten: Option<Vec<(Key, Arc<Outcome>)>>,
}

impl Graph {
    /// Makes a graph for at most this many pending tasks: the core counts those, and the kernel also the promises that
    /// they wait for.
    pub fn new(pending_max: u32) -> Self {
        let limits = Limits {
            pending_max: pending_max.saturating_mul(2).saturating_add(FOREIGN_MAX),
            ..Limits::default()
        };
        let mut graph = Self {
            flow: Flow::new(limits),
            actions: Vec::new(),
            is_acting: false,
            causes: HashMap::new(),
            bytes: 0,
            ended_by: None,
            joined: Joined::default(),
            unwritten: None,
        };
        let worker = WorkerIndex(0);
        let credits = CREDITS_MAX;
        graph
            .flow
            .step(Event::WorkerUp { worker, credits }, &mut graph.actions);
        graph
    }

    /// Restores a result of an earlier program from its checkpoint; false: its key is known already, or there is no
    /// room.
    pub fn restore(&mut self, key: Key, reply: Vec<u8>) -> bool {
        if !is_result(reply.first().copied()) {
            return false;
        }
        let bytes = reply.len() as u64;
        let outcome = Arc::new(Outcome::Reply(reply.into()));
        self.flow.restore(key, outcome, bytes, &mut self.actions).is_ok()
    }

    pub(super) fn step(&mut self, event: Event<Arc<Outcome>, Arc<Outcome>>) -> Heard {
        self.flow.step(event, &mut self.actions)
    }

    fn release(&mut self, task: TaskId) {
        self.step(Event::Release { task });
    }

    fn remembered(&mut self, key: &Key) -> Option<Arc<Outcome>> {
        let task = self.flow.recall(key)?;
        self.flow.result(task).cloned()
    }

    /// Links a task that has not ended; returns the kernel's name of it. `None`: it was cancelled.
    fn link(&mut self, cell: &Cell) -> Result<Option<TaskId>, Refusal<()>> {
        if cell.is_linked()
            && let Some(node) = cell.node()
        {
            return Ok(Some(node));
        }
        let node = self.flow.promise(0)?;
        if cell.link(node) {
            return Ok(Some(node));
        }
        self.step(Event::Cancel { task: node });
        self.release(node);
        Ok(None)
    }

    /// The results that a task needs, in the order of their numbers, and whether no other task needs any of them.
    pub(super) fn results(&self, task: TaskId, planned: &Planned) -> (Vec<Arc<Outcome>>, bool) {
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

impl Core {
    /// Accepts a task that depends on others, or needs more than one run. No other thread knows its cell yet.
    pub fn plan(&self, py: Python<'_>, planned: Box<Planned>, sources: &[Source]) -> Result<(), Refused> {
        self.with_state(py, |state| self.plan_into(state, planned, sources))
    }

    fn plan_into(
        &self,
        mut guard: MutexGuard<'_, State>,
        mut planned: Box<Planned>,
        sources: &[Source],
    ) -> Result<(), Refused> {
        let state = &mut *guard;
        if let Some(closed) = &state.closed {
            return Err(Refused::Closed(closed.clone()));
        }
        let mut nodes = Vec::with_capacity(sources.len());
        let mut done = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let (cell, needed) = match source {
                Source::Foreign(node) => {
                    nodes.push(*node);
                    continue;
                }
                Source::Task(cell, target) => (cell, target),
            };
            let failed = match cell.as_input() {
                Known::Pending => match state.graph.link(cell) {
                    Ok(Some(node)) => {
                        nodes.push(node);
                        continue;
                    }
                    Ok(None) => None,
                    Err(_) => return Err(Refused::Full(planned)),
                },
                Known::Ended(outcome) if outcome.is_result() => {
                    done.push((number as u32, outcome));
                    continue;
                }
                Known::Ended(outcome) => Some(outcome),
                Known::Cancelled => None,
                Known::Taken => return Err(Refused::Again(planned)),
            };
            let chain = Chain::of(planned.target.clone(), needed.as_ref(), failed.as_ref());
            planned.cell.start();
            planned.cell.resolve(Outcome::Dependency(Box::new(chain)));
            self.act(state);
            return Ok(());
        }
        // At most `RESULTS_MAX`.
        (planned.inputs, planned.done) = (sources.len() as u32, done.into());
        if nodes.is_empty() && self.at_once(state, &mut planned) {
            return Ok(());
        }
        let (cell, size, plan) = (planned.cell.clone(), planned.size(), &planned.plan);
        let (priority, retries) = (plan.priority.unwrap_or(0), plan.retries.unwrap_or(0));
        let task = Task::new(planned).priority(priority).retries(retries);
        let graph = &mut state.graph;
        match graph.flow.submit(task, &nodes, &mut graph.actions) {
            Ok(admission) => {
                graph.bytes += size;
                cell.link(admission.task());
            }
            Err(
                Refusal::Full { payload, .. }
                | Refusal::TooManyInputs { payload, .. }
                | Refusal::UnknownInput { payload, .. },
            ) => return Err(Refused::Full(payload)),
        }
        state.pending += 1;
        self.act(state);
        self.refill(state);
        let queued = !state.queue.is_empty();
        drop(guard);
        self.keeper.tell(queued);
        Ok(())
    }

    /// Finishes a task at once if its result is memoised. False: it is not.
    fn at_once(&self, state: &mut State, planned: &mut Box<Planned>) -> bool {
        let results: Vec<_> = planned.done.iter().map(|(_, outcome)| outcome.clone()).collect();
        if Self::is_unknown_yet(planned, &results) {
            return false;
        }
        if let Some(key) = planned.key_of(&results) {
            if let Some(outcome) = state.graph.remembered(&key) {
                planned.cell.start();
                planned.cell.resolve(Outcome::Shared(outcome));
                return true;
            }
            // Set by another thread at the same time: an equal value.
            let _ = planned.key.set(Box::new(key));
        }
        false
    }

    /// Makes a promise for a foreign future, which `end_foreign` resolves.
    pub fn promise(&self) -> Option<TaskId> {
        self.state().graph.flow.promise(0).ok()
    }

    /// Resolves the promise of a foreign future; `None`: the future was cancelled.
    pub fn end_foreign(&self, task: TaskId, outcome: Option<Arc<Outcome>>) {
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
        state: &mut State,
        task: TaskId,
        target: Option<Arc<Target>>,
        outcome: Option<Arc<Outcome>>,
    ) {
        use hotlease_flow::Outcome as End;
        let end = match outcome {
            // No other reference stays here: a result without other holders may be passed on in place.
            Some(outcome) if outcome.is_result() => done(outcome),
            outcome => {
                state.graph.causes.insert(task, (target, outcome.clone()));
                outcome.map_or(End::Stopped, End::Fatal)
            }
        };
        let attempt = 0;
        state.graph.step(Event::Ended {
            task,
            attempt,
            outcome: end,
        });
        self.act(state);
    }

    /// Tells the kernel the end of a run of one of its tasks.
    pub fn ended(&self, state: &mut State, (task, attempt): (TaskId, u32), outcome: Outcome) {
        use hotlease_flow::Outcome as End;
        let outcome = outcome.share();
        let outcome = if outcome.is_result() {
            done(outcome)
        } else if outcome.is_raised() {
            End::Failed(outcome)
        } else {
            End::Fatal(outcome)
        };
        state.graph.step(Event::Ended {
            task,
            attempt,
            outcome,
        });
        self.act(state);
    }

    /// Tells the kernel that a linked task was cancelled.
    pub fn cancelled(&self, state: &mut State, cell: &Cell, target: Option<Arc<Target>>) {
        let Some(task) = cell.node() else { return };
        if state.graph.flow.phase(task).is_some() {
            state.graph.causes.insert(task, (target, None));
            state.graph.step(Event::Cancel { task });
            self.act(state);
        }
    }

    /// The tasks that wait for others, or for their turn.
    pub fn planned(&self, state: &State) -> Vec<(TaskId, Arc<Cell>, Arc<Target>)> {
        let flow = &state.graph.flow;
        let known = |task| {
            let planned = flow.payload(task)?;
            Some((task, planned.cell.clone(), planned.target.clone()))
        };
        flow.pending().filter_map(known).collect()
    }

    /// Ends all tasks that wait, because no worker is left.
    pub fn end_planned(&self, state: &mut State, outcome: Outcome) {
        let outcome = outcome.share();
        state.graph.ended_by = Some(outcome.clone());
        for (task, cell, target) in self.planned(state) {
            // A task on a worker ends by itself.
            let waits = matches!(state.graph.flow.phase(task), Some(Phase::Waiting | Phase::Ready));
            if waits || cell.stage() == Stage::Pending {
                state
                    .graph
                    .causes
                    .insert(task, (Some(target), Some(outcome.clone())));
                state.graph.step(Event::Cancel { task });
                self.act(state);
            }
        }
    }

    /// Carries out the kernel's actions.
    pub(super) fn act(&self, state: &mut State) {
        if std::mem::replace(&mut state.graph.is_acting, true) {
            // The active call goes on until nothing is left.
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

    fn carry_out(&self, state: &mut State, action: Wanted) {
        match action {
            Action::Run { task, attempt, .. } => self.run(state, task, attempt),
            Action::Stop { task, attempt, .. } => {
                // The task is in the queue, and was cancelled there.
                let outcome = hotlease_flow::Outcome::Stopped;
                state.graph.step(Event::Ended {
                    task,
                    attempt,
                    outcome,
                });
            }
            Action::Done { task, payload } => {
                if let Some(planned) = payload
                    && let Some(outcome) = state.graph.flow.result(task).cloned()
                {
                    self.end_task(state, &planned, Outcome::Shared(outcome.clone()));
                    self.computed(state, task, &planned, Some(&outcome));
                }
                state.graph.release(task);
            }
            Action::Failed { task, payload, root } => {
                if let Some(planned) = payload {
                    let outcome = self.failure(state, task, root, &planned.target);
                    let cause = (Some(planned.target.clone()), Some(outcome.clone()));
                    state.graph.causes.insert(task, cause);
                    self.end_task(state, &planned, Outcome::Shared(outcome));
                    self.computed(state, task, &planned, None);
                }
                state.graph.release(task);
            }
            Action::Cancelled { task, payload } => {
                if let Some(planned) = payload {
                    let by = state.graph.ended_by.clone();
                    let cause = (Some(planned.target.clone()), by.clone());
                    state.graph.causes.insert(task, cause);
                    // The task was not cancelled: its executor has no workers.
                    let gone = || Outcome::Unprepared("its executor has no workers".into());
                    self.end_task(state, &planned, by.map_or_else(gone, Outcome::Shared));
                    self.computed(state, task, &planned, None);
                }
                state.graph.release(task);
            }
            // All results are held in this process; dropping the action releases them.
            Action::Retried { .. }
            | Action::Dropped { .. }
            | Action::Lost { .. }
            | Action::Forward { .. }
            | Action::Fetch { .. }
            | Action::Forget { .. }
            | Action::Room { .. } => {}
        }
    }

    fn failure(&self, state: &State, task: TaskId, root: TaskId, target: &Arc<Target>) -> Arc<Outcome> {
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
        let (needed, outcome) = needed.map_or((None, None), |(target, outcome)| {
            (target.as_ref(), outcome.as_ref())
        });
        let chain = Chain::of(target.clone(), needed, outcome);
        Arc::new(Outcome::Dependency(Box::new(chain)))
    }

    /// Gives a task that the kernel has ended its outcome, unless it was cancelled.
    fn end_task(&self, state: &mut State, planned: &Planned, outcome: Outcome) {
        state.pending -= 1;
        state.graph.bytes -= planned.size();
        if let Some(away) = &planned.makes {
            return self.has_come(state, away, outcome);
        }
        let cell = &planned.cell;
        if (cell.start() || cell.stage() == Stage::Running) && cell.resolve(outcome) {
            self.finish_later(cell.clone());
        }
    }

    /// Runs a task whose inputs are complete, unless its result is memoised or an equal task is running.
    pub(super) fn run(&self, state: &mut State, task: TaskId, attempt: u32) {
        let graph = &mut state.graph;
        let Some(planned) = graph.flow.payload(task) else {
            return;
        };
        let (results, alone) = graph.results(task, planned);
        if Self::is_unknown_yet(planned, &results) && self.awaits(state, (task, attempt), &results, true) {
            return;
        }
        let graph = &mut state.graph;
        let Some(planned) = graph.flow.payload(task) else {
            return;
        };
        if planned.key.get().is_none()
            && let Some(key) = planned.key_of(&results)
        {
            // Set by another thread at the same time: an equal value.
            let _ = planned.key.set(Box::new(key));
        }
        if let Some(key) = planned.key.get().map(|key| **key) {
            if let Some(outcome) = graph.remembered(&key) {
                let outcome = done(outcome);
                graph.step(Event::Ended {
                    task,
                    attempt,
                    outcome,
                });
                return;
            }
            if graph.join(key, (task, attempt)) {
                return;
            }
        }
        self.start(state, (task, attempt), &results, alone);
    }
}

/// End of a run with a result that this process holds.
pub(super) fn done(result: Arc<Outcome>) -> hotlease_flow::Outcome<Arc<Outcome>, Arc<Outcome>> {
    let away = result.away().map(|away| away.len());
    let bytes = away.or_else(|| Some(result.bytes()?.len())).unwrap_or(0) as u64;
    let place = Place::Here;
    hotlease_flow::Outcome::Done { result, bytes, place }
}
