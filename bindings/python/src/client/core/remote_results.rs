//! Remote results as the core handles them ([`crate::client::tasks::remote_results`]): they are kept with their
//! workers, brought to the client, made again, or released. All of it happens under the core's `state` lock.

use super::lane::Recipient;
use super::{CoreState, ExecutorCore};
use crate::client::tasks::Run;
use crate::client::tasks::job::{GraphRun, InputPlace, TaskJob, Waiter};
use crate::client::tasks::outcome::{FailureChain, TaskOutcome};
use crate::client::tasks::planned_tasks::PlannedTask;
use crate::client::tasks::remote_results::{Remake, RemotePlace, RemoteResult};
use crate::client::tasks::state::TaskCell;
use crate::client::tasks::target::{Rerun, TaskPlan};
use hotlease_flow::{FlowEvent, FlowTask};
use hotlease_wire::task::left_results::LeftResult;
use hotlease_wire::task::request;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

/// Limit of the argument bytes that the client keeps to make a result again; over this limit, the result is fetched at
/// once.
const AGAIN_BYTES_MAX: usize = 1 << 20;
/// Limit of the length of a chain of results. Each result of a chain can only be made again from the previous result,
/// and so keeps the previous result alive.
const AGAIN_DEPTH_MAX: usize = 16;
/// Limit of results in one release request to a worker.
const RELEASED_AT_ONCE: usize = 64;

impl CoreState {
    /// Returns the slot whose worker has the result. Returns `None` if that worker is gone, or the result is at the
    /// client.
    pub fn lane_of(&self, away: &RemoteResult) -> Option<usize> {
        let lane = self.lanes.get(away.place.lane)?;
        (away.local_outcome().is_none() && lane.worker == away.place.worker && lane.is_usable())
            .then_some(away.place.lane)
    }
}

impl ExecutorCore {
    /// Handles a reply which says that the worker keeps the result. The result stays with the worker if only tasks need
    /// it; otherwise it is fetched.
    pub fn keep_remote(&self, state: &mut CoreState, at: usize, job: TaskJob, told: &[u8]) {
        let left = match LeftResult::decode(told) {
            // The client asks workers to keep results only where no memory is shared.
            Ok(left) if !state.lanes[at].shares_memory => left,
            _ => return self.lose_result(state, job, "its reply does not say where its result is"),
        };
        let bytes = usize::try_from(left.bytes).unwrap_or(usize::MAX);
        job.target.estimates.size.learn(bytes);
        let again = match job.rerun {
            Rerun::Allowed => again(state, &job),
            Rerun::Forbidden => None,
        };
        let may_stay = is_for_tasks_only(state, &job) && (again.is_some() || job.rerun == Rerun::Forbidden);
        let lane = &mut state.lanes[at];
        if !may_stay && lane.is_usable() {
            lane.keep(Recipient::Task(job), left.ticket, bytes);
            return self.fetch_kept(state, at);
        }
        if !may_stay {
            return self.lose_result(state, job, "its worker died before the result was fetched");
        }
        let away = RemoteResult {
            told: left.encode(),
            place: RemotePlace {
                lane: at,
                worker: lane.worker,
                ticket: left.ticket,
            },
            bytes,
            target: job.target.clone(),
            again,
            here: OnceLock::new(),
            wanted: Mutex::default(),
            releases: self.releases.clone(),
        };
        self.resolve(state, job, TaskOutcome::Away(Arc::new(away)));
    }

    /// Restarts a task that did not run because its worker could not fetch a remote result. First, the results that the
    /// task needs are brought to the client.
    pub fn restart_with_inputs(&self, state: &mut CoreState, job: TaskJob) {
        let Waiter::Graph(GraphRun {
            run,
            inputs: InputPlace::Workers { .. },
            ..
        }) = job.waiter
        else {
            return self.lose_result(state, job, "its worker misses a result that it was sent");
        };
        drop(job);
        let Some(planned) = state.graph.flow.payload(run.0) else {
            return;
        };
        let (results, alone) = state.graph.results(run.0, planned);
        results
            .iter()
            .filter_map(|result| result.remote_result())
            .for_each(|away| away.require_here());
        self.start(state, run, &results, alone);
        self.act(state);
    }

