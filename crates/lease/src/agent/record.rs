//! What the book keeps about a lease.

use super::SessionId;
use crate::ledger::FunctionTotals;
use hotlease_wire::EndReason;
use hotlease_wire::ids::{Epoch, LeaseId};
use hotlease_wire::session::{Place, UsageTotals};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How far a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Some first worker is not up yet.
    Starting,
    /// Every worker was up, or is gone.
    Serving,
    /// Over; its workers are being killed.
    Ending(EndReason),
}

/// Whether a node takes leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Availability {
    /// It does.
    #[default]
    Serving,
    /// Being given back: leases go on until the deadline, and none is granted.
    Draining,
    /// Given back: nothing of it is in use.
    Drained,
    /// It offers no cores.
    Standby,
    /// The agent ends.
    Stopping,
}

impl Availability {
    /// The word for it in listings and reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Standby => "standby",
            Self::Stopping => "stopping",
        }
    }

    /// What the word means.
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

/// Whose the cores of a lease are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Each slot has one of its own.
    #[default]
    Exclusive,
    /// Each worker has places on one that other workers, of this and of other leases, have places on too. Its slots
    /// sleep between invocations and claim the core for each.
    Shared,
}

/// How far a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Being started or configured.
    Starting,
    /// Serving.
    Serving,
    /// Dead and reaped, or never started.
    Gone,
}

/// One worker's place in a lease; incarnations follow each other in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// One for each slot.
    pub cores: Vec<u32>,
    /// Numbers of its GPUs.
    pub gpus: Vec<u32>,
    /// Of the present incarnation.
    pub epoch: Epoch,
    /// Of the present incarnation.
    pub state: WorkerState,
}

/// Slots of a lease that its holder lends to peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// Which.
    pub places: BTreeSet<Place>,
    /// Until when.
    pub until: Duration,
    /// Its peers' attached sessions.
    pub sessions: BTreeSet<SessionId>,
}

/// A lease that holds cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// Who holds it.
    pub tenant: String,
    /// Shown in listings.
    pub label: String,
    /// At the grant; tokens carry it, and so do the first workers.
    pub epoch: Epoch,
    /// Added to the time of each renewal.
    pub ttl: Duration,
    /// Memory of each worker; 0: no limit.
    pub memory_bytes: u64,
    /// Whose its cores are.
    pub sharing: Sharing,
    /// When it was granted.
    pub granted: Duration,
    /// When it ends unless renewed.
    pub expires: Duration,
    /// When it ends although it is renewed: its node is being given back.
    pub cut: Option<Duration>,
    /// The same, because what it holds is no longer offered while the rest of the node is.
    pub leaving: Option<Duration>,
    /// How far it is.
    pub phase: Phase,
    /// Its workers, by index.
    pub workers: Vec<Worker>,
    /// Its attached sessions.
    pub sessions: BTreeSet<SessionId>,
    /// What its holder lends to peers, by number.
    pub delegations: BTreeMap<u32, Delegation>,
    /// The number of the latest one; 0: there was none.
    pub last_delegation: u32,
    /// What its workers that are gone have used; `allocated_ns` is 0 here.
    pub retired: UsageTotals,
    /// What functions in them have used of that.
    pub retired_functions: FunctionTotals,
}

impl Lease {
    /// The core of each of its slots; those of a shared lease come several times.
    pub fn cores(&self) -> Vec<u32> {
        self.workers
            .iter()
            .flat_map(|worker| worker.cores.iter().copied())
            .collect()
    }

    /// Numbers of its GPUs, those of the first worker first.
    pub fn gpus(&self) -> Vec<u32> {
        let workers = self.workers.iter();
        workers.flat_map(|worker| worker.gpus.iter().copied()).collect()
    }

    /// Cores times the time they have been held. A shared core counts once, however many places on it are held.
    pub fn allocated_ns(&self, now: Duration) -> u64 {
        let held = now.saturating_sub(self.granted).as_nanos();
        u64::try_from(held.saturating_mul(self.core_count() as u128)).unwrap_or(u64::MAX)
    }

    /// Different cores on which it has slots.
    pub fn core_count(&self) -> usize {
        match self.sharing {
            Sharing::Exclusive => self.workers.iter().map(|worker| worker.cores.len()).sum(),
            Sharing::Shared => self.cores().into_iter().collect::<BTreeSet<_>>().len(),
        }
    }

    /// When it ends unless something happens before.
    pub fn ends_at(&self) -> Duration {
        self.cut.map_or(self.expires, |cut| cut.min(self.expires))
    }

    /// The same, or the end of a delegation before.
    pub(super) fn next_end(&self) -> Duration {
        let delegations = self.delegations.values().map(|lent| lent.until);
        delegations.fold(self.ends_at(), Duration::min)
    }

    /// Its holders' sessions, and its peers'.
    pub fn all_sessions(&self) -> Vec<SessionId> {
        let peers = self.delegations.values().flat_map(|lent| &lent.sessions);
        self.sessions.iter().chain(peers).copied().collect()
    }

    /// How much longer it lasts unless something happens before.
    pub fn time_left(&self, now: Duration) -> Duration {
        self.ends_at().saturating_sub(now)
    }

    pub(super) fn renew(&mut self, now: Duration) {
        self.expires = now + self.ttl;
    }

    /// Whether every worker is gone.
    pub(super) fn is_empty(&self) -> bool {
        self.workers
            .iter()
            .all(|worker| worker.state == WorkerState::Gone)
    }

    /// Whether it has not begun to end.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Ending(_))
    }
}

/// A lease that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedLease {
    /// Its name.
    pub id: LeaseId,
    /// Who held it.
    pub tenant: String,
    /// Shown in listings.
    pub label: String,
    /// At the grant.
    pub epoch: Epoch,
    /// The core of each of its slots.
    pub cores: Vec<u32>,
    /// Whose they were.
    pub sharing: Sharing,
    /// Numbers of its GPUs.
    pub gpus: Vec<u32>,
    /// Why it ended.
    pub reason: EndReason,
    /// What it used in all.
    pub usage: UsageTotals,
    /// What its functions used of that.
    pub functions: FunctionTotals,
    /// When its cores became free.
    pub ended: Duration,
}
