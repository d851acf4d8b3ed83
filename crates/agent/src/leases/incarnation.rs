//! Incarnation: one worker in the service of one lease, from its assignment to its end.
//!
//! A lease's place for a worker outlives its processes: each process is an incarnation with an epoch of its own. A task
//! assigns or starts the process, configures it, loads everything that the lease has loaded so far, and waits for its
//! end. It reports exactly one end to the book, in every case.

mod bring_up_error;
mod configuration;
mod memory_server;
mod moving;
mod state;

pub(crate) use configuration::load;
use moving::WorkerPlace;

use crate::data::swap::WorkerStateKeeper;
use crate::leases::book_steps::BookSteps;
use crate::leases::cause::{ExitEvidence, KillReason};
use crate::leases::failures::{self, FailureLog};
use crate::leases::libraries::Libraries;
use crate::leases::start::{IncarnationStart, WorkerOrigin};
use crate::leases::supply::WorkerSupply;
use crate::leases::terms::ServedLease;
use crate::leases::usage;
use crate::workers::worker::{StartError, StartedWorker};
use bring_up_error::{BringUpError, not_started};
use hotlease_fabric::memory::block::OwnedBlock;
use hotlease_fabric::usage::{FunctionUsage, RunningInvocation, UsageBlock};
use hotlease_lease::agent::BookEvent;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_wire::frame::InvocationId;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::{LastInvocation, UsageTotals};
use hotlease_wire::{Cause, EndReason, Rejection};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// Stage in the life of an incarnation.
#[derive(Clone)]
pub(crate) enum IncarnationState {
    /// Being started and configured.
    Starting,
    /// Serving.
    Up(Arc<StartedWorker>),
    /// Gone and reaped.
    Gone {
        /// Cause of the end.
        cause: Cause,
        /// The end of its output.
        output: String,
    },
}

/// One worker in the service of one lease.
pub(crate) struct Incarnation {
    /// Number of the worker in the lease.
    pub index: WorkerIndex,
    /// Its epoch.
    pub epoch: Epoch,
    place: Mutex<WorkerPlace>,
    /// Numbers of its GPUs.
    pub gpus: Vec<u32>,
    begun: Instant,
    usage: OnceLock<UsageBlock>,
    /// Its memory block, if it is a memory server.
    memory: OnceLock<Arc<OwnedBlock>>,
    pid: OnceLock<u32>,
    state: watch::Sender<IncarnationState>,
    /// Whether the book has recorded its end, and so can start another incarnation.
    is_booked_out: watch::Sender<bool>,
    /// Reason why the agent kills it, if the agent does.
    killed: watch::Sender<Option<KillReason>>,
    /// Way in which it was started, and the durations.
    pub start: IncarnationStart,
    /// Keeper of the state that its functions leave, if its lease has one.
    pub keeping: Option<Arc<WorkerStateKeeper>>,
    /// Failures that were logged.
    told: Mutex<FailureLog>,
}

impl Incarnation {
    pub fn new(
        index: WorkerIndex,
        epoch: Epoch,
        (cores, gpus): (Vec<u32>, Vec<u32>),
        keeping: Option<Arc<WorkerStateKeeper>>,
    ) -> Self {
        Self {
            index,
            epoch,
            told: Mutex::new(FailureLog::new(cores.len())),
            place: Mutex::new(WorkerPlace::new(cores)),
            gpus,
            begun: Instant::now(),
            usage: OnceLock::new(),
            memory: OnceLock::new(),
            pid: OnceLock::new(),
            state: watch::Sender::new(IncarnationState::Starting),
            is_booked_out: watch::Sender::new(false),
            killed: watch::Sender::new(None),
            start: IncarnationStart::default(),
            keeping,
        }
    }

    /// Its present stage.
    pub fn state(&self) -> IncarnationState {
        self.state.borrow().clone()
    }

    /// Waits until it is not starting any more; returns its stage then.
    pub async fn wait_until_settled(&self) -> IncarnationState {
        self.until(|state| !matches!(state, IncarnationState::Starting)).await
    }

