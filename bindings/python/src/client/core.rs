//! The executor's core: a queue, the slots, and what becomes of results. It knows Python's lock only where a future is watched.
//!
//! Threads and locks. `state` guards queue and slots. It is mostly held for a microsecond, but for as long as copying a large
//! task into shared memory takes, or registering new memory with workers; so `submit` gives Python's lock up where it has to
//! wait for it ([`Core::with_state`]). It is never held while Python's lock is waited for. `collecting` belongs to whoever
//! takes in results: the thread that waits for one (so that no other thread stands between a result and its caller), else
//! the core's own ([`super::keeper`]).

use super::away::Releases;
use super::cell::{Cell, Outcome};
use super::graph::Graph;
use super::job::{Job, Payload, Target};
use super::keeper::Keeper;
use super::lane::Lane;
use super::memo::Memory;
use super::memory::Pool;
use super::pace::{Pace, Patience};
use super::queue::Queue;
use super::showing::Showing;
use hotlease_client::{Error, Invoker};
use hotlease_fabric::clock::monotonic_ns;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// Set in the child of a fork: what a core there shows is its parent's, and its threads do not exist.
pub static FORKED: AtomicU32 = AtomicU32::new(0);

/// Tasks by which a slot may be ahead of another one, beyond twice as many: where short tasks are followed by long ones, a slot that
/// has learned to take many ahead would keep them all, and others stand idle.
const LEAD: usize = 64;
/// Looks at a lock that is held, mostly for less than it takes to give up Python's.
const TRIES: u32 = 64;

/// Why nothing more is accepted.
#[derive(Clone)]
pub enum Closed {
    /// `shutdown` was called.
    ShutDown,
    /// No worker can be had.
    Lost(Error),
    /// The initializer failed.
    Unprepared(String),
}

/// What `state` guards.
pub struct State {
    pub queue: Queue,
    /// Of the tasks in the queue.
    pub queued_bytes: usize,
    pub lanes: Vec<Lane>,
    pub pace: Pace,
    pub closed: Option<Closed>,
    /// Tasks without an outcome.
    pub pending: usize,
    /// Workers in a row that ended before they were prepared.
    pub unprepared: u8,
    /// Tasks that need others, or more than to be run once.
    pub graph: Graph,
}

impl State {
    /// The slot with the least to do, of those with room.
    fn lane_with_room(&self, near: Option<usize>) -> Option<usize> {
        let usable = || self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_usable());
        let least = usable().map(|(_, lane)| lane.flights.len()).min()?;
        let fits = |lane: &Lane| lane.has_room(&self.pace) && lane.flights.len() <= 2 * least + LEAD;
        let fitting = usable().filter(|(_, lane)| fits(lane));
        fitting
            .min_by_key(|(at, lane)| (lane.flights.len(), near.is_some_and(|near| near != *at)))
            .map(|(at, _)| at)
    }

    /// How a thread waits for a result of what is under way, on a machine with so many cores for this process.
    pub fn patience(&self, cores: usize) -> Patience {
        let busy = || self.lanes.iter().filter(|lane| !lane.flights.is_empty());
        // Workers elsewhere do not need this machine's cores.
        if busy().filter(|lane| lane.shares_memory).count() < cores {
            return Patience::Spin;
        }
        let least = busy().map(|lane| lane.flights.len()).min().unwrap_or_default();
        self.pace.patience(least)
    }
}

/// See the module.
pub struct Core {
    pub invoker: Invoker,
    pub state: Mutex<State>,
    pub pool: Arc<Pool>,
    /// Changes when a slot that was idle is sent something.
    pub version: AtomicU64,
    /// What prepares a worker.
    pub initializer: Option<(Arc<Target>, Box<[u8]>)>,
    /// Bytes of tasks that may wait in the queue.
    pub queue_bytes_max: usize,
    /// Tasks that may be pending.
    pub pending_max: usize,
    pub collecting: Mutex<Vec<u8>>,
    /// That this process may use.
    pub cores: usize,
    /// Threads that wait for a result.
    pub waiters: AtomicUsize,
    /// Of these, those that sleep until another thread has taken in something.
    pub followers: AtomicUsize,
    pub progress: (Mutex<()>, Condvar),
    /// Watched tasks that have an outcome.
    pub to_finish: Mutex<Vec<Arc<Cell>>>,
    pub has_to_finish: AtomicBool,
    /// Watched tasks without an outcome, or nearly so.
    pub watched: AtomicUsize,
    pub keeper: Keeper,
    /// What tasks print.
    pub showing: Arc<Showing>,
    /// What outlives the program.
    pub memory: Memory,
    /// Tasks that were submitted.
    pub submitted: AtomicU64,
    /// Results with workers that nobody needs any more.
    pub releases: Arc<Releases>,
    /// Slots that tasks are sent to.
    pub slots: AtomicUsize,
    /// The value of [`FORKED`] where it was made.
    forks: u32,
    /// The lease was given back.
    pub ended: AtomicBool,
}

