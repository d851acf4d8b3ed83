//! Core of the executor: a queue, the slots, and the results. The core takes the GIL only where a future is watched.
//!
//! Threads and locks. `state` guards queue and slots. A thread mostly holds it for a microsecond, but for longer while
//! a large task is copied into shared memory or new memory is registered with workers. So `submit` releases the GIL
//! while it waits for `state` ([`ExecutorCore::with_state`]). A thread never waits for the GIL while it holds `state`.
//! The thread that collects results holds `collecting`. A thread that waits for a result collects results itself, so
//! that no other thread is between the result and its caller. If no thread waits, the core's own thread collects
//! ([`crate::client::core::keeper`]).

pub mod collect;
pub mod dataflow;
pub mod keeper;
pub mod lane;
pub mod lending;
mod output;
mod remote_results;
mod replies;
mod room_notices;
mod take_back;
mod transitions;
pub mod wait;

use crate::client::core::keeper::KeeperHandle;
use crate::client::core::lane::Lane;
use crate::client::core::lending::LendingPhase;
use crate::client::core::room_notices::RoomNotices;
use crate::client::dataflow::checkpoint::CheckpointFile;
use crate::client::dataflow::graph::Graph;
use crate::client::growth::{LaterGrowth, PlatformStop, WaitNotice};
use crate::client::memory::BufferPool;
use crate::client::output::OutputQueue;
use crate::client::tasks::job::{TaskJob, Waiter};
use crate::client::tasks::queue::Queue;
use crate::client::tasks::remote_results::Releases;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::state::TaskCell;
use crate::client::tasks::target::Target;
use crate::locks::locked;
use hotlease_client::{Error, Invoker};
use hotlease_fabric::forks::ProcessMark;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Part of the limit of a slot's tasks in flight. The limit is twice the number of tasks on the slot with the fewest,
/// plus this number. Without the limit, if long tasks follow short tasks, a slot that is sent many tasks ahead would
/// keep all of them while other slots are idle.
const LEAD: usize = 64;
/// Number of attempts to take a held lock before a thread releases the GIL: the lock is mostly free again before the
/// GIL could be released.
const LOCK_TRIES: u32 = 64;

/// Reason why no task is accepted any more.
#[derive(Clone)]
pub enum Closed {
    /// `shutdown` was called.
    ShutDown,
    /// No worker is available.
    Lost(Error),
    /// The initializer failed.
    Unprepared(String),
}

/// State behind the lock `ExecutorCore::state`.
pub struct CoreState {
    pub queue: Queue,
    pub lanes: Vec<Lane>,
    pub closed: Option<Closed>,
    /// Phase of the leases behind the lanes.
    pub lease: LendingPhase,
    /// Later requests for workers that were missing at first.
    pub growth: LaterGrowth,
    /// Time when the tasks that wait for a worker were last marked (`TaskJob::is_late`); `None` if none was marked
    /// since there was a worker.
    pub waiting_since: Option<Instant>,
    /// Number of tasks without an outcome.
    pub pending: usize,
    /// Number of consecutive workers that ended before they were prepared.
    pub unprepared: u8,
    /// Tasks that depend on other tasks, are retried, or are memoised.
    pub graph: Graph,
}

impl CoreState {
    /// Returns the slot with the fewest tasks, among the slots with room. `near` is preferred among slots with equally
    /// many tasks.
    fn lane_with_room(&self, near: Option<usize>, clock: &TurnClock) -> Option<usize> {
        let usable = || self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_usable());
        let least = usable().map(|(_, lane)| lane.flights.len()).min()?;
        let fits = |lane: &Lane| lane.has_room(|| clock.now()) && lane.flights.len() <= 2 * least + LEAD;
        let fitting = usable().filter(|(_, lane)| fits(lane));
        fitting
            .min_by_key(|(at, lane)| (lane.flights.len(), near.is_some_and(|near| near != *at)))
            .map(|(at, _)| at)
    }

    /// Whether a task may be sent again.
    pub fn can_resend(&self) -> bool {
        matches!(self.closed, None | Some(Closed::ShutDown)) && self.lanes.iter().any(|lane| !lane.is_dead)
    }
}

/// Time of a turn, in which a thread sends one or more tasks. The clock is read once, when the time is first needed.
#[derive(Default)]
pub struct TurnClock(Cell<Option<Instant>>);

impl TurnClock {
    fn now(&self) -> Instant {
        let now = self.0.get().unwrap_or_else(Instant::now);
        self.0.set(Some(now));
        now
    }
}

/// Shared core of an executor; see the module.
pub struct ExecutorCore {
    pub invoker: Invoker,
    pub state: Mutex<CoreState>,
    pub pool: Arc<BufferPool>,
    /// Rises when a waiting thread has to look at the slots again, for example because an idle slot was sent a task.
    pub version: AtomicU64,
    /// Task that prepares a worker.
    pub initializer: Option<(Arc<Target>, Box<[u8]>)>,
    /// Limit of the bytes of tasks that wait in the queue.
    pub queue_bytes_max: usize,
    /// Limit of the pending tasks.
    pub pending_max: usize,
    pub collecting: Mutex<Vec<u8>>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Number of threads that wait for a result.
    pub waiters: AtomicUsize,
    /// Number of threads that wait for a result and sleep until another thread has collected results.
    pub followers: AtomicUsize,
    pub progress: (Mutex<()>, Condvar),
    /// Watched tasks that have an outcome and are not finished yet.
    pub to_finish: Mutex<Vec<Arc<TaskCell>>>,
    pub has_to_finish: AtomicBool,
    /// Number of watched tasks without an outcome (approximate).
    pub watched: AtomicUsize,
    pub keeper: KeeperHandle,
    /// Output of tasks.
    pub showing: Arc<OutputQueue>,
    /// Checkpoint file, for results that outlive the program.
    pub memory: CheckpointFile,
    /// Number of tasks that were submitted.
    pub submitted: AtomicU64,
    /// Remote results that their workers may release.
    pub releases: Arc<Releases>,
    /// Number of slots that tasks are sent to.
    pub slots: AtomicUsize,
    /// Process that made the core. In a fork of that process, the core shows the parent's state, and the core's threads
    /// do not exist.
    made_by: ProcessMark,
    /// Whether the program was told that tasks wait for workers.
    pub wait_notice: WaitNotice,
    pub platform_stop: PlatformStop,
    /// Notices that other programs find no room.
    pub room_notices: RoomNotices,
    /// Whether the lease was released.
    pub ended: AtomicBool,
    /// Classes that results from sandboxes may contain; `None`: results are trusted.
    classes: Option<Py<PyAny>>,
}

