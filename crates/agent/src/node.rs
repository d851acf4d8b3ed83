//! State of the agent, and the one way to change it: a step of the book of leases, whose actions are then carried out.

mod attachment;
mod batch;
mod delegation;
mod description;
pub(crate) mod direct;
mod drain;
pub(crate) mod eviction;
mod identity;
pub(crate) mod idleness;
mod isolation;
pub(crate) mod journalling;
pub(crate) mod lifetime;
pub(crate) mod outbox;
mod tokens;
mod waiting;

pub(crate) use attachment::SessionHold;
pub(crate) use identity::NodeSettings;

use crate::batch::job_watch::JobWatch;
use crate::data::code::{CheckedLibrary, CodeCache};
use crate::data::swap::{self, WorkerStateKeeper};
use crate::isolation::caller::RequestOrigin;
use crate::leases::active_lease::ActiveLease;
use crate::leases::book_steps::BookSteps;
use crate::leases::cause::KillReason;
use crate::leases::core_marks::CoreMarks;
use crate::leases::incarnation::{Incarnation, IncarnationState as WorkerState};
use crate::leases::supply::WorkerSupply;
use crate::leases::terms::Terms;
use crate::node::outbox::Outbox;
use crate::workers::borrowing::Borrowing;
use direct::Requester;
use hotlease_journal::UsageJournal;
use hotlease_lease::LeaseRequest;
use hotlease_lease::agent::{BookAction, BookEvent, FinalTotal, LeaseBook, OwedTotals, SessionId};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::SessionReply;
use hotlease_wire::token::TokenKeys;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout_at};

/// Time for which a grant waits for leases that are ending; their workers are being killed, which takes milliseconds.
const FREEING_LIMIT: Duration = Duration::from_millis(250);
/// Largest number of totals of ended leases that are stored for a manager that does not answer.
const OWED_MAX: usize = 16 * 1024;
/// Number of unmarked free cores that are looked for as targets of moves.
const MOVES_MAX: usize = 4;
/// Time for which data that has arrived at a socket may still be unread.
const UNREAD_LIMIT: Duration = Duration::from_millis(2);

/// Mutable state. Locked for moments only: the holder of the lock never waits, and carrying out an action means
/// sending, signalling, or starting a task.
pub(crate) struct NodeState {
    /// The book of leases, which decides.
    pub book: LeaseBook,
    /// Totals that the manager has not acknowledged; always empty if there is no manager.
    pub outstanding: OwedTotals,
    /// The leases of the book, with their tasks.
    pub leases: HashMap<LeaseId, Arc<ActiveLease>>,
    /// Number of the operator's last order that was carried out.
    pub order: u64,
    /// Whether the agent ends as soon as the drain has finished; no order changes that.
    pub leaving: bool,
    pub(crate) outboxes: HashMap<SessionId, Arc<Outbox>>,
    last_session: u64,
    /// Marks on the cores of its leases, which other platforms of the host see.
    marks: CoreMarks,
}

impl NodeState {
    /// Marks the first `wanted` free cores that no other platform has marked. Other platforms' cores are used last.
    fn avoid_cores_of_others(&mut self, wanted: usize) {
        // A request for more cores than are free is refused, or gets all of them.
        if wanted <= self.book.free_core_numbers().count() {
            let of_others = self.marks.mark_first(self.book.free_core_numbers(), wanted);
            self.book.avoid_cores(of_others);
        }
    }

    /// Number of places on each core to which workers may be moved: shared cores and free cores. Leaves out cores that
    /// other platforms have marked, unless they have marked all free cores.
    pub fn room_for_moves(&self) -> BTreeMap<u32, u32> {
        let mut room = self.book.room();
        let of_others = self.marks.of_others(self.book.free_core_numbers(), MOVES_MAX);
        if of_others.len() < self.book.free_core_numbers().count() {
            room.retain(|core, _| !of_others.contains(core));
        }
        room
    }
}

/// State of the agent.
pub(crate) struct Node {
    /// Settings that do not change.
    pub identity: NodeSettings,
    /// Cached function libraries.
    pub codes: CodeCache,
    /// Sources of workers for its leases.
    pub supply: Arc<WorkerSupply>,
    /// Lending of idle memory to waiting workers.
    pub borrowing: Borrowing,
    /// Batch jobs on the node, and the site's policy for them.
    pub batch: JobWatch,
    /// Journal of usage, which survives crashes; `None` if usage is stored in memory only.
    pub journal: Option<Arc<UsageJournal>>,
    keys: RwLock<TokenKeys>,
    start: Instant,
    tables: Mutex<NodeState>,
    /// Number of leases that hold cores.
    active: watch::Sender<usize>,
    /// Whether several workers may use the same shared core, or a worker may use a core that it has left.
    shares_cores: watch::Sender<bool>,
    /// Number of ended leases whose end must still be reported to sessions, once their usage is durable.
    pub untold: watch::Sender<usize>,
    /// Time at which the next lease expires.
    expiry: watch::Sender<Option<Duration>>,
}

