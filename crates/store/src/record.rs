//! What is stored.

use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;

/// An agent, as it registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    /// Who.
    pub id: AgentId,
    /// Which run of it.
    pub boot: BootId,
    /// Its gRPC socket.
    pub address: String,
    /// Cores that it offers.
    pub cores: Vec<u32>,
}

/// A lease, as its agent last reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Which.
    pub id: LeaseId,
    /// Who granted it.
    pub agent: AgentId,
    /// In which run.
    pub boot: BootId,
    /// Who holds it.
    pub tenant: String,
    /// Its holder's word for it.
    pub label: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// Whether it goes on.
    pub state: LeaseState,
}

/// Whether a lease goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// It does.
    Active,
    /// It does not.
    Ended {
        /// In words: its agent's, or what the manager found out about the agent.
        why: String,
    },
}

/// What a ledger row is about: the same lease id under another boot is another row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Who measured.
    pub agent: AgentId,
    /// In which run.
    pub boot: BootId,
    /// Which lease.
    pub lease: LeaseId,
}

impl LeaseRecord {
    /// Its row in the ledger.
    pub fn key(&self) -> RowKey {
        RowKey {
            agent: self.agent,
            boot: self.boot,
            lease: self.id,
        }
    }
}

/// A cumulative total, as an agent reports it again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    /// What it is about.
    pub key: RowKey,
    /// Who pays.
    pub tenant: String,
    /// Used so far.
    pub usage: UsageTotals,
    /// The lease is over: this total is its last.
    pub settled: bool,
}
