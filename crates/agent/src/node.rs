//! The agent's state, and the one way to change it: a step of the book, and the carrying out of what the
//! book says.

mod attachment;
mod bearing;
mod describing;
mod identity;
mod isolating;
mod lending;

pub(crate) use attachment::Attachment;
pub(crate) use identity::Identity;

use crate::active_lease::{ActiveLease, Terms};
use crate::caller::Origin;
use crate::cause::KillReason;
use crate::code::CodeCache;
use crate::direct::{self, Asker};
use crate::incarnation::{Incarnation, State as WorkerState};
use crate::outbox::Outbox;
use crate::pool::Pools;
use crate::python;
use crate::sharing::{self, CoreClaims};
use crate::spares::Spares;
use crate::starts::Starts;
use crate::swap::{self, Keeping};
use crate::waiting::Borrowing;
use hotlease_journal::UsageJournal;
use hotlease_lease::agent::{
    Action, Event, FinalTotal, GrantRequest, LeaseBook, Outstanding, SessionId, Sharing,
};
use hotlease_sandbox::Launcher;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::SessionReply;
use hotlease_wire::token::TokenKeys;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout_at};

/// How long a grant waits for leases that are ending; their workers are being killed, which takes
/// milliseconds.
const FREEING_LIMIT: Duration = Duration::from_millis(250);
/// Totals of ended leases that are kept for a manager that does not answer.
const OWED_MAX: usize = 16 * 1024;
/// How long what has arrived at a socket may go unread.
const UNREAD_LIMIT: Duration = Duration::from_millis(2);

/// What changes. Locked for moments only: nothing waits under the lock, and carrying out an action means
/// to send, to signal, or to start a task.
pub(crate) struct Tables {
    /// The authority.
    pub book: LeaseBook,
    /// Totals that the manager has not acknowledged; empty for ever where there is no manager.
    pub outstanding: Outstanding,
    /// The same leases, as far as tasks are concerned.
    pub leases: HashMap<LeaseId, Arc<ActiveLease>>,
    /// The last order of an operator that was carried out.
    pub order: u64,
    /// The agent ends as soon as the drain is over: nobody's order changes that.
    pub leaving: bool,
    pub(crate) outboxes: HashMap<SessionId, Arc<Outbox>>,
    last_session: u64,
}

/// See the module.
pub(crate) struct Node {
    /// Fixed.
    pub identity: Identity,
    /// Libraries.
    pub codes: CodeCache,
    /// Warm workers: native ones, and interpreters.
    pub pools: Pools,
    pub spares: Arc<Spares>,
    /// The memory that they wait in.
    pub borrowing: Borrowing,
    /// How leases began.
    pub starts: Starts,
    /// Of shared cores.
    pub claims: CoreClaims,
    /// What leases have used, over crashes; none: in memory only.
    pub journal: Option<Arc<UsageJournal>>,
    launcher: Launcher,
    keys: RwLock<TokenKeys>,
    start: Instant,
    tables: Mutex<Tables>,
    /// Leases that hold cores.
    active: watch::Sender<usize>,
    /// Those of them that share their cores.
    shared: watch::Sender<usize>,
    /// Ends of leases that are to be told once their usage is durable.
    pub untold: watch::Sender<usize>,
    /// When the next one expires.
    expiry: watch::Sender<Option<Duration>>,
    tick_hz: watch::Sender<Option<u64>>,
}