impl Node {
    pub fn new(
        identity: NodeSettings,
        supply: WorkerSupply,
        borrowing: Borrowing,
        batch: JobWatch,
        journal: Option<UsageJournal>,
    ) -> Self {
        let start = Instant::now();
        let book = LeaseBook::new(identity.cores.iter().copied(), identity.memory_bytes);
        let book = book.with_usable(identity.usable.iter().copied());
        let book = book.with_usable_memory(identity.usable_memory_bytes);
        let book = book.with_places(identity.sharing.places_per_core);
        let book = book.with_gpus(identity.gpus).with_longest(identity.bounds.duration);
        let ends = identity
            .lifetime
            .map(|times| times.leases_end.saturating_duration_since(start));
        let book = book.with_end(ends);
        Self {
            identity,
            codes: CodeCache::new(),
            supply: Arc::new(supply),
            borrowing,
            batch,
            journal: journal.map(Arc::new),
            keys: RwLock::new(TokenKeys::new(rand::random())),
            start,
            tables: Mutex::new(NodeState {
                book,
                outstanding: OwedTotals::new(OWED_MAX),
                leases: HashMap::new(),
                order: 0,
                leaving: false,
                outboxes: HashMap::new(),
                last_session: 0,
                marks: CoreMarks::new(),
            }),
            active: watch::Sender::new(0),
            shares_cores: watch::Sender::new(false),
            untold: watch::Sender::new(0),
            expiry: watch::Sender::new(None),
        }
    }

    /// Time on the clock of the book and of tokens.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Converts a time of [`now`](Self::now) to the runtime's clock.
    pub fn instant(&self, at: Duration) -> tokio::time::Instant {
        (self.start + at).into()
    }

