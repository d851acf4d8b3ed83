//! Events of the book of leases, and the actions that it orders.

use crate::ledger::FunctionTotals;
use crate::request::LeaseRequest;
use hotlease_wire::batch::JobShare;
use hotlease_wire::ids::{Epoch, JobId, LeaseId, WorkerIndex};
use hotlease_wire::session::{SlotPlace, UsageTotals};
use hotlease_wire::{EndReason, Rejection};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A client's session with the agent; numbered by the agent, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// New offer of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOffer {
    /// The offered cores.
    pub cores: OfferedCores,
    /// Offered memory, bytes; `None` leaves it unchanged.
    pub memory_bytes: Option<u64>,
    /// Offered GPUs; `None` leaves them unchanged.
    pub gpus: Option<OfferedGpus>,
    /// Time at which leases end if they hold a resource that is no longer offered. If this time is now or earlier,
    /// these leases end at once.
    pub until: Duration,
}

/// Cores to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferedCores {
    /// The cores offered now.
    Unchanged,
    /// All cores that the agent may use.
    All,
    /// These cores, each of which the agent may use. An empty set means standby.
    These(BTreeSet<u32>),
    /// This number of cores. If it is less than now, free cores are withdrawn first, then cores of the youngest leases.
    Count(u32),
}

/// GPUs to offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferedGpus {
    /// This number of GPUs: the first GPUs.
    Count(u32),
    /// The GPUs with these numbers, each of which the agent has. An empty set means no GPUs.
    These(BTreeSet<u32>),
}

impl OfferedGpus {
    /// Numbers of the GPUs.
    pub fn numbers(&self) -> BTreeSet<u32> {
        match self {
            Self::Count(count) => (0..*count).collect(),
            Self::These(numbers) => numbers.clone(),
        }
    }
}

/// Event that is reported to the book. The book may refuse an event with a [`Rejection`]; then the event changed
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BookEvent {
    /// A client wants a lease.
    Grant {
        /// Name of the lease: random, chosen by the caller.
        lease: LeaseId,
        /// The request. Either all its workers are granted, or none.
        request: Arc<LeaseRequest>,
    },
    /// A session presents a genuine token of a lease.
    Attach {
        /// The session.
        session: SessionId,
        /// The lease that the token names.
        lease: LeaseId,
        /// The epoch that the token names.
        epoch: Epoch,
        /// Tenant of the session's peer.
        tenant: String,
        /// Time until which sessions can be opened with the token.
        until: Duration,
    },
    /// A session has closed, for any reason.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// The lease to which the session was attached.
        lease: LeaseId,
    },
    /// The holder lends slots to peers. After this event, the lease's `last_delegation` is the number of the
    /// delegation.
    Delegate {
        /// The lease.
        lease: LeaseId,
        /// The lent slots.
        places: BTreeSet<SlotPlace>,
        /// Latest end of the delegation.
        until: Duration,
    },
    /// The holder takes a delegation back.
    Revoke {
        /// The lease.
        lease: LeaseId,
        /// Number of the delegation.
        delegation: u32,
    },
    /// A session presents a genuine token of a delegation.
    AttachPeer {
        /// The session.
        session: SessionId,
        /// The lease that the token names.
        lease: LeaseId,
        /// The epoch that the token names.
        epoch: Epoch,
        /// Tenant of the session's peer.
        tenant: String,
        /// Number of the delegation.
        delegation: u32,
    },
    /// The holder renews the lease.
    Renew {
        /// The lease.
        lease: LeaseId,
    },
    /// The lease is to end: released or revoked.
    End {
        /// The lease.
        lease: LeaseId,
        /// Why the lease ends.
        reason: EndReason,
    },
    /// The holder needs this worker, which is started again if it is gone.
    Replace {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
    },
    /// A worker is started and configured.
    WorkerUp {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
    },
    /// A worker's process is gone and reaped, or was never created. There is exactly one such event for each
    /// [`BookAction::StartWorker`].
    WorkerGone {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// Usage of the worker (`allocated_ns` is ignored: the book computes the allocated time).
        used: UsageTotals,
        /// The part of the usage that each function has.
        functions: FunctionTotals,
    },
    /// A worker is on a crowded core while another core is idle: move the worker to the idle core.
    Move {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// The new core. It is offered, free or shared, and has room for all slots of the worker.
        core: u32,
    },
    /// A worker has answered the order to move. There is one such event for each [`BookAction::MoveWorker`], unless
    /// [`WorkerGone`](Self::WorkerGone) comes first.
    WorkerMoved {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// Whether the worker is on the new core; if not, it has stayed on its old core.
        moved: bool,
    },
    /// The node is given back: grant no leases, and end all leases at `until`. If `until` is now or earlier, they end
    /// at once.
    Drain {
        /// Time at which the remaining leases end.
        until: Duration,
    },
    /// The node is offered again.
    Resume,
    /// The node's offer changes. A larger offer takes effect at once. If the offer shrinks, free cores are withdrawn
    /// first, and leases that hold the other withdrawn cores end at the deadline.
    Offer(NodeOffer),
    /// A batch job begins on the node, or may use more or less than before. Resources that the job may use are not
    /// offered until it ends; leases that hold some of these resources end now.
    BeginJob {
        /// The job.
        job: JobId,
        /// Resources that the job may use.
        share: JobShare,
    },
    /// A batch job has ended, or never existed. Resources that it could use are offered again.
    EndJob {
        /// The job.
        job: JobId,
    },
    /// The agent is stopping: end all leases, grant nothing.
    Stop,
    /// Time passed. Every step checks expiries; this event is for times at which no other event happens.
    Tick,
}

