//! A lease in use: its session, its workers' connections, and the cold path that makes them.

use crate::Error;
use crate::channel::Channel;
use crate::lease::acquire::{AcquireError, ReadyLease};
use crate::lease::direct;
use crate::lease::manager::ManagerConnection;
use crate::lease::unattached::UnattachedGrant;
use crate::lease::{ColdPhases, LeasePlan};
use crate::session::connection::{self, ConnectionGuard, Rings, WorkerConnection};
use crate::session::registrations::RegistrationLimits;
use crate::session::transport::{self, Transport};
use crate::session::{Expectations, Session, SessionEnd, SessionState};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AcquireRequest, AgentInfo, Grant};
use hotlease_wire::ids::{LeaseId, SlotIndex, WorkerIndex};
use hotlease_wire::limits::{DELEGATED_SLOTS_MAX, WORKERS_MAX};
use hotlease_wire::session::{SlotPlace, StartPhases, UsageTotals};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

/// Longest time that a release waits until the manager has received the report of a direct lease.
const VOUCH_LIMIT: Duration = Duration::from_millis(200);

/// A lease with a session. Dropping it ends the lease (its client is gone); `release` ends it properly.
pub(crate) struct Lease {
    plan: LeasePlan,
    session: Session,
    /// Index of the code's first function in every worker of the lease.
    base: u16,
    workers: Vec<Option<ConnectionGuard>>,
    at: Box<LeaseAddress>,
    /// The task that reports the lease to the manager; it ends when the manager has received the report.
    vouching: Option<JoinHandle<()>>,
}

/// Address of a lease: its slots and its agent.
struct LeaseAddress {
    /// Slots of each worker.
    homes: Vec<WorkerSlots>,
    /// Grant with which peers reach the agent; without a token.
    way: Grant,
}

/// A worker of the agent, and the slots of it that are used.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSlots {
    worker: WorkerIndex,
    slots: Vec<SlotIndex>,
}

/// A connected worker, and the rings exchanged with its slots, in their order.
struct OpenedWorker {
    watched: ConnectionGuard,
    rings: Vec<Rings>,
    /// Time that the introduction took.
    connect: Duration,
}

impl Lease {
    /// Takes leases for this many workers, but not from the agents in `without`; loads the code, and opens a channel to
    /// every slot. Runs on the control thread.
    pub(crate) async fn take(
        plan: &LeasePlan,
        manager: &ManagerConnection,
        workers: u16,
        without: Vec<String>,
    ) -> Result<Vec<ReadyLease>, AcquireError> {
        let options = &plan.options;
        let mut lap = stopwatch();
        transport::prepare(options);
        let request = AcquireRequest {
            without,
            ..plan.request(workers)
        };
        let asked = manager.clone();
        let asking = async move { asked.acquire(request).await };
        let mut first = UnattachedGrant::ask(manager, asking).await?;
        let acquire = lap();
        let others = first.take_others();
        if others.is_empty() {
            let workers = first.workers_of(workers);
            return Ok(vec![Self::start(plan, manager, first, workers, acquire).await?]);
        }
        let mut starting = JoinSet::new();
        for (number, grant) in std::iter::once(first).chain(others).enumerate() {
            let (plan, manager) = (plan.clone(), manager.clone());
            let workers = grant.workers_of(workers);
            starting.spawn(async move { (number, Self::start(&plan, &manager, grant, workers, acquire).await) });
        }
        let (mut parts, mut failed) = (BTreeMap::new(), None::<AcquireError>);
        while let Some(started) = starting.join_next().await {
            match started {
                Ok((number, Ok(part))) => drop(parts.insert(number, part)),
                Ok((_, Err(not_taken))) => failed = Some(not_taken),
                Err(error) => failed = Some(Error::failed_task(&error).into()),
            }
        }
        let parts: Vec<ReadyLease> = parts.into_values().collect();
        let slots: usize = parts.iter().map(|(_, channels, _)| channels.len()).sum();
        if failed.is_none() && slots > usize::from(workers) * usize::from(options.slots) {
            let error = Error::protocol("the manager granted more workers than were asked for");
            failed = Some(error.into());
        }
        let Some(not_taken) = failed else {
            return Ok(parts);
        };
        // The lease needs all of its parts, so the parts that are ready are released.
        for (lease, ..) in parts {
            if let Err(error) = lease.release().await {
                tracing::debug!(%error, "a part of a lease that could not be used was not released");
            }
        }
        Err(not_taken)
    }