    /// Returns `true` if a run has to wait until remote results are at the client, or has ended because such a result
    /// is lost. `results`: the results that the run takes as inputs. `all`: the run needs the bytes of all of them at
    /// the client.
    pub fn await_inputs(&self, state: &mut CoreState, run: Run, results: &[Arc<TaskOutcome>], all: bool) -> bool {
        let missing = |away: &&Arc<RemoteResult>| {
            away.local_outcome().is_none() && (all || away.lock_fetch().is_wanted || state.lane_of(away).is_none())
        };
        let missing: Vec<_> = results
            .iter()
            .filter_map(|result| result.remote_result())
            .filter(missing)
            .cloned()
            .collect();
        for away in &missing {
            self.bring(state, away, run);
        }
        if !missing.is_empty() {
            return true;
        }
        let lost = |away: &&Arc<RemoteResult>| away.local_outcome().is_some_and(|here| !here.is_result());
        let Some(away) = results.iter().filter_map(|result| result.remote_result()).find(lost) else {
            return false;
        };
        let (Some(planned), Some(why)) = (state.graph.flow.payload(run.0), away.local_outcome()) else {
            return true;
        };
        let chain = FailureChain::of(planned.target.clone(), Some(&away.target), Some(why));
        let outcome = hotlease_flow::RunOutcome::Fatal(TaskOutcome::Dependency(Box::new(chain)).share());
        let (task, attempt) = run;
        state.graph.step(FlowEvent::Ended { task, attempt, outcome });
        true
    }

    /// Brings a result to the client; `run` continues when the result has arrived.
    fn bring(&self, state: &mut CoreState, away: &Arc<RemoteResult>, run: Run) {
        // The result may have arrived, or been lost, since the caller looked.
        let mut wanted = away.lock_fetch();
        if away.local_outcome().is_some() || wanted.runs.contains(&run) {
            return;
        }
        wanted.runs.push(run);
        if std::mem::replace(&mut wanted.is_asked, true) {
            return;
        }
        drop(wanted);
        match state.lane_of(away) {
            Some(at) => {
                state.pending += 1;
                state.lanes[at].keep(Recipient::Client(away.clone()), away.place.ticket, away.bytes);
                self.fetch_kept(state, at);
                self.version.fetch_add(1, Ordering::Release);
            }
            None => self.remake(state, away, "its worker is gone".into()),
        }
    }

    /// Ends the request to bring a result to the client, with the result or the reason why there is none.
    pub fn end_fetch(&self, state: &mut CoreState, away: &Arc<RemoteResult>, result: Result<TaskOutcome, String>) {
        state.pending -= 1;
        match result {
            Ok(outcome) if outcome.is_result() => self.complete_fetch(state, away, outcome),
            Ok(_) => self.remake(state, away, "its worker does not have it any more".into()),
            Err(why) => self.remake(state, away, why),
        }
        self.act(state);
    }

    /// Handles the loss of a result: the task that made it runs again, if that is allowed.
    fn remake(&self, state: &mut CoreState, away: &Arc<RemoteResult>, why: String) {
        let lost = |core: &Self, state: &mut CoreState| {
            let text = format!("{why}, and the program had not fetched the result, because only tasks needed it");
            core.complete_fetch(state, away, TaskOutcome::Lost(text.into()));
        };
        let Some(again) = away.again.as_ref().filter(|_| state.can_resend()) else {
            return lost(self, state);
        };
        let plan = TaskPlan {
            rerun: Some(Rerun::Allowed),
            ..TaskPlan::default()
        };
        let cell = Arc::new(TaskCell::new(None));
        let policy = plan.settle(&away.target);
        let mut planned = PlannedTask::new(cell, away.target.clone(), again.payload.copy(), policy);
        planned.inputs = again.inputs.len() as u32;
        planned.done = (0..).zip(again.inputs.iter().cloned()).collect();
        planned.makes = Some(away.clone());
        let size = planned.size();
        let graph = &mut state.graph;
        match graph.flow.submit(FlowTask::new(planned), &[], &mut graph.actions) {
            Ok(_) => {
                graph.bytes += size;
                state.pending += 1;
            }
            Err(_) => lost(self, state),
        }
    }