/// Makes the lanes of the slots from `first` on.
fn lanes_from(invoker: &Invoker, first: usize) -> Result<Vec<Lane>, Error> {
    let options = invoker.options();
    let function = invoker.function(super::FUNCTION)?;
    let function = match options.workers {
        // No other slot could take over a withdrawn task.
        1 => function,
        _ => function.withdrawable(),
    };
    let lane = |slot| Lane::new(function.clone().on_slot(slot)?, options);
    (first..invoker.slots()).map(lane).collect()
}

impl ExecutorCore {
    /// Makes the core, with all slots of an invoker idle.
    pub fn new(
        invoker: Invoker,
        (queue_bytes_max, pending_max): (usize, u32),
        (graph, memory): (Graph, CheckpointFile),
        initializer: Option<(Arc<Target>, Box<[u8]>)>,
        (showing, classes): (OutputQueue, Option<Py<PyAny>>),
    ) -> Result<Arc<Self>, Error> {
        let lanes = lanes_from(&invoker, 0)?;
        let slots = lanes.len();
        let scratch = vec![0; invoker.options().reply_bytes as usize];
        let core = Arc::new(Self {
            invoker,
            state: Mutex::new(CoreState {
                queue: Queue::default(),
                lanes,
                closed: None,
                lease: LendingPhase::Held,
                growth: LaterGrowth::default(),
                waiting_since: None,
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
            keeper: KeeperHandle::default(),
            showing: Arc::new(showing),
            memory,
            submitted: AtomicU64::new(0),
            releases: Arc::default(),
            slots: AtomicUsize::new(slots),
            made_by: ProcessMark::here(),
            wait_notice: WaitNotice::default(),
            platform_stop: PlatformStop::default(),
            room_notices: RoomNotices::default(),
            ended: AtomicBool::new(false),
            classes,
        });
        (0..slots).for_each(|at| core.prepare(&mut core.state(), at));
        Ok(core)
    }

    /// Adds the slots that the invoker has and the core does not, prepares them, and sends them tasks.
    pub fn adopt(&self) -> Result<(), Error> {
        let first = self.state().lanes.len();
        // Done without the lock, because a slot that was lost already is repaired first.
        let lanes = lanes_from(&self.invoker, first)?;
        let mut guard = self.state();
        let state = &mut *guard;
        let runs_the_rest = matches!(state.closed, Some(Closed::ShutDown)) && state.pending > 0;
        if state.closed.is_some() && !runs_the_rest {
            return Ok(());
        }
        for lane in lanes {
            state.lanes.push(lane);
            self.prepare(state, state.lanes.len() - 1);
        }
        self.slots.store(state.lanes.len(), Ordering::Relaxed);
        self.end_waiting(state);
        self.refill(state);
        drop(guard);
        self.version.fetch_add(1, Ordering::Release);
        self.keeper.wake(&self.invoker);
        Ok(())
    }

    /// Returns the classes that results may contain, if results may come from sandboxes. Returns `None` if results are
    /// read without a check.
    #[inline]
    pub fn guard(&self) -> Option<&Py<PyAny>> {
        self.classes.as_ref().filter(|_| self.invoker.is_confined())
    }

    /// Whether this process is a fork of the process that made the core.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    pub fn state(&self) -> MutexGuard<'_, CoreState> {
        locked(&self.state)
    }

    /// Runs `what` on the state; releases the GIL while it waits for the lock.
    pub fn with_state<R: Send>(&self, py: Python<'_>, what: impl FnOnce(MutexGuard<'_, CoreState>) -> R + Send) -> R {
        for _ in 0..LOCK_TRIES {
            match self.state.try_lock() {
                Ok(state) => return what(state),
                Err(TryLockError::Poisoned(poisoned)) => return what(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        py.detach(|| what(self.state()))
    }

    /// Takes the right to collect results, if it is free.
    pub fn try_collecting(&self) -> Option<MutexGuard<'_, Vec<u8>>> {
        match self.collecting.try_lock() {
            Ok(scratch) => Some(scratch),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends the initializer to a worker, ahead of all tasks.
    pub fn prepare(&self, state: &mut CoreState, at: usize) {
        let Some((target, payload)) = &self.initializer else {
            return;
        };
        let payload = TaskPayload::Own(payload.clone());
        let job = TaskJob::new(Waiter::Worker, target.clone(), payload);
        match state.lanes[at].send(job, &self.invoker, &self.pool) {
            // The initializer is pending like a task, until its result is collected.
            Ok(()) => state.pending += 1,
            Err((_, Some(error))) => self.close(state, Closed::Lost(*error)),
            // The worker is gone already; the next worker of the slot is prepared.
            Err((_, None)) => {}
        }
    }
}