impl Node {
    pub fn new(
        identity: Identity,
        launcher: Launcher,
        (pools, spares, borrowing): (Pools, Arc<Spares>, Borrowing),
        journal: Option<UsageJournal>,
    ) -> Self {
        let book = LeaseBook::new(identity.cores.iter().copied(), identity.memory_bytes);
        let book = book.with_usable(identity.usable.iter().copied());
        let book = book.with_places(identity.sharing.places_per_core);
        let book = book.with_gpus(identity.gpus);
        Self {
            identity,
            codes: CodeCache::new(),
            pools,
            spares,
            borrowing,
            starts: Starts::default(),
            claims: CoreClaims::default(),
            journal: journal.map(Arc::new),
            launcher,
            keys: RwLock::new(TokenKeys::new(rand::random())),
            start: Instant::now(),
            tables: Mutex::new(Tables {
                book,
                outstanding: Outstanding::new(OWED_MAX),
                leases: HashMap::new(),
                order: 0,
                leaving: false,
                outboxes: HashMap::new(),
                last_session: 0,
            }),
            active: watch::Sender::new(0),
            shared: watch::Sender::new(0),
            untold: watch::Sender::new(0),
            expiry: watch::Sender::new(None),
            tick_hz: watch::Sender::new(None),
        }
    }

    /// The clock of the book and of tokens.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The moment that `at` is, on the runtime's clock.
    pub fn instant(&self, at: Duration) -> tokio::time::Instant {
        (self.start + at).into()
    }

    /// To start workers with.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// To look at.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many leases hold cores, now and later.
    pub fn active_leases(&self) -> watch::Receiver<usize> {
        self.active.subscribe()
    }

    /// How many of them share their cores, now and later.
    pub fn shared_leases(&self) -> watch::Receiver<usize> {
        self.shared.subscribe()
    }

    /// When the next lease expires, now and later.
    pub fn next_expiry(&self) -> watch::Receiver<Option<Duration>> {
        self.expiry.subscribe()
    }

    /// The rate of the node's time-stamp counter was measured.
    pub fn set_tick_hz(&self, tick_hz: u64) {
        self.tick_hz.send_replace(Some(tick_hz));
    }

    /// The rate of the node's time-stamp counter, which is measured when the agent starts.
    pub async fn tick_hz(&self) -> u64 {
        let mut tick_hz = self.tick_hz.subscribe();
        let _ = tick_hz.wait_for(Option::is_some).await;
        let tick_hz = *tick_hz.borrow();
        tick_hz.unwrap_or(1)
    }

    /// Something happened.
    pub fn step(self: &Arc<Self>, event: Event) -> Result<(), Refusal> {
        let mut tables = self.tables();
        self.step_locked(&mut tables, event)
    }

    pub(crate) fn step_locked(self: &Arc<Self>, tables: &mut Tables, event: Event) -> Result<(), Refusal> {
        let step = tables.book.step(event, self.now());
        for action in step.actions {
            self.carry_out(tables, action);
        }
        let active = tables.book.leases().count();
        self.active
            .send_if_modified(|known| std::mem::replace(known, active) != active);
        let shared = tables.book.shared_leases();
        self.shared
            .send_if_modified(|known| std::mem::replace(known, shared) != shared);
        let expiry = tables.book.next_expiry();
        self.expiry
            .send_if_modified(|known| std::mem::replace(known, expiry) != expiry);
        self.keep_waiting(tables);
        step.refusal.map_or(Ok(()), Err)
    }