    /// Converts a time of the host to the clock of [`now`](Self::now).
    pub fn time_of(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Locks the mutable state.
    pub fn tables(&self) -> MutexGuard<'_, NodeState> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the number of leases that hold cores.
    pub fn active_leases(&self) -> watch::Receiver<usize> {
        self.active.subscribe()
    }

    /// Watches whether several workers may use the same shared core, or a worker may use a core that it has left.
    pub fn shares_cores(&self) -> watch::Receiver<bool> {
        self.shares_cores.subscribe()
    }

    /// Watches the time at which the next lease expires.
    pub fn next_expiry(&self) -> watch::Receiver<Option<Duration>> {
        self.expiry.subscribe()
    }

    /// Steps the book with an event, and carries out its actions.
    pub fn step(self: &Arc<Self>, event: BookEvent) -> Result<(), Rejection> {
        let mut tables = self.tables();
        self.step_locked(&mut tables, event)
    }

    pub(crate) fn step_locked(self: &Arc<Self>, tables: &mut NodeState, event: BookEvent) -> Result<(), Rejection> {
        let step = tables.book.step(event, self.now());
        for action in step.actions {
            self.carry_out(tables, action);
        }
        let active = tables.book.leases().count();
        self.active
            .send_if_modified(|known| std::mem::replace(known, active) != active);
        tables.marks.keep(&tables.book.held_core_numbers());
        let shares = tables.book.shares_cores();
        self.shares_cores
            .send_if_modified(|known| std::mem::replace(known, shares) != shares);
        let expiry = tables.book.next_expiry();
        self.expiry
            .send_if_modified(|known| std::mem::replace(known, expiry) != expiry);
        self.keep_waiting(tables);
        step.refusal.map_or(Ok(()), Err)
    }

    fn carry_out(self: &Arc<Self>, tables: &mut NodeState, action: BookAction) {
        match action {
            BookAction::StartWorker {
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
                    tokio::spawn(incarnation.live(Arc::clone(self), Arc::clone(&self.supply), lease.served_lease()));
                }
            }
            BookAction::MoveWorker {
                lease, worker, core, ..
            } => {
                if let Some(lease) = tables.leases.get(&lease)
                    && let Ok(incarnation) = lease.incarnation(worker)
                {
                    incarnation.begin_move(core);
                    let (book, supply) = (Arc::clone(self), Arc::clone(&self.supply));
                    tokio::spawn(incarnation.change_core(core, book, supply, lease.served_lease()));
                }
            }
            BookAction::KillWorker {
                lease, worker, reason, ..
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
            BookAction::ReportWorkerDeath {
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
                        begun: incarnation.last_invocations(),
                    };
                    let outboxes = sessions.iter().filter_map(|session| tables.outboxes.get(session));
                    outboxes.for_each(|outbox| outbox.tell(reply.clone(), Vec::new()));
                }
            }
            BookAction::LeaseEnded {
                lease,
                reason,
                usage,
                sessions,
            } => {
                tracing::info!(%lease, %reason, invocations = usage.invocations, "lease ended");
                let outboxes = sessions.iter().filter_map(|session| tables.outboxes.remove(session));
                let outboxes: Vec<_> = outboxes.collect();
                if !tables.leases.get(&lease).is_some_and(|lease| lease.is_unused()) {
                    self.owe(tables, lease);
                }
                if let Some(lease) = tables.leases.remove(&lease) {
                    lease.close_storage();
                    self.note_end(&lease, tables, usage);
                    self.leave_spares(&lease);
                    lease.end(reason, usage);
                }
                self.tell_end(outboxes, SessionReply::LeaseEnded { reason, usage });
            }
            BookAction::DelegationEnded {
                lease,
                delegation,
                reason,
                sessions,
            } => self.end_delegation(tables, lease, (delegation, reason), &sessions),
            BookAction::Drained => self.clean(),
        }
    }

    /// State to save for a worker of this lease, if the lease has a state.
    fn keeping_of(&self, lease: &ActiveLease) -> Option<Arc<WorkerStateKeeper>> {
        let (options, wanted) = (self.identity.swap.clone()?, lease.terms.state.clone()?);
        Some(Arc::new(WorkerStateKeeper::new(
            options,
            wanted,
            self.identity.host.clone(),
        )))
    }

    /// Notes that the total of an ended lease of this run is owed to the manager.
    fn owe(&self, tables: &mut NodeState, lease: LeaseId) {
        let ended = tables.book.ended_leases().rev().find(|ended| ended.id == lease);
        let Some(total) = ended.map(|ended| FinalTotal::of(ended, self.identity.boot)) else {
            return;
        };
        if let Some(lost) = tables.outstanding.owe(total)
            && self.journal.is_none()
        {
            tracing::warn!(lease = %lost.lease, "the manager is away for so long that a lease will not be billed");
        }
    }

    /// Owes all known totals again: a manager with another ledger lacks everything that the last manager acknowledged.
    pub fn owe_again(&self) {
        let mut guard = self.tables();
        let tables = &mut *guard;
        for ended in tables.book.ended_leases() {
            // Drops the oldest total if there are too many: its lease is not in the book any more.
            let _ = tables.outstanding.owe(FinalTotal::of(ended, self.identity.boot));
        }
    }

    /// Grants as [`grant`](Self::grant) does, but waits for cores that are about to be free. Otherwise a client that
    /// has just lost or dropped a lease, and asks for the next lease, would be refused a few milliseconds too early.
    pub async fn grant_soon(
        self: &Arc<Self>,
        message: AcquireRequest,
        origin: RequestOrigin,
        asker: Requester,
    ) -> Result<Grant, Rejection> {
        let since = Instant::now();
        self.identity.tenants.admit(&message.tenant, origin)?;
        let request = LeaseRequest::of(&message, self.identity.ttl)?;
        let request = Arc::new(self.identity.bounds.cut(request));
        let isolation = self.isolation_of(&message, origin).await?;
        // To learn how much is free, a manager asks for more than the node offers.
        let is_count = self.tables().book.offers_less_than(&request.spec);
        if request.spec.memory_bytes > 0 && !is_count {
            // The book decides whether there is enough now.
            eviction::make_room(self, request.spec.all_memory_bytes()).await;
        }
        self.check_idle_memory(&request)?;
        let mut active = self.active_leases();
        let until = tokio::time::Instant::now() + FREEING_LIMIT;
        let mut first = true;
        loop {
            let refusal = match self.grant((&message, &request), asker, (&isolation, since)) {
                Err(
                    refusal @ (Rejection::NoCapacity { .. } | Rejection::NoPlaces { .. } | Rejection::NoGpus { .. }),
                ) => refusal,
                Err(refusal @ Rejection::TooMany { .. }) => {
                    if self.tables().book.is_short_of_memory(&request.spec) {
                        self.tell_room_wanted(&refusal);
                    }
                    return Err(refusal);
                }
                done => return done,
            };
            // Waits even if the request would not fit on these cores: a manager that asks several agents adds up their
            // free cores.
            if self.tables().book.ending_cores() > 0 {
                match timeout_at(until, active.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) | Err(_) => return Err(refusal),
                }
            }
            if !std::mem::take(&mut first) {
                return Err(refusal);
            }
            // A request for more than the node offers would be refused even if all holders gave up their leases.
            if asker == Requester::Manager || !is_count {
                self.tell_room_wanted(&refusal);
            }
            // A client may have closed its session just before this request, and the end of the session may not have
            // been read yet. A client that does not use its lease may release it.
            sleep(UNREAD_LIMIT).await;
        }
    }

    /// Grants a lease, and starts its workers without waiting for them. `message`: the message that the request was
    /// made from, with the program of the workers.
    fn grant(
        self: &Arc<Self>,
        (message, request): (&AcquireRequest, &Arc<LeaseRequest>),
        asker: Requester,
        (isolation, since): (&isolation::Isolation, Instant),
    ) -> Result<Grant, Rejection> {
        let id = LeaseId(rand::random());
        let at = (id, self.identity.host.as_str());
        let state = swap::state_request(self.identity.swap.as_deref(), (message, request), isolation.sandbox, at)?;
        let of_python = |python| self.program(python, &request.tenant, isolation);
        let python = message.python.clone().map(|mut python| {
            python.environment.extend(message.variables.clone());
            python
        });
        let (program, hidden) = python.map(of_python).transpose()?.unzip();
        let told = self.reach_message(isolation, program.as_deref(), &hidden.unwrap_or_default());
        let mut terms = Terms {
            memory_bytes: request.spec.memory_bytes,
            request: Arc::clone(request),
            asked: since,
            image: isolation.waiting_time(),
            direct: asker == Requester::Client,
            sandbox: isolation.sandbox,
            reach: isolation.reach.clone(),
            reach_told: told.clone(),
            storage: isolation.storage.clone(),
            state,
            program,
        };
        let built_in = match &terms.program {
            Some(_) => Some(CheckedLibrary::of_python().map_err(|error| Rejection::Unavailable {
                what: format!("memory for a lease: {error}"),
            })?),
            None => None,
        };
        if self.journal.as_ref().is_some_and(|journal| journal.is_full()) {
            return Err(Rejection::Unavailable {
                what: "usage of too many leases waits for the manager to take it: a new lease".into(),
            });
        }
        let mut guard = self.tables();
        let tables = &mut *guard;
        if asker == Requester::Client {
            direct::admit(&self.identity, tables, request)?;
        }
        // Set under the lock of the grant, because a batch job that begins before the grant takes memory away.
        if request.spec.memory_bytes == 0 {
            terms.memory_bytes = tables.book.memory_share(&request.spec);
        }
        let (memory_bytes, all_memory_bytes) = (terms.memory_bytes, terms.all_memory_bytes());
        tables.avoid_cores_of_others(request.spec.busy_cores() as usize);
        // Inserted before the step, because the actions of the step refer to it.
        tables
            .leases
            .insert(id, Arc::new(ActiveLease::new(id, terms, built_in)));
        let grant = BookEvent::Grant {
            lease: id,
            request: Arc::clone(request),
        };
        if let Err(refusal) = self.step_locked(tables, grant) {
            tables.leases.remove(&id);
            return Err(refusal);
        }
        if let Some(granted) = tables.leases.get(&id) {
            self.note_beginning(granted, request.spec.workers as usize);
        }
        let lease = tables.book.active(id)?;
        tracing::info!(lease = %id, tenant = request.tenant, cores = ?lease.cores(), gpus = ?lease.gpus(), memory_bytes, "lease granted");
        Ok(Grant {
            reach: Some(told),
            sandbox: isolation.sandbox.to_string(),
            memory_bytes: all_memory_bytes,
            ..self.describe(lease)
        })
    }
}

impl BookSteps for Node {
    fn step(self: &Arc<Self>, event: BookEvent) -> Result<(), Rejection> {
        Node::step(self, event)
    }

    fn check_active(&self, lease: LeaseId) -> Result<(), Rejection> {
        Node::check_active(self, lease)
    }
}