    /// Takes a lease of an agent, without the manager.
    pub(crate) async fn take_from_agent(
        plan: &LeasePlan,
        manager: &ManagerConnection,
        agent: &AgentInfo,
        workers: u16,
    ) -> Result<Vec<ReadyLease>, AcquireError> {
        let options = &plan.options;
        let mut lap = stopwatch();
        transport::prepare(options);
        let request = options.acquire_request(workers, &plan.code);
        let asked = (manager.clone(), agent.clone());
        let asking = async move { asked.0.acquire_of(&asked.1, request).await };
        let grant = UnattachedGrant::ask(manager, asking).await;
        let grant = grant.map_err(AcquireError::at(&agent.id, &agent.host))?;
        let granted = Instant::now();
        let acquire = lap();
        let vouched = (options.clone(), Grant::clone(&grant));
        let (mut lease, channels, phases) = Self::start(plan, manager, grant, workers, acquire).await?;
        // The report goes on if the lease is released before the manager has received it.
        lease.vouching = Some(tokio::spawn(direct::report_lease(
            manager.clone(),
            vouched.0,
            vouched.1,
            granted,
        )));
        Ok(vec![(lease, channels, phases)])
    }

    /// Attaches to a granted lease, and makes it usable.
    async fn start(
        plan: &LeasePlan,
        manager: &ManagerConnection,
        grant: UnattachedGrant,
        workers: u16,
        acquire: Duration,
    ) -> Result<ReadyLease, AcquireError> {
        let at = AcquireError::at(&grant.agent, &grant.host);
        Self::start_at(plan, manager, grant, workers, acquire).await.map_err(at)
    }

    async fn start_at(
        plan: &LeasePlan,
        manager: &ManagerConnection,
        grant: UnattachedGrant,
        workers: u16,
        acquire: Duration,
    ) -> Result<ReadyLease, Error> {
        let mut lap = stopwatch();
        // The sandbox is noted before the workers can answer.
        plan.note_sandbox(&grant.sandbox);
        let attached = async {
            let reach = plan.options.reach.check_granted(grant.reach.as_ref())?;
            let expected = Expectations {
                renewal: plan.options.renew_lease,
                ..Expectations::of(usize::from(workers), &plan.options.sandbox)
            };
            let session = Session::attach(&grant, manager.site(), expected).await?;
            Ok((session, reach))
        };
        let (session, reach) = match attached.await {
            Ok(attached) => attached,
            Err(error) => {
                grant.release().await;
                return Err(error);
            }
        };
        let grant = grant.attached();
        let attach = lap();
        let hidden = grant.reach.clone().unwrap_or_default().hidden;
        let (mut lease, channels, rest) = Self::begin(plan, session, workers).await?;
        lease.at.way = Grant {
            token: Vec::new(),
            others: Vec::new(),
            ..grant
        };
        let phases = ColdPhases {
            acquire,
            attach,
            reach,
            hidden,
            ..rest
        };
        Ok((lease, channels, phases))
    }

    /// Makes an attached lease usable, or gives it back.
    pub(crate) async fn begin(plan: &LeasePlan, session: Session, workers: u16) -> Result<ReadyLease, Error> {
        let slots: Vec<SlotIndex> = (0..plan.options.slots).map(SlotIndex).collect();
        let home = |worker| WorkerSlots {
            worker: WorkerIndex(worker),
            slots: slots.clone(),
        };
        match check_workers(&session, workers, plan.options.slots) {
            Ok(()) => Self::begin_at(plan, session, (0..workers).map(home).collect()).await,
            Err(error) => {
                give_back(session).await;
                Err(error)
            }
        }
    }

    /// Attaches to slots that the holder of another lease lends, and makes them usable: each as a worker of its
    /// own.
    pub(crate) async fn join(plan: &LeasePlan, manager: &ManagerConnection, grant: Grant) -> Result<ReadyLease, Error> {
        let mut lap = stopwatch();
        transport::prepare(&plan.options);
        // The holder has started the workers.
        let expected = Expectations::of(WORKERS_MAX as usize, "");
        let session = Session::attach(&grant, manager.site(), expected).await?;
        let attach = lap();
        let lent = session.attached.lent.clone().unwrap_or_default();
        if lent.is_empty() || lent.len() > DELEGATED_SLOTS_MAX {
            return Err(Error::protocol("the agent has lent no slots, or more than there are"));
        }
        let home = |place: SlotPlace| WorkerSlots {
            worker: place.worker,
            slots: vec![place.slot],
        };
        let homes = lent.into_iter().map(home).collect();
        let (lease, channels, rest) = Self::begin_at(plan, session, homes).await?;
        Ok((lease, channels, ColdPhases { attach, ..rest }))
    }