    /// Stores the outcome of a fetched or remade result and continues the runs that waited for it.
    pub fn complete_fetch(&self, state: &mut CoreState, away: &RemoteResult, outcome: TaskOutcome) {
        // Set once; a second call changes nothing.
        let _ = away.here.set(outcome.share());
        let runs = std::mem::take(&mut away.lock_fetch().runs);
        for run in runs {
            let graph = &state.graph;
            let Some(planned) = graph.flow.payload(run.0) else {
                continue;
            };
            match planned.key.get() {
                // A run with a key has already looked up its result in the memo table.
                Some(_) => {
                    let (results, alone) = graph.results(run.0, planned);
                    self.start(state, run, &results, alone);
                }
                None => self.run(state, run.0, run.1),
            }
        }
    }

    /// Tells workers which results they may release.
    #[inline]
    pub fn release_left(&self, state: &mut CoreState) {
        if self.releases.any.load(Ordering::Acquire) {
            self.tell_released(state);
        }
    }

    /// Whether results wait to be released.
    pub fn has_released(&self) -> bool {
        self.releases.any.load(Ordering::Acquire)
    }

    #[cold]
    fn tell_released(&self, state: &mut CoreState) {
        self.releases.any.store(false, Ordering::Release);
        let mut list = std::mem::take(&mut *self.releases.list());
        for (at, lane) in state.lanes.iter_mut().enumerate() {
            // Results of an earlier worker of the slot are gone with that worker.
            list.retain(|place| place.lane != at || place.worker == lane.worker && !lane.is_dead);
            let is_its = |place: &&RemotePlace| place.lane == at;
            let its: Vec<_> = list.iter().filter(is_its).take(RELEASED_AT_ONCE).collect();
            if its.is_empty() {
                continue;
            }
            let tickets = its.iter().flat_map(|place| place.ticket.to_le_bytes());
            let mut payload = vec![0; request::HEAD_BYTES];
            payload[0] = request::RELEASE;
            payload.extend(tickets);
            let number = its.len();
            if lane.release(&payload) {
                state.pending += 1;
                self.version.fetch_add(1, Ordering::Release);
                let mut told = 0;
                list.retain(|place| {
                    let goes = place.lane == at && told < number;
                    told += usize::from(goes);
                    !goes
                });
            }
        }
        if !list.is_empty() {
            self.releases.list().append(&mut list);
            self.releases.any.store(true, Ordering::Release);
        }
    }
}

/// Whether only other tasks need the result of a task: its future is dropped, and the result is not memoised.
fn is_for_tasks_only(state: &CoreState, job: &TaskJob) -> bool {
    // For a task of the graph, the graph has one more reference to the cell.
    let (cell, holders) = match &job.waiter {
        Waiter::Future(cell) => (cell, 1),
        Waiter::Graph(GraphRun { cell, .. }) => (cell, 2),
        Waiter::Worker => return false,
    };
    let node = cell.node().filter(|_| job.waiter.lets_result_stay());
    Arc::strong_count(cell) <= holders && node.is_some_and(|node| state.graph.flow.is_needed(node))
}

/// Returns what is needed to make a result again. Returns `None` if that exceeds the limits of bytes or depth.
fn again(state: &CoreState, job: &TaskJob) -> Option<Remake> {
    let (payload, inputs) = match job.waiter.run() {
        None => (&job.payload, Vec::new()),
        Some((task, _)) => {
            let planned = state.graph.flow.payload(task)?;
            (&planned.payload, state.graph.results(task, planned).0)
        }
    };
    let kept = inputs
        .iter()
        .map(|input| input.bytes().map_or(0, <[u8]>::len))
        .sum::<usize>();
    let deepest = inputs
        .iter()
        .filter_map(|input| Some(input.remote_result()?.depth() + 1))
        .max();
    let depth = deepest.unwrap_or(0);
    let fits = payload.bytes().len() + kept <= AGAIN_BYTES_MAX && depth <= AGAIN_DEPTH_MAX;
    fits.then(|| Remake {
        payload: payload.copy(),
        inputs,
        depth,
    })
}
