//! Records of the book: leases, their workers and delegations, and ended leases.

use super::SessionId;
use crate::ledger::FunctionTotals;
use crate::request::LeaseRequest;
use hotlease_wire::EndReason;
use hotlease_wire::ids::{Epoch, JobId, LeaseId};
use hotlease_wire::session::{SlotPlace, UsageTotals};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Progress of a lease between its grant and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePhase {
    /// At least one of the first workers is not up yet.
    Starting,
    /// Every worker has come up, or is gone.
    Serving,
    /// The lease is over; its workers are being killed.
    Ending(EndReason),
}

/// Whether a node grants leases, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Availability {
    /// The node grants leases.
    #[default]
    Serving,
    /// The node is being given back: leases continue until the deadline, and no lease is granted.
    Draining,
    /// The node was given back: it has no leases.
    Drained,
    /// The node offers no cores.
    Standby,
    /// The agent is stopping.
    Stopping,
}

impl Availability {
    /// State in an agent's last report. It means that the agent leaves.
    pub const LEAVING: &str = "gone";

    /// Name of the state in listings and reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Standby => "standby",
            Self::Stopping => "stopping",
        }
    }

    /// The state of this name.
    pub fn of_word(word: &str) -> Option<Self> {
        let all = [
            Self::Serving,
            Self::Draining,
            Self::Drained,
            Self::Standby,
            Self::Stopping,
        ];
        all.into_iter().find(|availability| availability.word() == word)
    }
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Progress of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker is being started or configured.
    Starting,
    /// The worker is ready.
    Serving,
    /// The worker is dead and reaped, or was never started.
    Gone,
}

/// One worker's position in a lease, which successive incarnations of the worker fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// Core of each slot.
    pub cores: Vec<u32>,
    /// Numbers of the worker's GPUs.
    pub gpus: Vec<u32>,
    /// Epoch of the present incarnation.
    pub epoch: Epoch,
    /// State of the present incarnation.
    pub state: WorkerState,
    /// Shared core to which the present incarnation is being moved; places for all its slots are taken there, too.
    pub moving_to: Option<u32>,
    /// Whether the present incarnation has been moved.
    pub has_moved: bool,
}

/// Slots of a lease that its holder lends to peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// The lent slots.
    pub places: BTreeSet<SlotPlace>,
    /// When the delegation ends.
    pub until: Duration,
    /// Attached sessions of the peers.
    pub sessions: BTreeSet<SessionId>,
}

/// A lease that holds cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreLease {
    /// The lease's name.
    pub id: LeaseId,
    /// The request for the lease.
    pub request: Arc<LeaseRequest>,
    /// Memory that all workers of the lease may use, bytes: as requested, or their share of the node; 0 if not known.
    pub memory_bytes: u64,
    /// Number of different cores on which the lease was placed at its grant. The lease pays for this number. 0 for a
    /// lease of memory alone.
    pub paid_cores: u32,
    /// Epoch at the grant, which is in the lease's tokens, and is the epoch of the first workers.
    pub epoch: Epoch,
    /// When the lease was granted.
    pub granted: Duration,
    /// When the lease ends, if it is not renewed.
    pub expires: Duration,
    /// When the lease ends even if it is renewed, because its node is drained or no longer offers what the lease
    /// holds, or because it will have lasted for the longest allowed duration.
    pub cut: Option<Duration>,
    /// When the lease has lasted as long as the node's operator allows; `None` if there is no such bound. Part of
    /// `cut`.
    pub longest: Option<Duration>,
    /// When the lease ends even if it is renewed, because its cores, GPUs or memory are no longer offered while the
    /// rest of the node is. Part of `cut`.
    pub leaving: Option<Duration>,
    /// The batch job that may use the lease's resources, if the lease is leaving for that reason.
    pub batch_job: Option<JobId>,
    /// Progress of the lease.
    pub phase: LeasePhase,
    /// The workers, by index.
    pub workers: Vec<WorkerRecord>,
    /// Attached sessions of the holder.
    pub sessions: BTreeSet<SessionId>,
    /// Slots that the holder lends to peers, by the delegation's number.
    pub delegations: BTreeMap<u32, Delegation>,
    /// Number of the latest delegation; 0 if there was none.
    pub last_delegation: u32,
    /// Usage of the workers that are gone; `allocated_ns` is 0 here.
    pub retired: UsageTotals,
    /// The part of the usage that each function has.
    pub retired_functions: FunctionTotals,
}