    /// Waits until the book has recorded its end; returns cause and last output.
    pub async fn wait_for_end(&self) -> (Cause, String) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.is_booked_out.subscribe().wait_for(|known| *known).await;
        match self.state() {
            IncarnationState::Gone { cause, output } => (cause, output),
            IncarnationState::Starting | IncarnationState::Up(_) => (Cause::AgentGone, String::new()),
        }
    }

    async fn until(&self, reached: impl Fn(&IncarnationState) -> bool) -> IncarnationState {
        // The sender lives in self, so waiting cannot fail.
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| reached(state)).await;
        self.state()
    }

    /// Kills it. If its lease has ended and has a state, the state is saved first. Only the first reason is recorded.
    pub fn kill(&self, reason: KillReason) {
        let is_asked_first = self.keeping.is_some() && matches!(reason, KillReason::LeaseEnded(_));
        self.killed.send_if_modified(|killed| {
            let first = killed.is_none();
            if first {
                *killed = Some(reason);
            }
            first
        });
        // The worker is killed here too, because the task may be busy. A worker whose state must be saved is killed
        // only by the task, after the save.
        if let IncarnationState::Up(worker) = &*self.state.borrow()
            && !is_asked_first
        {
            worker.kill();
        }
    }

    fn is_killed(&self) -> bool {
        self.killed.borrow().is_some()
    }

    /// Memory that it shares with its worker; `None` before it is configured.
    pub fn block(&self) -> Option<&UsageBlock> {
        self.usage.get()
    }

    /// Logs the failures that its worker has recorded since the last call. `libraries`: libraries of the lease, with
    /// the names of the functions.
    pub fn log_failures(&self, lease: LeaseId, libraries: &Libraries) {
        let Some(block) = self.block() else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        failures::log(&mut told, block, (lease, self.index, self.epoch), libraries);
    }

    /// The invocation that it died in, as far as that is known.
    fn died_in(&self) -> Option<InvocationId> {
        let crash = self.block().and_then(UsageBlock::crash);
        let mut running = self.running().map(|(_, running)| running.invocation);
        let only = running.next().filter(|_| running.next().is_none());
        crash.and_then(|crash| crash.invocation).or(only)
    }

    /// Duration of the longest first call of its slots.
    pub fn first_call_ns(&self) -> Option<u64> {
        let block = self.usage.get()?;
        (0..block.slots()).filter_map(|slot| block.first_call_ns(slot)).max()
    }

    /// Its pid; 0 before there is one.
    pub fn pid(&self) -> u32 {
        self.pid.get().copied().unwrap_or(0)
    }

    /// Its usage so far.
    pub fn usage(&self) -> UsageTotals {
        let held = self.core_time();
        match self.usage.get() {
            Some(block) => usage::usage_of_living(block, held),
            None => usage::only_allocated(held),
        }
    }

    /// Usage of its functions so far, as the worker reports it.
    pub fn functions(&self) -> Vec<FunctionUsage> {
        let block = self.usage.get();
        block.map(usage::functions_of_living).unwrap_or_default()
    }

    /// Cores times time. All slots on a shared core count as one core.
    fn core_time(&self) -> u64 {
        let cores = self.cores();
        let shared = cores.windows(2).any(|pair| pair[0] == pair[1]);
        let cores = if shared { 1 } else { cores.len() };
        usage::slot_time(cores, self.begun.elapsed())
    }

    /// Invocations that found no core, as the worker reports it.
    pub fn refused_invocations(&self) -> u64 {
        let Some(block) = self.usage.get() else { return 0 };
        let refused = (0..block.slots()).map(|slot| block.read(slot).refused);
        refused.fold(0, u64::wrapping_add)
    }

    /// Number of times that other threads had the cores of its slots, and whether one of its slots does not poll now
    /// for this reason; both as the worker reports them.
    pub fn contention(&self) -> (u64, bool) {
        let Some(block) = self.usage.get() else {
            return (0, false);
        };
        let slots = (0..block.slots()).map(|slot| block.read(slot));
        slots.fold((0, false), |(preempted, is_contended), slot| {
            (preempted.wrapping_add(slot.preempted), is_contended || slot.is_paused)
        })
    }

    /// Sets whether it must not claim its shared core.
    pub fn hold_back(&self, yes: bool) {
        if let Some(block) = self.usage.get() {
            block.hold_back(yes);
        }
    }

    /// Invocations that its slots are running.
    pub fn running(&self) -> impl Iterator<Item = (u16, RunningInvocation)> {
        let block = self.usage.get();
        let slots = block.map_or(0, UsageBlock::slots);
        (0..slots).filter_map(move |slot| Some((slot, block?.read(slot).running?)))
    }

    /// The last invocation of each slot that has begun an invocation.
    pub fn last_invocations(&self) -> Vec<LastInvocation> {
        let block = self.usage.get();
        let slots = block.map_or(0, UsageBlock::slots);
        let begun = (0..slots).filter_map(|slot| block?.last_begun(slot));
        let begun = begun.map(|(invocation, ended)| LastInvocation { invocation, ended });
        begun.collect()
    }

    /// Invocation that one slot is running.
    pub fn running_in(&self, slot: u16) -> Option<RunningInvocation> {
        let block = self.usage.get()?;
        (slot < block.slots()).then(|| block.read(slot).running)?
    }

    /// Takes or starts a worker, configures it, waits for its end, and reports the end to the book.
    pub async fn live(self: Arc<Self>, book: Arc<impl BookSteps>, supply: Arc<WorkerSupply>, lease: ServedLease) {
        let (worker, up) = self.come_up((&book, &supply), &lease).await;
        let (cause, output) = match (worker, up) {
            (Some(worker), Ok(())) => {
                self.until_exit(&worker).await;
                self.cause_of_end(&lease, &worker, None).await
            }
            (Some(worker), Err(BringUpError::Ended)) => {
                if self.is_killed() {
                    self.save_state(&worker).await;
                    worker.kill();
                }
                self.cause_of_end(&lease, &worker, None).await
            }
            (Some(worker), Err(BringUpError::Reason(why))) => {
                worker.kill();
                self.cause_of_end(&lease, &worker, Some(why)).await
            }
            (None, Err(BringUpError::Reason(why))) => (not_started(why), String::new()),
            (None, _) => (self.stopped_early(), String::new()),
        };
        // Before the book counts the memory as free.
        self.revoke_memory().await;
        self.log_failures(lease.id, &lease.libraries);
        if !matches!(cause, Cause::LeaseEnded(_)) {
            tracing::info!(
                lease = %lease.id, worker = %self.index, epoch = %self.epoch,
                invocation = self.died_in().map(tracing::field::display), %cause, "worker died"
            );
        }
        // The worker's resources are free now. If a batch job waits for them, the state is ended after the report,
        // because the disk may take seconds to make a written state durable. Otherwise the state is ended before the
        // report, so that a client that was told of the end finds the state.
        let is_awaited = matches!(cause, Cause::LeaseEnded(EndReason::BatchJob(_)));
        let why = self.end_text(&cause);
        if !is_awaited {
            self.end_state(&why).await;
        }
        self.state.send_replace(IncarnationState::Gone { cause, output });
        let held = self.core_time();
        let (used, functions) = match self.usage.get() {
            Some(block) => {
                // Read before the totals, so that the totals cover every run that is counted here.
                let counted = usage::functions_of_dead(block);
                let used = usage::usage_of_dead(block, held);
                (used, lease.libraries.attribution().of_worker(&counted, used))
            }
            None => (usage::only_allocated(held), FunctionTotals::default()),
        };
        // The book cannot refuse this event, which only reports.
        let _ = book.step(BookEvent::WorkerGone {
            lease: lease.id,
            worker: self.index,
            epoch: self.epoch,
            used,
            functions,
        });
        self.is_booked_out.send_replace(true);
        if is_awaited {
            self.end_state(&why).await;
        }
    }

    /// Cause of the end of an incarnation that has no process yet.
    fn stopped_early(&self) -> Cause {
        match &*self.killed.borrow() {
            Some(KillReason::LeaseEnded(reason)) => Cause::LeaseEnded(*reason),
            _ => not_started(StartError::for_now("it was stopped before it started")),
        }
    }

    /// Takes a waiting worker, or starts one, and configures it. Returns the worker, if there is one, and whether it
    /// serves.
    async fn come_up(
        &self,
        (book, supply): (&Arc<impl BookSteps>, &WorkerSupply),
        lease: &ServedLease,
    ) -> (Option<Arc<StartedWorker>>, Result<(), BringUpError>) {
        let found = tokio::select! {
            biased;
            () = self.until_killed() => return (None, Err(BringUpError::Ended)),
            found = self.find_state() => found,
        };
        if let Err(why) = found {
            return (None, Err(BringUpError::Reason(why)));
        }
        // A pooled worker may have died unnoticed; that is no reason to fail.
        let (pooled, mut origin) = supply.waiting_worker(&lease.terms);
        if let Some(worker) = pooled {
            let worker = Arc::new(worker);
            let up = self.bring_up((book, supply), lease, &worker, &origin).await;
            let crashed = self.usage.get().is_some_and(|block| block.crash().is_some());
            if up.is_ok() || crashed || self.is_killed() || !worker.is_closed() {
                return (Some(worker), up);
            }
            worker.wait_for_exit().await;
            origin = WorkerOrigin::Cold("the worker that waited for it had died".into());
        }
        loop {
            if self.is_killed() {
                return (None, Err(BringUpError::Ended));
            }
            // A kill does not interrupt this call: the process may exist before the call returns, and the lease holds
            // its core until the process is gone.
            let worker = match supply.start_worker(&lease.terms, &mut origin).await {
                Ok(worker) => Arc::new(worker),
                Err(_) if self.is_killed() => return (None, Err(BringUpError::Ended)),
                Err(why) => return (None, Err(BringUpError::Reason(why))),
            };
            let up = self.bring_up((book, supply), lease, &worker, &origin).await;
            let in_vain = matches!(origin, WorkerOrigin::Forked(_)) && !worker.has_been_ready();
            origin = match &up {
                Err(BringUpError::Reason(why)) if in_vain => supply.give_up_zygote(&lease.terms, &why.why),
                _ => return (Some(worker), up),
            };
            worker.kill();
            worker.wait_for_exit().await;
        }
    }

    async fn until_killed(&self) {
        let mut killed = self.killed.subscribe();
        let _ = killed.wait_for(Option::is_some).await;
    }

    async fn until_exit(&self, worker: &Arc<StartedWorker>) {
        tokio::select! {
            _ = worker.wait_for_exit() => {}
            () = self.until_killed() => {
                self.save_state(worker).await;
                worker.kill();
                worker.wait_for_exit().await;
            }
        }
    }

    async fn bring_up(
        &self,
        (book, supply): (&Arc<impl BookSteps>, &WorkerSupply),
        lease: &ServedLease,
        worker: &Arc<StartedWorker>,
        origin: &WorkerOrigin,
    ) -> Result<(), BringUpError> {
        tokio::select! {
            biased;
            () = self.until_killed() => Err(BringUpError::Ended),
            up = self.configure((book, supply), lease, worker, origin) => up,
        }
    }

    /// Waits for the end of its process; returns cause and last output. `not_up`: reason why the worker did not serve,
    /// if that is the cause.
    async fn cause_of_end(
        &self,
        lease: &ServedLease,
        worker: &StartedWorker,
        not_up: Option<StartError>,
    ) -> (Cause, String) {
        let exit = worker.wait_for_exit().await;
        if let Some(why) = not_up {
            return (not_started(why), exit.output.clone());
        }
        let mut running = self.running();
        let only = match (running.next(), running.next()) {
            (Some((_, running)), None) => Some(running.function),
            _ => None,
        };
        let killed = self.killed.borrow().clone();
        let evidence = ExitEvidence {
            exit: &exit,
            crash: self.usage.get().and_then(UsageBlock::crash),
            running: only,
            killed: killed.as_ref(),
            memory_limited: lease.terms.request.spec.memory_bytes > 0,
        };
        evidence.verdict()
    }
}

/// The refusal that says how a worker ended.
pub(crate) fn worker_died((cause, output): (Cause, String)) -> Rejection {
    Rejection::WorkerDied { cause, output }
}