/// Of the slots from this one on.
fn lanes_from(invoker: &Invoker, first: usize) -> Result<Vec<Lane>, Error> {
    let function = invoker.function(super::FUNCTION)?;
    let options = invoker.options();
    let lane = |slot| Lane::new(function.clone().on_slot(slot)?, options);
    (first..invoker.slots()).map(lane).collect()
}

impl Core {
    /// With all slots of an invoker idle.
    pub fn new(
        invoker: Invoker,
        (queue_bytes_max, pending_max): (usize, u32),
        (graph, memory): (Graph, Memory),
        initializer: Option<(Arc<Target>, Box<[u8]>)>,
        showing: Showing,
    ) -> Result<Arc<Self>, Error> {
        let lanes = lanes_from(&invoker, 0)?;
        let slots = lanes.len();
        let scratch = vec![0; invoker.options().reply_bytes as usize];
        let pace = Pace::new(invoker.options().depth as usize);
        let core = Arc::new(Self {
            invoker,
            state: Mutex::new(State {
                queue: Queue::default(),
                queued_bytes: 0,
                lanes,
                pace,
                closed: None,
                pending: 0,
                unprepared: 0,
                graph,
            }),
            pool: Arc::default(),
            version: AtomicU64::new(0),
            initializer,
            queue_bytes_max,
            pending_max: pending_max as usize,
            collecting: Mutex::new(scratch),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            waiters: AtomicUsize::new(0),
            followers: AtomicUsize::new(0),
            progress: (Mutex::new(()), Condvar::new()),
            to_finish: Mutex::default(),
            has_to_finish: AtomicBool::new(false),
            watched: AtomicUsize::new(0),
            keeper: Keeper::default(),
            showing: Arc::new(showing),
            memory,
            submitted: AtomicU64::new(0),
            releases: Arc::default(),
            slots: AtomicUsize::new(slots),
            forks: FORKED.load(Ordering::Relaxed),
            ended: AtomicBool::new(false),
        });
        (0..slots).for_each(|at| core.prepare(&mut core.state(), at));
        Ok(core)
    }

    /// Gives slots that have come since what they are to do.
    pub fn adopt(&self) -> Result<(), Error> {
        let first = self.state().lanes.len();
        // Not under the lock: a slot that was lost already is repaired first.
        let lanes = lanes_from(&self.invoker, first)?;
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closed.is_some() {
            return Ok(());
        }
        for lane in lanes {
            state.lanes.push(lane);
            self.prepare(state, state.lanes.len() - 1);
        }
        self.slots.store(state.lanes.len(), Ordering::Relaxed);
        self.refill(state);
        drop(guard);
        self.version.fetch_add(1, Ordering::Release);
        self.keeper.rouse(&self.invoker);
        Ok(())
    }