impl CoreLease {
    /// Core of each slot; a core of a shared lease may occur several times.
    pub fn cores(&self) -> Vec<u32> {
        self.workers
            .iter()
            .flat_map(|worker| worker.cores.iter().copied())
            .collect()
    }

    /// Cores on which the lease holds places: the cores of its slots, and the cores to which workers are being moved.
    pub fn held_cores(&self) -> Vec<u32> {
        let targets = self.workers.iter().filter_map(|worker| worker.moving_to);
        self.cores().into_iter().chain(targets).collect()
    }

    /// Numbers of the lease's GPUs, in the order of its workers.
    pub fn gpus(&self) -> Vec<u32> {
        let workers = self.workers.iter();
        workers.flat_map(|worker| worker.gpus.iter().copied()).collect()
    }

    /// Number of cores times the time for which they have been held. A shared core is counted once, however many places
    /// on it are held. Moves of workers do not change the number, because the agent decides about moves, while the
    /// holder pays. For a lease of memory alone: the time for which the memory has been held.
    pub fn allocated_ns(&self, now: Duration) -> u64 {
        let held = now.saturating_sub(self.granted).as_nanos();
        let counted = match self.request.spec.is_memory_alone() {
            true => 1,
            false => self.paid_cores,
        };
        u64::try_from(held.saturating_mul(counted.into())).unwrap_or(u64::MAX)
    }

    /// When the lease ends, if it is neither renewed nor ended before.
    pub fn ends_at(&self) -> Duration {
        self.cut.map_or(self.expires, |cut| cut.min(self.expires))
    }

    /// When the lease or the first of its delegations ends, if no event changes that before.
    pub(super) fn next_end(&self) -> Duration {
        let delegations = self.delegations.values().map(|lent| lent.until);
        delegations.fold(self.ends_at(), Duration::min)
    }

    /// Sessions of the holder and of its peers.
    pub fn all_sessions(&self) -> Vec<SessionId> {
        let peers = self.delegations.values().flat_map(|lent| &lent.sessions);
        self.sessions.iter().chain(peers).copied().collect()
    }

    /// Time until the lease ends, if no event changes that before.
    pub fn time_left(&self, now: Duration) -> Duration {
        self.ends_at().saturating_sub(now)
    }

    /// Reason to end the lease, if it ends at `now`.
    pub(super) fn reason_at(&self, now: Duration) -> EndReason {
        let is_cut = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        match self.batch_job {
            Some(job) if is_cut(self.leaving) => EndReason::BatchJob(job),
            _ if is_cut(self.cut) && self.longest != self.cut => EndReason::Reclaimed,
            _ if is_cut(self.cut) => EndReason::DurationOver,
            _ => EndReason::Expired,
        }
    }

    pub(super) fn renew(&mut self, now: Duration) {
        self.expires = now + self.request.ttl;
    }

    /// Whether every worker is gone.
    pub(super) fn is_empty(&self) -> bool {
        self.workers.iter().all(|worker| worker.state == WorkerState::Gone)
    }

    /// Whether the lease has not begun to end.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.phase, LeasePhase::Ending(_))
    }
}

/// A lease that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// The lease's name.
    pub id: LeaseId,
    /// The request for the lease.
    pub request: Arc<LeaseRequest>,
    /// Epoch at the grant.
    pub epoch: Epoch,
    /// Core of each slot.
    pub cores: Vec<u32>,
    /// Numbers of the lease's GPUs.
    pub gpus: Vec<u32>,
    /// Why the lease ended.
    pub reason: EndReason,
    /// Total usage of the lease.
    pub usage: UsageTotals,
    /// The part of the usage that each function has.
    pub functions: FunctionTotals,
    /// When the cores became free.
    pub ended: Duration,
}
