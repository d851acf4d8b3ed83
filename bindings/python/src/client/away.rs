//! Results that stay with the workers that made them, on other hosts, where only other tasks need them: those get them from there,
//! and no byte of them comes here.
//!
//! ```text
//!   its worker says so          something needs it here          its worker has it        it runs again where it may
//!  ─────────────────► Away ────────────────────────────► asked ──────────────────► here ◄──────────────────┐
//!                       │                                  └── its worker is gone, or has lost it ─────────┤
//!                       └── nobody needs it any more: its worker is told                   lost ◄──────────┘ else
//! ```
//!
//! A task that needs such a result is sent what its maker said of it, and its worker gets it by that. Where it does not (no way leads
//! from one host to the other, or the maker is gone), the task did not run: the result is brought here and sent along, as if it had
//! never been away. All of it happens under the core's `state`.

use super::cell::{Cell, Chain, Outcome};
use super::core::{Core, State};
use super::job::{Errand, Job, Memo, Payload, Plan, Target};
use super::planned::Planned;
use hotlease_flow::{Event, Task, TaskId};
use hotlease_wire::task::left::{LEFT_REPLY_BYTES, Left};
use hotlease_wire::task::request;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

/// Bytes of arguments that are kept here to make a result once more; a result of more is brought here at once.
const AGAIN_BYTES_MAX: usize = 1 << 20;
/// Results in a row each of which could be made once more only of the one before, and so keeps it.
const AGAIN_DEPTH_MAX: usize = 16;
/// Results that a worker is told of at a time.
const RELEASED_AT_ONCE: usize = 64;

/// A run of a task of the graph's.
pub type Run = (TaskId, u32);

/// A result that is elsewhere.
pub struct Away {
    /// The reply that says where; what needs it is sent this instead of it.
    told: [u8; LEFT_REPLY_BYTES],
    place: Place,
    bytes: usize,
    target: Arc<Target>,
    /// How to make it once more, where that may be.
    again: Option<Again>,
    /// Once it was brought here: a result, or why there is none.
    here: OnceLock<Arc<Outcome>>,
    wanted: Mutex<Wanted>,
    releases: Arc<Releases>,
}

/// Where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Slot.
    lane: usize,
    /// Which of the workers that the slot has had.
    worker: u64,
    ticket: u64,
}

#[derive(Default)]
struct Wanted {
    /// Not there but here.
    is_wanted: bool,
    /// It is on its way.
    is_asked: bool,
    /// What goes on once it is here.
    runs: Vec<Run>,
}

/// What made a result, and may do so again.
pub struct Again {
    payload: Payload,
    inputs: Vec<Arc<Outcome>>,
    depth: usize,
}

impl Away {
    /// What came of bringing it here; `None`: it is not here.
    pub fn here(&self) -> Option<&Arc<Outcome>> {
        self.here.get()
    }

    /// What tasks that need it are sent: it, or where it is.
    pub fn sent(&self) -> Option<&[u8]> {
        self.here().map_or(Some(&self.told), |here| here.bytes())
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The slot that has it, if that still has the worker.
    pub fn lane(&self, state: &State) -> Option<usize> {
        let lane = state.lanes.get(self.place.lane)?;
        (self.here().is_none() && lane.worker == self.place.worker && lane.is_usable())
            .then_some(self.place.lane)
    }

    fn depth(&self) -> usize {
        self.again.as_ref().map_or(0, |again| again.depth)
    }

    /// Nobody gets it from where it is.
    fn want(&self) {
        self.wanted().is_wanted = true;
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if self.here().is_none() {
            self.releases.push(Released {
                place: self.place,
                target: self.target.clone(),
            });
        }
    }
}

/// Results that nobody needs any more, until their workers are told.
#[derive(Default)]
pub struct Releases {
    any: AtomicBool,
    list: Mutex<Vec<Released>>,
    keeper: OnceLock<Thread>,
}

struct Released {
    place: Place,
    target: Arc<Target>,
}

impl Releases {
    /// Who is woken when there are some.
    pub fn wake(&self, keeper: Thread) {
        // Said once.
        let _ = self.keeper.set(keeper);
    }

