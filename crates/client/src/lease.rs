//! A lease in use: its session, its workers' connections, and the cold path that makes them.

use crate::Error;
use crate::channel::Channel;
use crate::code::Code;
use crate::connection::Watched;
use crate::manager::Manager;
use crate::options::LeaseOptions;
use crate::session::{End, Session};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::ids::{LeaseId, SlotIndex, WorkerIndex};
use hotlease_wire::session::{StartPhases, UsageTotals};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Where the time of a cold start went, as the client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ColdPhases {
    /// Manager and agent granted the lease; the agent starts workers meanwhile.
    pub acquire: Duration,
    /// Session with the agent, until the workers were configured.
    pub attach: Duration,
    /// The library was sent and loaded.
    pub load: Duration,
    /// Part of `load` that the workers took.
    pub worker_load: Duration,
    /// Introductions to all workers.
    pub connect: Duration,
    /// Rings made and exchanged with all slots.
    pub open: Duration,
    /// What the agent says about the workers.
    pub start: StartPhases,
}

impl ColdPhases {
    /// All of it: from asking for the lease to being ready for the first hot call.
    pub fn total(&self) -> Duration {
        self.acquire + self.attach + self.load + self.connect + self.open
    }
}

/// What a lease is made for.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) code: Code,
    pub(crate) options: Arc<LeaseOptions>,
    /// On which this client's threads sleep.
    pub(crate) doorbell: Arc<Doorbell>,
}

/// A lease with a session. Dropping it ends the lease (its client is gone); `release` says so properly.
pub(crate) struct Lease {
    plan: Plan,
    session: Session,
    /// Index of the code's first function in every worker of the lease.
    base: u16,
    workers: Vec<Option<Watched>>,
}

/// The channels of one worker, in the order of its slots.
type Opened = (Watched, Vec<Arc<Channel>>);

impl Lease {
    /// Takes a lease, loads the code, and opens a channel to every slot. On the control thread.
    pub(crate) async fn take(plan: &Plan) -> Result<(Self, Vec<Arc<Channel>>, ColdPhases), Error> {
        let options = &plan.options;
        let mut phases = ColdPhases::default();
        let mut lap = stopwatch();

        let manager = Manager::at(options.runtime_dir.as_deref())?;
        let grant = manager.acquire(options.acquire_request()).await?;
        phases.acquire = lap();

        let session = match Session::attach(
            Path::new(&grant.session_socket),
            grant.token,
            usize::from(options.workers),
        )
        .await
        {
            Ok(session) => session,
            Err(error) => {
                // Without a session nobody else would give it back before its attach window is over.
                if let Err(error) = manager.release(grant.lease).await {
                    tracing::debug!(%error, "a lease that could not be attached was not released");
                }
                return Err(error);
            }
        };
        phases.attach = lap();
        let (lease, channels, rest) = Self::begin(plan, session).await?;
        let phases = ColdPhases {
            acquire: phases.acquire,
            attach: phases.attach,
            ..rest
        };
        Ok((lease, channels, phases))
    }

    /// Makes an attached lease usable.
    pub(crate) async fn begin(
        plan: &Plan,
        session: Session,
    ) -> Result<(Self, Vec<Arc<Channel>>, ColdPhases), Error> {
        let options = &plan.options;
        let mut lap = stopwatch();
        check_workers(&session, options)?;
        let mut phases = ColdPhases {
            start: session.attached.start,
            ..ColdPhases::default()
        };

        let (base, worker_load) = session.shared().load(&plan.code).await?;
        phases.worker_load = worker_load;
        phases.load = lap();

        let mut lease = Self {
            plan: plan.clone(),
            session,
            base,
            workers: Vec::new(),
        };
        // All at once: the agent answers in turn, and the workers work meanwhile.
        let mut connecting = JoinSet::new();
        for worker in 0..options.workers {
            let (session, doorbell) = (lease.session.shared().clone(), plan.doorbell.clone());
            connecting.spawn(async move {
                let index = WorkerIndex(worker);
                let (socket, epoch) = session.connect(index).await?;
                Watched::start(socket, index, epoch, session, doorbell).map(|watched| (worker, watched))
            });
        }
        let mut watched = Vec::new();
        while let Some(result) = connecting.join_next().await {
            watched.push(result.map_err(|error| Error::protocol(error.to_string()))??);
        }
        watched.sort_by_key(|(worker, _)| *worker);
        phases.connect = lap();

        let mut channels = Vec::with_capacity(options.slots_in_all());
        for (_, watched) in watched {
            let (watched, opened) = lease.open_all(watched).await?;
            lease.workers.push(Some(watched));
            channels.extend(opened);
        }
        phases.open = lap();
        Ok((lease, channels, phases))
    }

    async fn open_all(&self, watched: Watched) -> Result<Opened, Error> {
        let mut channels = Vec::with_capacity(usize::from(self.plan.options.slots));
        for slot in 0..self.plan.options.slots {
            let connection = watched.connection();
            channels.push(
                connection
                    .open(SlotIndex(slot), &self.plan.options, self.base)
                    .await?,
            );
        }
        Ok((watched, channels))
    }

    /// Connects to a worker anew, which starts it again if it is dead, and opens all its slots.
    pub(crate) async fn reconnect(&mut self, worker: u16) -> Result<Vec<Arc<Channel>>, Error> {
        let index = WorkerIndex(worker);
        // The old connection first, so that it does not count against the worker's limit.
        self.workers[usize::from(worker)] = None;
        let (socket, epoch) = self.session.shared().connect(index).await?;
        let (session, doorbell) = (self.session.shared().clone(), self.plan.doorbell.clone());
        let watched = Watched::start(socket, index, epoch, session, doorbell)?;
        let (watched, channels) = self.open_all(watched).await?;
        self.workers[usize::from(worker)] = Some(watched);
        Ok(channels)
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.session.attached.lease
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.session.end()
    }

    /// Gives it back; returns what it used.
    pub(crate) async fn release(self) -> Result<UsageTotals, Error> {
        // In-flight invocations learn of it as a lease that ended.
        drop(self.workers);
        self.session.release().await
    }
}

/// Gives the time since it was last asked.
fn stopwatch() -> impl FnMut() -> Duration {
    let mut last = Instant::now();
    move || std::mem::replace(&mut last, Instant::now()).elapsed()
}

fn check_workers(session: &Session, options: &LeaseOptions) -> Result<(), Error> {
    let granted = &session.attached.slots;
    let enough = granted.len() == usize::from(options.workers)
        && granted.iter().all(|slots| *slots == usize::from(options.slots));
    if enough {
        return Ok(());
    }
    Err(Error::protocol(format!(
        "the agent granted workers with {granted:?} slots instead of {} with {}",
        options.workers, options.slots
    )))
}