    fn carry_out(self: &Arc<Self>, tables: &mut Tables, action: Action) {
        match action {
            Action::StartWorker {
                lease,
                worker,
                epoch,
                cores,
                gpus,
            } => {
                if let Some(lease) = tables.leases.get(&lease) {
                    let keeping = self.keeping_of(lease);
                    let incarnation = Incarnation::new(worker, epoch, (cores, gpus), keeping);
                    let incarnation = Arc::new(incarnation);
                    lease.place(Arc::clone(&incarnation));
                    tokio::spawn(incarnation.live(Arc::clone(self), Arc::clone(lease)));
                }
            }
            Action::KillWorker {
                lease,
                worker,
                reason,
                ..
            } => {
                self.tell_ending(tables, lease, reason);
                if let Some(lease) = tables.leases.get(&lease) {
                    lease.close_storage();
                }
                if let Some(lease) = tables.leases.get(&lease)
                    && let Ok(incarnation) = lease.incarnation(worker)
                {
                    incarnation.kill(KillReason::LeaseEnded(reason));
                }
            }
            Action::TellWorkerDied {
                lease,
                worker,
                epoch,
                sessions,
            } => {
                if let Some(lease) = tables.leases.get(&lease)
                    && let Ok(incarnation) = lease.incarnation(worker)
                    && let WorkerState::Gone { cause, output } = incarnation.state()
                {
                    let reply = SessionReply::WorkerDied {
                        worker,
                        epoch,
                        cause,
                        output,
                        begun: incarnation.begun(),
                    };
                    let outboxes = sessions.iter().filter_map(|session| tables.outboxes.get(session));
                    outboxes.for_each(|outbox| outbox.tell(reply.clone(), Vec::new()));
                }
            }
            Action::LeaseEnded {
                lease,
                reason,
                usage,
                sessions,
            } => {
                tracing::info!(%lease, %reason, invocations = usage.invocations, "lease ended");
                let outboxes = sessions
                    .iter()
                    .filter_map(|session| tables.outboxes.remove(session));
                let outboxes: Vec<_> = outboxes.collect();
                self.owe(tables, lease);
                if let Some(lease) = tables.leases.remove(&lease) {
                    lease.close_storage();
                    self.note_end(&lease, tables, usage);
                    self.leave_spares(&lease);
                    lease.end(reason, usage);
                }
                self.tell_end(outboxes, SessionReply::LeaseEnded { reason, usage });
            }
            Action::DelegationEnded {
                lease,
                delegation,
                reason,
                sessions,
            } => self.end_lending(tables, lease, (delegation, reason), &sessions),
            Action::Drained => self.clean(),
        }
    }

    /// What its worker keeps, of a lease with a state.
    fn keeping_of(&self, lease: &ActiveLease) -> Option<Arc<Keeping>> {
        let (options, wanted) = (self.identity.swap.clone()?, lease.terms.state.clone()?);
        Some(Arc::new(Keeping::new(
            options,
            wanted,
            self.identity.host.clone(),
        )))
    }

    /// A lease of this run is over: its total is owed to the manager.
    fn owe(&self, tables: &mut Tables, lease: LeaseId) {
        let ended = tables.book.ended().rev().find(|ended| ended.id == lease);
        let Some(total) = ended.map(|ended| FinalTotal::of(ended, self.identity.boot)) else {
            return;
        };
        if let Some(lost) = tables.outstanding.owe(total)
            && self.journal.is_none()
        {
            tracing::warn!(lease = %lost.lease, "the manager is away for so long that a lease will not be billed");
        }
    }

    /// A manager with another ledger knows nothing of what the last one acknowledged.
    pub fn owe_again(&self) {
        let mut guard = self.tables();
        let tables = &mut *guard;
        for ended in tables.book.ended() {
            // What does not fit is remembered by the book no longer either.
            let _ = tables.outstanding.owe(FinalTotal::of(ended, self.identity.boot));
        }
    }