    fn push(&self, released: Released) {
        self.list().push(released);
        self.any.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Released>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outcome {
    /// A result that is, or was, elsewhere.
    pub fn away(&self) -> Option<&Arc<Away>> {
        match self {
            Self::Away(away) => Some(away),
            Self::Shared(shared) => shared.away(),
            _ => None,
        }
    }

    /// The result as other tasks are sent it.
    pub fn sent(&self) -> Option<&[u8]> {
        match self.away() {
            Some(away) => away.sent(),
            None => self.bytes(),
        }
    }
}

impl Core {
    /// The worker of a slot says that a task's result stays with it. It does, if nothing needs it but tasks; else it is fetched.
    pub fn left(&self, state: &mut State, at: usize, job: Job, told: &[u8]) {
        let left = match Left::decode(told) {
            // Nobody asks for that where memory is shared.
            Ok(left) if !state.lanes[at].shares_memory => left,
            _ => return self.lose(state, job, "its reply does not say where its result is"),
        };
        let bytes = usize::try_from(left.bytes).unwrap_or(usize::MAX);
        job.target.expected.learn(bytes);
        let again = if job.idempotent { again(state, &job) } else { None };
        let may_stay = is_for_tasks_only(state, &job) && (again.is_some() || !job.idempotent);
        let lane = &mut state.lanes[at];
        if !may_stay && lane.is_usable() {
            lane.keep(job, left.ticket, bytes);
            return self.fetch_kept(state, at);
        }
        if !may_stay {
            return self.lose(state, job, "its worker died before the result was fetched");
        }
        let away = Away {
            told: left.encode(),
            place: Place {
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
        self.resolve(state, job, Outcome::Away(Arc::new(away)));
    }

    /// A task did not run, because its worker did not get what it needs from where that is.
    pub fn not_had(&self, state: &mut State, job: Job) {
        let (Some(run), true) = (job.node, job.has_left) else {
            return self.lose(state, job, "its worker misses a result that it was sent");
        };
        drop(job);
        let Some(planned) = state.graph.flow.payload(run.0) else {
            return;
        };
        let (results, alone) = state.graph.results(run.0, planned);
        results
            .iter()
            .filter_map(|result| result.away())
            .for_each(|away| away.want());
        self.start(state, run, &results, alone);
        self.act(state);
    }

    /// Whether a run has to wait until results that it needs are here, or has ended because one of them is lost. `all`: it needs
    /// their bytes.
    pub fn awaits(&self, state: &mut State, run: Run, results: &[Arc<Outcome>], all: bool) -> bool {
        let missing = |away: &&Arc<Away>| {
            away.here().is_none() && (all || away.wanted().is_wanted || away.lane(state).is_none())
        };
        let missing: Vec<_> = results
            .iter()
            .filter_map(|result| result.away())
            .filter(missing)
            .cloned()
            .collect();
        for away in &missing {
            self.bring(state, away, run);
        }
        if !missing.is_empty() {
            return true;
        }
        let lost = |away: &&Arc<Away>| away.here().is_some_and(|here| !here.is_result());
        let Some(away) = results.iter().filter_map(|result| result.away()).find(lost) else {
            return false;
        };
        let (Some(planned), Some(why)) = (state.graph.flow.payload(run.0), away.here()) else {
            return true;
        };
        let chain = Chain::of(planned.target.clone(), Some(&away.target), Some(why));
        let outcome = hotlease_flow::Outcome::Fatal(Outcome::Dependency(Box::new(chain)).share());
        let (task, attempt) = run;
        state.graph.step(Event::Ended {
            task,
            attempt,
            outcome,
        });
        true
    }

    /// Brings a result here, for a run that goes on then.
    fn bring(&self, state: &mut State, away: &Arc<Away>, run: Run) {
        // It may have come, or been lost, since somebody looked.
        let mut wanted = away.wanted();
        if away.here().is_some() || wanted.runs.contains(&run) {
            return;
        }
        wanted.runs.push(run);
        if std::mem::replace(&mut wanted.is_asked, true) {
            return;
        }
        drop(wanted);
        match away.lane(state) {
            Some(at) => {
                let errand = Errand::Fetch(away.clone());
                let job = Job::errand(errand, away.target.clone(), Box::default());
                state.pending += 1;
                state.lanes[at].keep(job, away.place.ticket, away.bytes);
                self.fetch_kept(state, at);
                self.version.fetch_add(1, Ordering::Release);
            }
            None => self.make_again(state, away, "its worker is gone".into()),
        }
    }

    /// What was asked of a worker is done, or not.
    pub fn ran(&self, state: &mut State, errand: Errand, result: Result<Outcome, String>) {
        state.pending -= 1;
        let Errand::Fetch(away) = errand else { return };
        match result {
            Ok(outcome) if outcome.is_result() => self.has_come(state, &away, outcome),
            Ok(_) => self.make_again(state, &away, "its worker does not have it any more".into()),
            Err(why) => self.make_again(state, &away, why),
        }
        self.act(state);
    }

    /// A result is lost: what made it runs again, if it may.
    fn make_again(&self, state: &mut State, away: &Arc<Away>, why: String) {
        let lost = |core: &Self, state: &mut State| {
            let text = format!("{why}, and only tasks needed it: it was not brought here before");
            core.has_come(state, away, Outcome::Lost(text.into()));
        };
        let Some(again) = away.again.as_ref().filter(|_| super::collect::goes_on(state)) else {
            return lost(self, state);
        };
        let plan = Plan {
            idempotent: Some(true),
            ..Plan::default()
        };
        let cell = Arc::new(Cell::new(None));
        let mut planned = Planned::new(cell, away.target.clone(), again.payload.copy(), plan);
        planned.inputs = again.inputs.len() as u32;
        planned.done = (0..).zip(again.inputs.iter().cloned()).collect();
        planned.makes = Some(away.clone());
        let size = planned.size();
        let graph = &mut state.graph;
        match graph.flow.submit(Task::new(planned), &[], &mut graph.actions) {
            Ok(_) => {
                graph.bytes += size;
                state.pending += 1;
            }
            Err(_) => lost(self, state),
        }
    }

    /// A result is here, or is lost for good.
    pub fn has_come(&self, state: &mut State, away: &Away, outcome: Outcome) {
        // It comes once.
        let _ = away.here.set(outcome.share());
        let runs = std::mem::take(&mut away.wanted().runs);
        for run in runs {
            let graph = &state.graph;
            let Some(planned) = graph.flow.payload(run.0) else {
                continue;
            };
            match planned.key.get() {
                // It has looked already whether its result is known.
                Some(_) => {
                    let (results, alone) = graph.results(run.0, planned);
                    self.start(state, run, &results, alone);
                }
                None => self.run(state, run.0, run.1),
            }
        }
    }

    /// Tells workers what nobody needs any more.
    #[inline]
    pub fn release_left(&self, state: &mut State) {
        if self.releases.any.load(Ordering::Acquire) {
            self.tell_released(state);
        }
    }

    /// Whether there is something to tell.
    pub fn has_released(&self) -> bool {
        self.releases.any.load(Ordering::Acquire)
    }

    #[cold]
    fn tell_released(&self, state: &mut State) {
        self.releases.any.store(false, Ordering::Release);
        let mut list = std::mem::take(&mut *self.releases.list());
        for (at, lane) in state.lanes.iter_mut().enumerate() {
            // What another worker had went with it.
            list.retain(|released| {
                released.place.lane != at || released.place.worker == lane.worker && !lane.is_dead
            });
            let is_its = |released: &&Released| released.place.lane == at;
            let its: Vec<_> = list.iter().filter(is_its).take(RELEASED_AT_ONCE).collect();
            let Some(target) = its.first().map(|released| released.target.clone()) else {
                continue;
            };
            let tickets = its
                .iter()
                .flat_map(|released| released.place.ticket.to_le_bytes());
            let mut payload = vec![0; request::HEAD_BYTES];
            payload[0] = request::RELEASE;
            payload.extend(tickets);
            let number = its.len();
            if lane.push(Job::errand(Errand::Release, target, payload.into())) {
                state.pending += 1;
                self.version.fetch_add(1, Ordering::Release);
                let mut told = 0;
                list.retain(|released| {
                    let goes = released.place.lane == at && told < number;
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

    /// Whether the bytes of results that a task needs are needed to know what it is, and are not here.
    pub fn is_unknown_yet(planned: &Planned, results: &[Arc<Outcome>]) -> bool {
        planned.key.get().is_none()
            && planned.plan.memo == Some(Memo::Content)
            && results
                .iter()
                .any(|result| result.away().is_some_and(|away| away.here().is_none()))
    }
}

/// Whether nothing needs the result of a task but other tasks: nobody has its future, and it is not remembered.
fn is_for_tasks_only(state: &State, job: &Job) -> bool {
    let Some(node) = job.cell.node().filter(|_| job.stays) else {
        return false;
    };
    // Of a task of the graph's that has one, too.
    let holders = if job.node.is_some() { 2 } else { 1 };
    Arc::strong_count(&job.cell) <= holders && state.graph.flow.is_needed(node)
}

/// How a result can be made once more; `None`: not by what may be kept for that.
fn again(state: &State, job: &Job) -> Option<Again> {
    let (payload, inputs) = match job.node {
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
        .filter_map(|input| Some(input.away()?.depth() + 1))
        .max();
    let depth = deepest.unwrap_or(0);
    let fits = payload.bytes().len() + kept <= AGAIN_BYTES_MAX && depth <= AGAIN_DEPTH_MAX;
    fits.then(|| Again {
        payload: payload.copy(),
        inputs,
        depth,
    })
}