    async fn begin_at(plan: &LeasePlan, session: Session, homes: Vec<WorkerSlots>) -> Result<ReadyLease, Error> {
        session.shared().report_wanted_room(plan.wanted.clone());
        let (opened, base, mut phases) = match Self::prepare(plan, &session, &homes).await {
            Ok(prepared) => prepared,
            Err(error) => {
                give_back(session).await;
                return Err(error);
            }
        };
        let mut lease = Self {
            plan: plan.clone(),
            session,
            base,
            workers: Vec::new(),
            at: Box::new(LeaseAddress {
                homes,
                way: Grant::default(),
            }),
            vouching: None,
        };
        let mut channels = Vec::with_capacity(lease.at.homes.len() * usize::from(plan.options.slots));
        for opened in opened {
            phases.connect = phases.connect.max(opened.connect);
            channels.extend(lease.channels(&opened.watched, opened.rings));
            lease.workers.push(Some(opened.watched));
        }
        Ok((lease, channels, phases))
    }

    /// Loads the code and connects to the workers; returns the workers in order, and the index of the code's first
    /// function.
    async fn prepare(
        plan: &LeasePlan,
        session: &Session,
        homes: &[WorkerSlots],
    ) -> Result<(Vec<OpenedWorker>, u16, ColdPhases), Error> {
        let mut lap = stopwatch();
        let mut phases = ColdPhases {
            start: StartPhases::clone(&session.attached.start),
            ..ColdPhases::default()
        };

        // Loading the library restores the state, so no connection may reach a worker before that.
        let restored = match plan.options.state.is_empty() {
            // Nothing is loaded.
            true if plan.code.functions().is_empty() => Some((0, Duration::ZERO)),
            true => None,
            false => Some(session.shared().load(&plan.code).await?),
        };
        // Workers are connected and loaded at the same time. The requests for connections are sent first, so that rings
        // are made on both sides while the agent loads the library.
        let mut opening = JoinSet::new();
        for (worker, home) in homes.iter().enumerate() {
            let opened = Self::open(session.shared().clone(), plan.clone(), home.clone());
            opening.spawn(async move { (worker, opened.await) });
        }
        // Lets the tasks above send their requests.
        tokio::task::yield_now().await;
        let loaded = match restored {
            Some(restored) => Ok(restored),
            None => session.shared().load(&plan.code).await,
        };
        phases.load = lap();
        let mut opened = BTreeMap::new();
        while let Some(result) = opening.join_next().await {
            let (worker, result) = result.map_err(|error| Error::failed_task(&error))?;
            // Errors of connections are reported only if loading succeeded: a library that kills its worker makes the
            // connection fail, too.
            if loaded.is_ok() {
                opened.insert(worker, result?);
            }
        }
        let (base, worker_load) = loaded?;
        phases.worker_load = worker_load;

        phases.open = lap();
        Ok((opened.into_values().collect(), base, phases))
    }

    /// Connects to a worker and exchanges rings with all its slots.
    async fn open(session: Arc<SessionState>, plan: LeasePlan, home: WorkerSlots) -> Result<OpenedWorker, Error> {
        let index = home.worker;
        let mut lap = stopwatch();
        let transport = Transport::choose(&plan.options, session.route().cloned());
        let (socket, epoch) = session.connect(index, transport != Transport::Shm).await?;
        let connect = lap();
        let limits = RegistrationLimits::of(&plan.options, &transport);
        let doorbell = plan.doorbell.clone();
        let watched = ConnectionGuard::start(socket, index, epoch, session, doorbell, transport, limits)?;
        let mut rings = Vec::with_capacity(home.slots.len());
        for slot in home.slots {
            rings.push(watched.connection().open(slot, &plan.options).await?);
        }
        Ok(OpenedWorker {
            watched,
            rings,
            connect,
        })
    }

    fn channels(&self, watched: &ConnectionGuard, rings: Vec<Rings>) -> Vec<Arc<Channel>> {
        let channel = |rings| {
            watched
                .connection()
                .channel(rings, (self.base, self.plan.code.clone()), self.plan.options.completion)
        };
        rings.into_iter().map(channel).collect()
    }

