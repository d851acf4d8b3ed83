//! Durable state of a manager, behind one trait.
//!
//! A manager stores three things: the registered agents, the leases that they granted, and the ledger of the leases'
//! usage. The ledger's rows are cumulative totals with the key (agent, boot, lease). Rows are merged by taking the
//! larger value of each counter. So a report that arrives twice, late or out of order is never billed twice, and never
//! lowers a bill. A row is opened when the manager notes a grant, and limits what the agent can bill (see
//! [`hotlease_lease::ledger`]).
//!
//! * [`Store`] — durable state of a manager: agents, leases, ledger.
//! * [`TenantStore`] — the part of this state about tenants and keys.
//! * [`open_sqlite`] — the default: a database in a directory of this node. Acknowledged writes survive any crash,
//!   also of the node.
//! * [`Candidate`] — a database of a site with several managers: one manager leads, and the others wait. A manager that
//!   takes over fences the previous leader.
//! * [`MemoryStore`] — state that lives as long as its process.
//! * [`backup`] and [`restore`] — copy a SQLite ledger, also while it is in use, and restore a copy.
//!
//! All stores are limited by [`Limits`]. The conformance suite (`tests/store_conformance`) compares the behaviour of
//! the stores.
//!
//! ```
//! use hotlease_store::{BillQuery, LedgerRow, MemoryStore, ReportRecord, RowKey, Store};
//! use hotlease_wire::ids::{AgentId, BootId, LeaseId};
//! use hotlease_wire::session::UsageTotals;
//!
//! let store = MemoryStore::default();
//! let key = RowKey { agent: AgentId([1; 8]), boot: BootId([2; 8]), lease: LeaseId([3; 8]) };
//! let usage = UsageTotals { invocations: 1, ..Default::default() };
//! let report = ReportRecord {
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
mod mark;
mod memory;
mod postgres;
mod record;
mod row;
mod sql;
mod sqlite;
mod tenants;

pub use backup::{BackupSummary, backup, restore};
pub use database::DatabaseStore;
pub use error::StoreError;
pub use limits::Limits;
pub use memory::MemoryStore;
pub use postgres::{Candidate, PostgresOptions, open_postgres};
pub use record::{
    AgentRecord, Audit, BILL_LINES_MAX, Bill, BillGrouping, BillLine, BillQuery, FINDINGS_MAX, LeaseRecord, LeaseState,
    LedgerRow, PERIOD_MS, ReportRecord, ReportResult, RowKey, RowState,
};
pub use sql::{LATER_MAX, WriterHook, WriterMoment};
pub use sqlite::{LEDGER_FILE, SqliteOptions, open_sqlite};
pub use tenants::{KeyRecord, MEMBERS_MAX, NAME_BYTES_MAX, Position, PutCondition, TenantRecord, TenantStore};

use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{NodeWish, OrderRecord};
use hotlease_wire::ids::{AgentId, LeaseId};

/// Callback with the result of a change. Called once, by the thread that made the change or found out its failure. It
/// must not block. While more than [`LATER_MAX`] changes wait, the next call of a `_later` method blocks.
pub type DoneCallback<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

/// Durable state of a manager.
///
/// Methods take effect whole or not at all. When a method returns `Ok`, its effect is as durable as the implementation
/// promises: in a [`MemoryStore`] it lasts as long as the process, in a [`DatabaseStore`] as long as the disk. Methods
/// may block on a disk or a network, so an asynchronous caller must run them on a thread for blocking calls. Times are
/// milliseconds since 1970 by the caller's clock, which must not run backwards: see [`Store::latest_ms`].
pub trait Store: TenantStore + Send + Sync + 'static {
    /// Notes an agent's registration, which replaces an earlier registration of the agent. Rows of the agent's earlier
    /// boots are settled, and leases of these boots end, because they died with their run.
    fn put_agent(&self, agent: AgentRecord, at_ms: u64) -> Result<(), StoreError>;

    /// Forgets an agent that is gone for good. The agent's leases end; its rows are settled, but not removed.
    fn remove_agent(&self, agent: AgentId, at_ms: u64) -> Result<(), StoreError>;

    /// All known agents, ordered by id.
    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError>;

    /// Notes a lease that an agent granted at this manager's request, and opens the lease's ledger row. A lease that
    /// has ended stays ended.
    fn open_lease(&self, lease: LeaseRecord, at_ms: u64) -> Result<(), StoreError>;

    /// Notes a lease like [`Store::open_lease`], without waiting for durability. A store that can be slow overrides
    /// this method.
    fn open_lease_later(&self, lease: LeaseRecord, at_ms: u64, told: DoneCallback<()>) {
        told(self.open_lease(lease, at_ms));
    }

    /// Record of one lease.
    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError>;

    /// Leases of one tenant, or of all tenants: running leases, and ended leases as long as these are kept.
    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError>;

    /// Number of running leases.
    fn active_leases(&self) -> Result<u64, StoreError>;

    /// Processes an agent's report: merges usage into the ledger, and notes leases.
    fn report(&self, report: ReportRecord) -> Result<ReportResult, StoreError>;

    /// Processes a report like [`Store::report`], without waiting for durability. A store that can be slow overrides
    /// this method.
    fn report_later(&self, report: ReportRecord, told: DoneCallback<ReportResult>) {
        told(self.report(report));
    }

    /// Rows of the ledger, in the order of the keys. `None` if no usage was reported, or if the row was settled and
    /// folded into its tenant's total.
    fn rows(&self, keys: &[RowKey]) -> Result<Vec<Option<RowState>>, StoreError>;

    /// Usage of each lease's functions, in the order of the keys.
    fn functions(&self, keys: &[RowKey]) -> Result<Vec<FunctionTotals>, StoreError>;

    /// Usage to be paid, added up into lines.
    fn bill(&self, query: &BillQuery) -> Result<Bill, StoreError>;

    /// Checks that the ledger obeys its own rules at the time `now_ms`.
    fn audit(&self, now_ms: u64) -> Result<Audit, StoreError>;

    /// Notes an operator's wish for a node, and the order that led to the wish, if the order has a token. The node may
    /// be unknown or away. Removes all orders that are older than `order` by more than
    /// [`ORDER_KNOWN_MS`](hotlease_lease::manager::ORDER_KNOWN_MS).
    fn put_wish(&self, agent: AgentId, wish: NodeWish, order: Option<OrderRecord>) -> Result<(), StoreError>;

    /// Removes the wish for a node.
    fn remove_wish(&self, agent: AgentId) -> Result<(), StoreError>;

    /// Wishes for nodes, ordered by agent id.
    fn wishes(&self) -> Result<Vec<(AgentId, NodeWish)>, StoreError>;

    /// Removes an order with a token.
    fn forget_order(&self, agent: AgentId, number: u64) -> Result<(), StoreError>;

    /// Orders with a token, oldest first.
    fn orders(&self) -> Result<Vec<OrderRecord>, StoreError>;

    /// Reason why no more writes are possible; `None` if they are. Only a new process can then continue.
    fn end_error(&self) -> Option<StoreError> {
        None
    }

    /// Writes a probe that changes no record, as durably as any other write. If the probe fails, other writes would
    /// fail too, with the returned error.
    fn probe(&self) -> Result<(), StoreError>;

    /// Latest time that was passed to the store. A manager whose clock was set back continues from this time.
    fn latest_ms(&self) -> Result<u64, StoreError>;
}