    /// Whether this process is a fork of the one that made it.
    pub fn is_foreign(&self) -> bool {
        FORKED.load(Ordering::Relaxed) != self.forks
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, without Python's lock where it has to be waited for.
    pub fn with_state<R: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(MutexGuard<'_, State>) -> R + Send,
    ) -> R {
        for _ in 0..TRIES {
            match self.state.try_lock() {
                Ok(state) => return what(state),
                Err(TryLockError::Poisoned(poisoned)) => return what(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        py.detach(|| what(self.state()))
    }

    /// The right to take in results, if nobody has it.
    pub fn try_collecting(&self) -> Option<MutexGuard<'_, Vec<u8>>> {
        match self.collecting.try_lock() {
            Ok(scratch) => Some(scratch),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends a worker what prepares it, ahead of all tasks.
    pub fn prepare(&self, state: &mut State, at: usize) {
        let Some((target, payload)) = &self.initializer else {
            return;
        };
        let payload = Payload::Own(payload.clone());
        let mut job = Job::new(Arc::new(Cell::new(None)), target.clone(), payload);
        job.prepares = true;
        job.cell.start();
        match state.lanes[at].send(job, &self.invoker, &self.pool) {
            // Looked after as a task is.
            Ok(()) => state.pending += 1,
            Err((_, Some(error))) => self.close(state, Closed::Lost(*error)),
            // This worker is gone already; the next one is prepared.
            Err((_, None)) => {}
        }
    }

    /// Takes a task: sends it if a slot has room, else it waits. Not where nothing is accepted any more.
    pub fn accept(&self, py: Python<'_>, job: Job) -> Result<(), Closed> {
        self.with_state(py, |state| self.accept_into(state, job))
    }

    fn accept_into(&self, mut state: MutexGuard<'_, State>, job: Job) -> Result<(), Closed> {
        if let Some(closed) = &state.closed {
            return Err(closed.clone());
        }
        state.pending += 1;
        // What has to be copied is, by whoever takes in results next, without Python's lock.
        let is_large = job.size() > self.invoker.options().request_bytes as usize;
        let waits = !state.queue.is_empty() || is_large && job.is_copied();
        let left = if waits {
            Some(job)
        } else {
            self.send(&mut state, job)
        };
        let queued = left.is_some();
        if let Some(job) = left {
            state.queued_bytes += job.size();
            state.queue.push_back(job);
        }
        // Nobody takes in a result because of which it would be sent.
        let could_go = queued && state.lane_with_room(None).is_some();
        drop(state);
        self.keeper.tell(queued);
        if could_go {
            self.version.fetch_add(1, Ordering::Release);
            self.keeper.rouse(&self.invoker);
        }
        Ok(())
    }

    /// Whether a task of this size may be put into the queue now.
    pub fn has_room(&self, py: Python<'_>) -> bool {
        self.with_state(py, |state| self.has_room_in(&state))
    }

    fn has_room_in(&self, state: &State) -> bool {
        let bytes = state.queued_bytes + state.graph.bytes;
        let idle = state.queue.is_empty() && state.graph.bytes == 0;
        (bytes < self.queue_bytes_max || idle) && state.pending < self.pending_max || state.closed.is_some()
    }

    /// Sends it to the slot with the least to do; gives it back if none has room.
    fn send(&self, state: &mut State, mut job: Job) -> Option<Job> {
        let Some(at) = state.lane_with_room(job.near) else {
            return Some(job);
        };
        if !job.sent && (state.graph.is_overtaken(job.node) || !job.cell.start()) {
            // Cancelled; whoever did that has told everybody. Or it waits for an equal one.
            if job.node.is_none() {
                state.pending -= 1;
            }
            return None;
        }
        job.sent = true;
        let lane = &mut state.lanes[at];
        let was_idle = lane.flights.is_empty();
        let timed = job.cell.times.clone().map(|times| (times, monotonic_ns()));
        match lane.send(job, &self.invoker, &self.pool) {
            Ok(()) => {
                if was_idle {
                    self.version.fetch_add(1, Ordering::Release);
                }
                if let Some((times, now)) = timed {
                    times.sent(at, now);
                }
            }
            Err((job, None)) => return Some(job),
            Err((job, Some(error))) => self.fail(state, job, *error),
        }
        None
    }

    /// Sends what waits, as far as there is room.
    pub fn refill(&self, state: &mut State) {
        while let Some(job) = state.queue.pop_front() {
            let bytes = job.size();
            match self.send(state, job) {
                None => state.queued_bytes -= bytes,
                Some(job) => {
                    state.queue.push_front(job);
                    return;
                }
            }
        }
    }

    /// Ends a task without a reply.
    pub fn fail(&self, state: &mut State, mut job: Job, error: Error) {
        if let Some(errand) = job.errand.take() {
            return self.ran(state, *errand, Err(error.to_string()));
        }
        if job.prepares {
            state.pending -= 1;
            return self.close(state, Closed::Lost(error));
        }
        let deaths = job.deaths;
        let failed = super::cell::Failed { error, deaths };
        self.resolve(state, job, Outcome::Failed(Box::new(failed)));
    }

    /// Gives a task its outcome.
    #[inline]
    pub fn resolve(&self, state: &mut State, job: Job, outcome: Outcome) {
        let Job {
            errand,
            node,
            cell,
            target,
            payload,
            ..
        } = job;
        // First: who has the result may want to send the same memory again.
        drop(payload);
        if let Some(errand) = errand {
            return self.ran(state, *errand, Ok(outcome));
        }
        if let Some(node) = node {
            // It has a claim on the result, which may be given on where it lies.
            drop(cell);
            return self.ended(state, node, outcome);
        }
        state.pending -= 1;
        if cell.is_linked() {
            return self.resolve_linked(state, cell, target, outcome);
        }
        if cell.resolve(outcome) {
            self.finish_later(cell);
        }
    }

    #[cold]
    fn resolve_linked(&self, state: &mut State, cell: Arc<Cell>, target: Arc<Target>, outcome: Outcome) {
        let outcome = outcome.share();
        let node = cell.node();
        match cell.resolve(Outcome::Shared(outcome.clone())) {
            true => self.finish_later(cell),
            // If nobody has the future any more, this lets go of the result.
            false => drop(cell),
        }
        if let Some(node) = node {
            self.end_promise(state, node, Some(target), Some(outcome));
        }
    }

    /// It is watched: the core's own thread finishes it.
    pub fn finish_later(&self, cell: Arc<Cell>) {
        let mut to_finish = self.to_finish.lock().unwrap_or_else(PoisonError::into_inner);
        to_finish.push(cell);
        self.has_to_finish.store(true, Ordering::Release);
    }

    /// Accepts nothing more; unless that is only a shutdown, what waits fails.
    pub fn close(&self, state: &mut State, why: Closed) {
        if state
            .closed
            .as_ref()
            .is_none_or(|closed| matches!(closed, Closed::ShutDown))
        {
            state.closed = Some(why.clone());
        }
        self.end_planned(
            state,
            match &why {
                Closed::Lost(error) => Outcome::Failed(Box::new(super::cell::Failed {
                    error: error.clone(),
                    deaths: 0,
                })),
                Closed::Unprepared(why) => Outcome::Unprepared(why.as_str().into()),
                Closed::ShutDown => return,
            },
        );
        state.queued_bytes = 0;
        for job in state.queue.take_all() {
            if !job.sent && !job.cell.start() {
                if job.node.is_none() {
                    state.pending -= 1;
                }
                continue;
            }
            match &why {
                Closed::Unprepared(why) if !job.prepares => {
                    self.resolve(state, job, Outcome::Unprepared(why.as_str().into()));
                }
                Closed::Lost(error) if !job.prepares => self.fail(state, job, error.clone()),
                _ => state.pending -= 1,
            }
        }
    }

    /// Cancels all that waits.
    pub fn cancel_queued(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        // First all of them, so that none fails because of another one.
        let planned = self.planned(state).into_iter();
        let cancelled: Vec<_> = planned
            .filter_map(|(_, cell, target)| cell.cancel().map(|told| (told, cell, target)))
            .collect();
        let jobs = state.queue.take_all();
        state.queued_bytes = 0;
        for job in jobs {
            match (job.cell.cancel(), job.node) {
                (Some(told), None) => {
                    state.pending -= 1;
                    if told.graph {
                        self.cancelled(state, &job.cell, Some(job.target));
                    }
                    if told.watchers {
                        self.finish_later(job.cell);
                    }
                }
                (None, _) if job.sent => {
                    state.queued_bytes += job.size();
                    state.queue.push_back(job);
                }
                // Cancelled before, or just now.
                (_, Some(_)) => {}
                (None, None) => state.pending -= 1,
            }
        }
        for (told, cell, target) in cancelled {
            self.cancelled(state, &cell, Some(target));
            if told.watchers {
                self.finish_later(cell);
            }
        }
        drop(guard);
        self.keeper.rouse(&self.invoker);
    }
}
