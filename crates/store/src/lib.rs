//! L1: durable state behind one trait.
//!
//! A manager keeps three things: which agents it knows, which leases they granted, and the ledger of
//! what those leases used. The ledger's rows are cumulative totals keyed (agent, boot, lease) and merged
//! by taking the larger value of each counter, so a report that arrives twice, late or out of order
//! never bills twice and never un-bills.
//!
//! * [`Store`] — what a manager asks of its state.
//! * [`MemoryStore`] — state that lives as long as its process, bounded by [`Limits`].
//!
//! ```
//! use hotlease_store::{LedgerRow, MemoryStore, RowKey, Store};
//! use hotlease_wire::ids::{AgentId, BootId, LeaseId};
//! use hotlease_wire::session::UsageTotals;
//!
//! let store = MemoryStore::default();
//! let key = RowKey { agent: AgentId([1; 8]), boot: BootId([2; 8]), lease: LeaseId([3; 8]) };
//! let usage = UsageTotals { compute_ns: 500, invocations: 1, ..Default::default() };
//! let report = [LedgerRow { key, tenant: "uid:1000".into(), usage, settled: false }];
//! store.merge_usage(&report).unwrap();
//! store.merge_usage(&report).unwrap(); // sent again, billed once
//! assert_eq!(store.bill("uid:1000").unwrap().invocations, 1);
//! ```

#![forbid(unsafe_code)]

mod ledger;
mod memory;
mod record;

pub use memory::{Limits, MemoryStore};
pub use record::{AgentRecord, LeaseRecord, LeaseState, LedgerRow, RowKey};

use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;

/// Durable state of a manager.
///
/// Methods take effect whole or not at all, and when one returns `Ok` its effect survives what the
/// implementation promises to survive ([`MemoryStore`]: nothing but the call). They may block on a disk
/// or a network, so an asynchronous caller runs them on a thread made for that.
pub trait Store: Send + Sync + 'static {
    /// Notes an agent's registration; a newer one of the same agent replaces it. Rows of the agent's
    /// earlier boots become settled, and its earlier leases end: they died with it.
    fn put_agent(&self, agent: AgentRecord) -> Result<(), StoreError>;

    /// Forgets an agent that is gone for good; its leases end and its rows stay, settled.
    fn remove_agent(&self, agent: AgentId) -> Result<(), StoreError>;

    /// All known agents, by id.
    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError>;

    /// Notes a lease's state; a newer note of the same lease replaces it, except that an ended lease
    /// stays ended.
    fn put_lease(&self, lease: LeaseRecord) -> Result<(), StoreError>;

    /// One lease.
    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError>;

    /// Leases of one tenant, or of all: active ones, and ended ones as long as they are kept.
    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError>;

    /// Merges cumulative totals into the ledger.
    fn merge_usage(&self, rows: &[LedgerRow]) -> Result<(), StoreError>;

    /// One ledger row; `None` where nothing was reported, or where it was settled and folded into its
    /// tenant's bill.
    fn usage(&self, key: RowKey) -> Result<Option<UsageTotals>, StoreError>;

    /// All that a tenant has used.
    fn bill(&self, tenant: &str) -> Result<UsageTotals, StoreError>;
}

/// Why state was not read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A bound was reached and nothing old can make room. Nothing was changed.
    #[error("the store holds {limit} {what}, its limit, and none of them is over; end some of them first")]
    Full {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A ledger row names another tenant than its key did before. Nothing was changed.
    #[error("usage of lease {lease} of agent {agent} (boot {boot}) was reported for another tenant before")]
    TenantChanged {
        /// The reporting agent.
        agent: AgentId,
        /// Its run.
        boot: BootId,
        /// The lease.
        lease: LeaseId,
    },
}