/// Action to carry out now, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BookAction {
    /// Start a worker, or take one from the pool, and assign it to these cores.
    StartWorker {
        /// The lease.
        lease: LeaseId,
        /// Index of the worker in the lease.
        worker: WorkerIndex,
        /// The worker's epoch.
        epoch: Epoch,
        /// Core of each slot.
        cores: Vec<u32>,
        /// Numbers of the worker's GPUs.
        gpus: Vec<u32>,
    },
    /// Order a worker to move to another shared core; [`BookEvent::WorkerMoved`] must follow.
    MoveWorker {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// The core.
        core: u32,
    },
    /// Report to peers that a delegation is over, and make workers drop the peers' connections.
    DelegationEnded {
        /// The lease.
        lease: LeaseId,
        /// Number of the delegation.
        delegation: u32,
        /// Why the delegation ended.
        reason: EndReason,
        /// The peers' sessions.
        sessions: Vec<SessionId>,
    },
    /// Kill a worker; [`BookEvent::WorkerGone`] must follow.
    KillWorker {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// Why the lease ends.
        reason: EndReason,
    },
    /// Report to these sessions that a worker died while its lease continues.
    ReportWorkerDeath {
        /// The lease.
        lease: LeaseId,
        /// The worker.
        worker: WorkerIndex,
        /// The epoch of its incarnation.
        epoch: Epoch,
        /// Sessions that get the report.
        sessions: Vec<SessionId>,
    },
    /// The lease is over and its cores are free: report this to these sessions, and close them.
    LeaseEnded {
        /// The lease.
        lease: LeaseId,
        /// Why the lease ended.
        reason: EndReason,
        /// Total usage of the lease.
        usage: UsageTotals,
        /// Sessions that get the report.
        sessions: Vec<SessionId>,
    },
    /// The drain is over: no lease is left on the node.
    Drained,
}

/// Result of one step. The actions are to be carried out even if the event was refused, because time passed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct BookStep {
    /// Actions to carry out.
    pub actions: Vec<BookAction>,
    /// Why the event was refused, if it was.
    pub refusal: Option<Rejection>,
}