    /// Connects to a worker again, and opens all its slots. The agent restarts the worker first if it is dead.
    pub(crate) async fn reconnect(&mut self, worker: u16) -> Result<Vec<Arc<Channel>>, Error> {
        let at = usize::from(worker);
        let (Some(old), Some(home)) = (self.workers.get_mut(at), self.at.homes.get(at).cloned()) else {
            return Err(Rejection::UnknownWorker {
                index: worker,
                workers: self.workers(),
            }
            .into());
        };
        // Closes the old connection first, so that it does not count against the worker's limit.
        *old = None;
        let OpenedWorker { watched, rings, .. } =
            Self::open(self.session.shared().clone(), self.plan.clone(), home).await?;
        let channels = self.channels(&watched, rings);
        self.workers[at] = Some(watched);
        Ok(channels)
    }

    /// The connection to the first worker.
    pub(crate) fn first_connection(&self) -> Option<&Arc<WorkerConnection>> {
        let first = self.workers.first()?.as_ref();
        first.map(ConnectionGuard::connection)
    }

    /// The agent's identity.
    pub(crate) fn agent(&self) -> &str {
        &self.at.way.agent
    }

    /// Number of workers.
    pub(crate) fn workers(&self) -> u16 {
        // There are as many as were requested, and that number had 16 bits.
        self.workers.len() as u16
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.session.attached.lease
    }

    /// Lends slots of its workers to peers; returns the delegation's number, and the grant with which a peer attaches.
    pub(crate) async fn lend(&self, places: &[(u16, u16)], lasts: Option<Duration>) -> Result<(u32, Grant), Error> {
        if self.session.attached.lent.is_some() {
            return Err(not_the_holder());
        }
        let place = |(worker, slot): &(u16, u16)| SlotPlace {
            worker: WorkerIndex(*worker),
            slot: SlotIndex(*slot),
        };
        let places = places.iter().map(place).collect();
        let (delegation, token) = self.session.shared().delegate(places, lasts).await?;
        let grant = Grant {
            token,
            ..self.at.way.clone()
        };
        Ok((delegation, grant))
    }

    /// Revokes a delegation.
    pub(crate) async fn revoke(&self, delegation: u32) -> Result<(), Error> {
        self.session.shared().revoke(delegation).await
    }

    /// How the lease ended; `None` if it has not ended.
    pub(crate) fn end(&self) -> Option<SessionEnd> {
        self.session.end()
    }

    /// Waits at most this long for the end of the lease; returns how it ended.
    pub(crate) async fn end_within(&self, limit: Duration) -> Option<SessionEnd> {
        self.session.end_within(limit).await
    }

    /// Drops a lost lease once all its connections have noticed how they ended: if they were closed earlier, they would
    /// report to their invocations that the lease was released. Runs on the control thread.
    pub(crate) fn abandon(mut self) {
        tokio::spawn(async move {
            connection::await_ends(self.workers.drain(..).flatten()).await;
            drop(self);
        });
    }

    /// Releases the lease; returns its usage.
    pub(crate) async fn release(self) -> Result<UsageTotals, Error> {
        // Invocations in flight fail because the lease ended.
        drop(self.workers);
        if let Some(vouching) = self.vouching {
            // If the process ends now, the report would be lost.
            let _ = tokio::time::timeout(VOUCH_LIMIT, vouching).await;
        }
        self.session.release().await
    }
}

/// Releases a lease that is of no use and waits for its end, so that the caller's next try finds the cores free.
async fn give_back(session: Session) {
    if let Err(error) = session.release().await {
        tracing::debug!(%error, "a lease that could not be used was not released");
    }
}

/// A stopwatch: each call returns the time since the previous call.
fn stopwatch() -> impl FnMut() -> Duration {
    let mut last = Instant::now();
    move || std::mem::replace(&mut last, Instant::now()).elapsed()
}

fn check_workers(session: &Session, workers: u16, slots: u16) -> Result<(), Error> {
    let granted = &session.attached.slots;
    let enough = granted.len() == usize::from(workers) && granted.iter().all(|granted| *granted == usize::from(slots));
    if enough {
        return Ok(());
    }
    Err(Error::protocol(format!(
        "the agent granted workers with {granted:?} slots instead of {workers} with {slots}"
    )))
}

/// The refusal of operations on a lease that this client does not hold.
fn not_the_holder() -> Error {
    Rejection::NotPermitted {
        what: "lending slots that were lent: only the holder of a lease makes offers".into(),
    }
    .into()
}
