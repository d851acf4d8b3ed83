//! L1: durable state behind one trait.
//!
//! A manager keeps three things: which agents it knows, which leases they granted, and the ledger of
//! what those leases used. The ledger's rows are cumulative totals keyed (agent, boot, lease) and merged
//! by taking the larger value of each counter, so a report that arrives twice, late or out of order
//! never bills twice and never un-bills. A row is opened when the manager notes a grant, and bounds what
//! the agent can bill (see [`hotlease_lease::ledger`]).
//!
//! * [`Store`] — what a manager asks of its state.
//! * [`People`] — and about tenants and keys.
//! * [`open_sqlite`] — the default: a database in a directory of this machine; what was answered survives
//!   any crash, also of the machine.
//! * [`Candidate`] — a database of a site: of several managers one leads, the others wait, and whoever takes over
//!   fences the one before.
//! * [`MemoryStore`] — state that lives as long as its process.
//! * [`backup`] and [`restore`] — of a SQLite ledger, also while it is in use.
//!
//! All are bounded by [`Limits`], and the conformance suite (`tests/store_conformance`) holds them against each
//! other.
//!
//! ```
//! use hotlease_store::{BillQuery, LedgerRow, MemoryStore, Report, RowKey, Store};
//! use hotlease_wire::ids::{AgentId, BootId, LeaseId};
//! use hotlease_wire::session::UsageTotals;
//!
//! let store = MemoryStore::default();
//! let key = RowKey { agent: AgentId([1; 8]), boot: BootId([2; 8]), lease: LeaseId([3; 8]) };
//! let usage = UsageTotals { invocations: 1, ..Default::default() };
//! let report = Report {
//!     agent: key.agent, boot: key.boot, at_ms: 1_000, leases: vec![], missing_before: None,
//!     usage: vec![LedgerRow { key, tenant: "uid:1000".into(), usage, functions: Default::default(), settled: true }],
//! };
//! store.report(report.clone()).unwrap();
//! store.report(report).unwrap(); // sent again, billed once
//! let bill = store.bill(&BillQuery::default()).unwrap();
//! assert_eq!(bill.lines[0].usage.invocations, 1);
//! ```

#![forbid(unsafe_code)]

mod backup;
mod bill;
mod database;
mod error;
mod limits;
mod memory;
mod people;
mod postgres;
mod record;
mod row;
mod sql;
mod sqlite;

pub use backup::{BackupSummary, backup, restore};
pub use database::DatabaseStore;
pub use error::StoreError;
pub use limits::Limits;
pub use memory::MemoryStore;
pub use people::{KeyRecord, MEMBERS_MAX, NAME_BYTES_MAX, People, Position, TenantRecord};
pub use postgres::{Candidate, PostgresOptions, open_postgres};
pub use record::{
    AgentRecord, Audit, BILL_LINES_MAX, Bill, BillLine, BillQuery, By, FINDINGS_MAX, LeaseRecord, LeaseState,
    LedgerRow, PERIOD_MS, Report, Reported, RowKey, Standing,
};
pub use sql::{Hook, LATER_MAX, Moment};
pub use sqlite::{LEDGER_FILE, SqliteOptions, open_sqlite};

use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::NodeWish;
use hotlease_wire::ids::{AgentId, LeaseId};

/// Told once what became of a change, by the thread that knows it; it must not block. Where more than
/// [`LATER_MAX`] wait, asking for the next one blocks.
pub type Told<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

/// Durable state of a manager.
///
/// Methods take effect whole or not at all, and when one returns `Ok` its effect survives what the
/// implementation promises to survive ([`MemoryStore`]: nothing but the call; [`DatabaseStore`]: everything
/// but the loss of its disk). They may block on a disk or a network, so an asynchronous caller runs them on
/// a thread made for that. Times are milliseconds since 1970 by the caller's clock, which must not run
/// backwards: see [`Store::latest_ms`].
pub trait Store: People + Send + Sync + 'static {
    /// Notes an agent's registration; a newer one of the same agent replaces it. Rows of the agent's
    /// earlier boots become settled, and its earlier leases end: they died with it.
    fn put_agent(&self, agent: AgentRecord, at_ms: u64) -> Result<(), StoreError>;

    /// Forgets an agent that is gone for good; its leases end and its rows stay, settled.
    fn remove_agent(&self, agent: AgentId, at_ms: u64) -> Result<(), StoreError>;

    /// All known agents, by id.
    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError>;

    /// Notes a lease that this manager had granted, and opens its row in the ledger. An ended lease stays
    /// ended.
    fn open_lease(&self, lease: LeaseRecord, at_ms: u64) -> Result<(), StoreError>;

    /// As [`Store::open_lease`], and does not wait for it. A store that can be slow overrides this.
    fn open_lease_later(&self, lease: LeaseRecord, at_ms: u64, told: Told<()>) {
        told(self.open_lease(lease, at_ms));
    }

    /// One lease.
    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError>;

    /// Leases of one tenant, or of all: active ones, and ended ones as long as they are kept.
    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError>;

    /// How many leases go on.
    fn active_leases(&self) -> Result<u64, StoreError>;

    /// Takes an agent's report: usage is merged into the ledger, leases are noted.
    fn report(&self, report: Report) -> Result<Reported, StoreError>;

    /// As [`Store::report`], and does not wait for it. A store that can be slow overrides this.
    fn report_later(&self, report: Report, told: Told<Reported>) {
        told(self.report(report));
    }

    /// Rows of the ledger, in the order of the keys; `None` where nothing was reported, or where it was
    /// settled and folded into its tenant's total.
    fn rows(&self, keys: &[RowKey]) -> Result<Vec<Option<Standing>>, StoreError>;

    /// What functions used, in the order of the keys.
    fn functions(&self, keys: &[RowKey]) -> Result<Vec<FunctionTotals>, StoreError>;

    /// What was used and is to be paid.
    fn bill(&self, query: &BillQuery) -> Result<Bill, StoreError>;

    /// Holds the ledger against its own rules, as of `now_ms`.
    fn audit(&self, now_ms: u64) -> Result<Audit, StoreError>;

    /// Notes what an operator wants of a node, which may be unknown or away.
    fn put_wish(&self, agent: AgentId, wish: NodeWish) -> Result<(), StoreError>;

    /// Nobody wants anything of it any more.
    fn remove_wish(&self, agent: AgentId) -> Result<(), StoreError>;

    /// What is wanted of nodes, by id.
    fn wishes(&self) -> Result<Vec<(AgentId, NodeWish)>, StoreError>;

    /// Why it takes no more writes, if that is so: only a new process can go on.
    fn ended(&self) -> Option<StoreError> {
        None
    }

    /// Writes something that changes nothing, as durably as anything else: an error says why the next write would
    /// fail, too.
    fn probe(&self) -> Result<(), StoreError>;

    /// The latest time that it was told: a clock that was set back meanwhile goes on from there.
    fn latest_ms(&self) -> Result<u64, StoreError>;
}
