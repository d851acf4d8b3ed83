//! What the book is told, and what it wants done.

use super::Sharing;
use crate::ledger::FunctionTotals;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::{Place, UsageTotals};
use hotlease_wire::{EndReason, Refusal};
use std::collections::BTreeSet;
use std::time::Duration;

/// A client's session with the agent; numbered by the agent, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What a lease is asked to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRequest {
    /// Its name: random, chosen by the caller.
    pub id: LeaseId,
    /// Who will hold it.
    pub tenant: String,
    /// Shown in listings.
    pub label: String,
    /// Worker processes.
    pub workers: u32,
    /// Slots, and so cores, of each.
    pub slots_per_worker: u32,
    /// Memory of each worker; 0: no limit.
    pub memory_bytes: u64,
    /// GPUs of each worker.
    pub gpus: u32,
    /// Whose the cores shall be.
    pub sharing: Sharing,
    /// Time until it expires unless renewed.
    pub ttl: Duration,
}

/// What a node shall offer from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Which cores.
    pub cores: OfferedCores,
    /// How much memory, bytes; none: as now.
    pub memory_bytes: Option<u64>,
    /// How many GPUs, the first ones; none: as now.
    pub gpus: Option<u32>,
    /// When leases end that hold what is no longer offered (now or before: at once).
    pub until: Duration,
}

/// Cores to be offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferedCores {
    /// As now.
    Unchanged,
    /// All that the agent may use.
    All,
    /// These, each a core that the agent may use; none: standby.
    These(BTreeSet<u32>),
    /// This many: free ones are taken away first, then those of the youngest leases.
    Count(u32),
}

/// What happened. Every event may be refused with a [`Refusal`]; then it changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client wants a lease.
    Grant(GrantRequest),
    /// A session presents a token that is genuine.
    Attach {
        /// The session.
        session: SessionId,
        /// Which lease the token names.
        lease: LeaseId,
        /// The epoch that it names.
        epoch: Epoch,
        /// Who the peer of the session is.
        tenant: String,
        /// Until when the token opens sessions.
        until: Duration,
    },
    /// A session is gone, for whatever reason.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// What it was attached to.
        lease: LeaseId,
    },
    /// The holder lends slots to peers; the lease then has the delegation's number.
    Delegate {
        /// Of which lease.
        lease: LeaseId,
        /// Which slots.
        places: BTreeSet<Place>,
        /// Until when, at most.
        until: Duration,
    },
    /// The holder takes them back.
    Revoke {
        /// Of which lease.
        lease: LeaseId,
        /// Which delegation.
        delegation: u32,
    },
    /// A session presents a token of a delegation that is genuine.
    AttachPeer {
        /// The session.
        session: SessionId,
        /// Which lease the token names.
        lease: LeaseId,
        /// The epoch that it names.
        epoch: Epoch,
        /// Who the peer of the session is.
        tenant: String,
        /// Which delegation.
        delegation: u32,
    },
    /// The holder pushes the expiry.
    Renew {
        /// Of which lease.
        lease: LeaseId,
    },
    /// The lease shall end: released, revoked.
    End {
        /// Which.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
    },
    /// The holder needs this worker: start it again if it is gone.
    Replace {
        /// Of which lease.
        lease: LeaseId,
        /// Which worker.
        worker: WorkerIndex,
    },
    /// A worker is started and configured.
    WorkerUp {
        /// Of which lease.
        lease: LeaseId,
        /// Which worker.
        worker: WorkerIndex,
        /// Which incarnation.
        epoch: Epoch,
    },
    /// A worker's process is gone and reaped, or never came to be. Exactly one for each
    /// [`Action::StartWorker`].
    WorkerGone {
        /// Of which lease.
        lease: LeaseId,
        /// Which worker.
        worker: WorkerIndex,
        /// Which incarnation.
        epoch: Epoch,
        /// What it used (`allocated_ns` is ignored: the book knows).
        used: UsageTotals,
        /// What its functions used of that.
        functions: FunctionTotals,
    },
    /// The node is given back: grant nothing, end everything at `until` (now or before: at once).
    Drain {
        /// When leases that are still there are cut.
        until: Duration,
    },
    /// The node is offered again.
    Resume,
    /// The node offers something else. Growing is immediate; what is taken away is free cores first, and leases
    /// that hold the rest end at the deadline.
    Offer(Offer),
    /// The agent is stopping: end everything, grant nothing.
    Stop,
    /// Time passed. Expiry is looked at in every step; this is for when nothing else happens.
    Tick,
}

/// What is to be done now, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a worker, or take a pooled one, and assign it to these cores.
    StartWorker {
        /// For which lease.
        lease: LeaseId,
        /// As which worker.
        worker: WorkerIndex,
        /// In which epoch.
        epoch: Epoch,
        /// One for each of its slots.
        cores: Vec<u32>,
        /// Numbers of its GPUs.
        gpus: Vec<u32>,
    },
    /// Tell peers that a delegation is over, and have workers drop their connections.
    DelegationEnded {
        /// Of which lease.
        lease: LeaseId,
        /// Which.
        delegation: u32,
        /// Why.
        reason: EndReason,
        /// The peers' sessions.
        sessions: Vec<SessionId>,
    },
    /// Kill a worker; [`Event::WorkerGone`] must follow.
    KillWorker {
        /// Of which lease.
        lease: LeaseId,
        /// Which worker.
        worker: WorkerIndex,
        /// Which incarnation.
        epoch: Epoch,
        /// Why the lease ends.
        reason: EndReason,
    },
    /// Tell these sessions that a worker died while its lease went on.
    TellWorkerDied {
        /// Of which lease.
        lease: LeaseId,
        /// Which worker.
        worker: WorkerIndex,
        /// Which incarnation.
        epoch: Epoch,
        /// To whom.
        sessions: Vec<SessionId>,
    },
    /// The lease is over and its cores are free: tell these sessions, and close them.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
        /// Why.
        reason: EndReason,
        /// What it used in all.
        usage: UsageTotals,
        /// To whom.
        sessions: Vec<SessionId>,
    },
    /// The drain is over: no lease holds anything of the node.
    Drained,
}

/// The outcome of one step. The actions are to be carried out even if the event was refused: time passed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct Step {
    /// What is to be done.
    pub actions: Vec<Action>,
    /// Why the event was refused, if it was.
    pub refusal: Option<Refusal>,
}