    /// As [`grant`](Self::grant), but waits for cores that are about to be free: who has just lost or
    /// dropped a lease and asks for the next one would otherwise be refused for want of milliseconds.
    pub async fn grant_soon(
        self: &Arc<Self>,
        request: AcquireRequest,
        origin: Origin,
        asker: Asker,
    ) -> Result<Grant, Refusal> {
        let since = Instant::now();
        self.identity.tenants.admit(&request.tenant, origin)?;
        let isolation = self.isolation_of(&request, origin).await?;
        if request.memory_bytes > 0 {
            // Whether there is enough now is for the book to say.
            swap::make_room(self, request.memory_bytes.saturating_mul(request.workers.into())).await;
        }
        let mut active = self.active_leases();
        let until = tokio::time::Instant::now() + FREEING_LIMIT;
        let mut first = true;
        loop {
            let refusal = match self.grant(request.clone(), asker, (&isolation, since)) {
                Err(
                    refusal
                    @ (Refusal::NoCapacity { .. } | Refusal::NoPlaces { .. } | Refusal::NoGpus { .. }),
                ) => refusal,
                done => return done,
            };
            let (sharing, _) = sharing::asked(&request)?;
            let asked = request.workers.saturating_mul(request.slots_per_worker);
            let may_soon_fit = {
                let gpus = request.workers.saturating_mul(request.gpus);
                self.tables().book.may_soon_fit(sharing, asked, gpus)
            };
            if may_soon_fit {
                match timeout_at(until, active.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) | Err(_) => return Err(refusal),
                }
            }
            if !std::mem::take(&mut first) {
                return Err(refusal);
            }
            // The end of a session that its client closed just before it asked may not have been read yet.
            sleep(UNREAD_LIMIT).await;
        }
    }

    /// Grants a lease, and starts its workers without waiting for them.
    fn grant(
        self: &Arc<Self>,
        request: AcquireRequest,
        asker: Asker,
        (isolation, since): (&isolating::Isolation, Instant),
    ) -> Result<Grant, Refusal> {
        let bad = |what: &str| Refusal::BadRequest { what: what.into() };
        let (sharing, polling) = sharing::asked(&request)?;
        let id = LeaseId(rand::random());
        let at = (id, self.identity.host.as_str());
        let state = swap::wanted(self.identity.swap.as_deref(), &request, at)?;
        let asked = GrantRequest {
            id,
            tenant: request.tenant.clone(),
            label: request.label,
            workers: request.workers,
            slots_per_worker: request.slots_per_worker,
            memory_bytes: request.memory_bytes,
            gpus: request.gpus,
            sharing,
            ttl: match request.ttl_ms {
                0 => self.identity.ttl,
                ttl_ms => Duration::from_millis(ttl_ms),
            },
        };
        let of_python = |python| self.program(python, &request.tenant, isolation);
        let program = request.python.map(of_python).transpose()?;
        let terms = Terms {
            tenant: request.tenant,
            polling,
            hot_budget_ns: request.hot_budget_us.saturating_mul(1000),
            memory_bytes: request.memory_bytes,
            shared: sharing == Sharing::Shared,
            asked: since,
            image: isolation.waited(),
            direct: asker == Asker::Client,
            sandbox: isolation.sandbox,
            reach: isolation.reach.clone(),
            reach_told: isolation.reach_told.clone(),
            storage: isolation.storage.clone(),
            state,
            program,
        };
        let built_in = match &terms.program {
            Some(_) if request.slots_per_worker != 1 => return Err(bad("a Python worker has one slot")),
            Some(_) => Some(python::library().map_err(|error| Refusal::Unavailable {
                what: format!("memory for a lease: {error}"),
            })?),
            None => None,
        };
        if self.journal.as_ref().is_some_and(|journal| journal.is_full()) {
            return Err(Refusal::Unavailable {
                what: "usage of too many leases waits for the manager to take it: a new lease".into(),
            });
        }
        let mut tables = self.tables();
        if asker == Asker::Client {
            direct::admit(&self.identity, &tables, &asked)?;
        }
        // Before the step, whose actions refer to it.
        tables
            .leases
            .insert(id, Arc::new(ActiveLease::new(id, terms, built_in)));
        if let Err(refusal) = self.step_locked(&mut tables, Event::Grant(asked)) {
            tables.leases.remove(&id);
            return Err(refusal);
        }
        if let Some(granted) = tables.leases.get(&id) {
            self.note_beginning(granted, request.workers as usize);
        }
        let lease = tables.book.active(id)?;
        tracing::info!(lease = %id, tenant = lease.tenant, cores = ?lease.cores(), gpus = ?lease.gpus(), "lease granted");
        Ok(Grant {
            reach: Some(isolation.reach_told.clone()),
            ..self.describe(lease)
        })
    }
}
