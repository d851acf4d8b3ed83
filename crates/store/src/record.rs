//! What is stored.

use hotlease_lease::ledger::{Account, FunctionId, FunctionTotals};
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeSet;

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

/// A lease, as the manager granted it or its agent last reported it.
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
    /// The batch job that it belongs to; empty: none.
    pub job: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// Slots granted.
    pub slots: u32,
    /// Memory of all its workers, bytes; 0: no limit was asked for.
    pub memory_bytes: u64,
    /// GPUs of all its workers.
    pub gpus: u32,
    /// When the manager asked for it, milliseconds since 1970 by its clock.
    pub granted_ms: u64,
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

    /// What it may bill.
    pub fn account(&self) -> Account {
        Account {
            slots: self.slots,
            memory_bytes: self.memory_bytes,
            granted_ms: self.granted_ms,
            ended_ms: None,
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
    /// What its functions used of that, as far as it is told this time.
    pub functions: FunctionTotals,
    /// The lease is over: this total is its last.
    pub settled: bool,
}

/// What an agent reports at a time; taken whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Who reports.
    pub agent: AgentId,
    /// In which run.
    pub boot: BootId,
    /// When it arrived, milliseconds since 1970 by the manager's clock.
    pub at_ms: u64,
    /// Leases as they are.
    pub leases: Vec<LeaseRecord>,
    /// What they and leases of earlier runs have used.
    pub usage: Vec<LedgerRow>,
    /// Where the report names every running lease: those that the report before lacked. A lease that is
    /// missing for the second time has ended unheard. `None`: this report is about some leases only.
    pub missing_before: Option<BTreeSet<LeaseId>>,
}

/// What became of a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reported {
    /// Running leases that the report lacks, for the first time.
    pub missing: BTreeSet<LeaseId>,
    /// Rows whose agent reported more than their accounts allow; the excess is not billed.
    pub capped: Vec<RowKey>,
    /// Rows that this report opened and that no grant of this manager stands behind; they are not billed.
    pub disputed: Vec<RowKey>,
}

/// A row of the ledger as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// What it is about.
    pub key: RowKey,
    /// Who pays.
    pub tenant: String,
    /// The lease's label.
    pub label: String,
    /// The lease's job.
    pub job: String,
    /// What may be billed.
    pub account: Account,
    /// Used so far.
    pub usage: UsageTotals,
    /// The lease is over.
    pub settled: bool,
    /// No grant of this manager stands behind it: it is not billed.
    pub disputed: bool,
}

/// How a bill's lines are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// A line a tenant.
    #[default]
    Tenant,
    /// A line a tenant and job.
    Job,
    /// A line a lease.
    Lease,
    /// A line a tenant and function, and one for what no function of the tenant's leases used: then the lines are what
    /// the tenant's line would be.
    Function,
}

/// What a bill is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BillQuery {
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// Of this job only.
    pub job: Option<String>,
    /// Used from then on: milliseconds since 1970, cut down to a whole [`PERIOD_MS`].
    pub since_ms: Option<u64>,
    /// Used until then, likewise rounded up.
    pub until_ms: Option<u64>,
    /// How lines are grouped.
    pub by: By,
}

/// Usage is kept by periods of this length, by the time at which it was reported.
pub const PERIOD_MS: u64 = 3_600_000;

/// Usage to be paid.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BillLine {
    /// Who pays.
    pub tenant: String,
    /// The job; empty where lines are by tenant, or the leases had none.
    pub job: String,
    /// The lease, where lines are by lease.
    pub lease: Option<RowKey>,
    /// Its label.
    pub label: String,
    /// The function, where lines are by function; none: what no function used.
    pub function: Option<FunctionId>,
    /// How many leases are in this line; 0: rows that were folded into their tenant's total.
    pub leases: u64,
    /// Used.
    pub usage: UsageTotals,
    /// Memory held, MiB times milliseconds.
    pub memory_mib_ms: u64,
}

/// Lines of a bill, ordered by tenant, job, lease and function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bill {
    /// See [`BillLine`].
    pub lines: Vec<BillLine>,
    /// Rows that are not billed, because no grant of this manager stands behind them.
    pub disputed: u64,
}

/// What an audit of the ledger found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Rows looked at.
    pub rows: u64,
    /// Rows that are not billed, because no grant of this manager stands behind them; at most
    /// [`FINDINGS_MAX`].
    pub disputed: Vec<Standing>,
    /// What is wrong, in words; at most [`FINDINGS_MAX`]. Empty: nothing.
    pub problems: Vec<String>,
}

/// Findings of one kind that an audit names.
pub const FINDINGS_MAX: usize = 1000;
/// Lines of one bill.
pub const BILL_LINES_MAX: usize = 100_000;
