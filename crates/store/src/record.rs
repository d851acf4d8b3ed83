//! Records of a store, and results of its queries.

use hotlease_lease::ledger::{Account, FunctionId, FunctionTotals};
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeSet;

/// Registration of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    /// Identifier of the agent.
    pub id: AgentId,
    /// Run of the agent.
    pub boot: BootId,
    /// Address of the agent's gRPC socket.
    pub address: String,
    /// Cores that the agent offers.
    pub cores: Vec<u32>,
}

/// Record of a lease, as noted by the manager at the grant, or as last reported by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Identifier of the lease.
    pub id: LeaseId,
    /// Agent that granted the lease.
    pub agent: AgentId,
    /// Run of the agent in which the lease was granted.
    pub boot: BootId,
    /// Tenant that holds the lease.
    pub tenant: String,
    /// Label of the lease, given by the holder.
    pub label: String,
    /// Batch job to which the lease belongs; empty if there is none.
    pub job: String,
    /// Epoch of the lease.
    pub epoch: Epoch,
    /// Cores that were granted.
    pub cores: Vec<u32>,
    /// Number of slots that were granted; for a lease on shared cores, the number of cores on which it was placed.
    pub slots: u32,
    /// Number of slots that may compute at the same time; see [`Account::busy_slots`].
    pub busy_slots: u32,
    /// Memory of all workers of the lease together, bytes; 0 if no limit was requested.
    pub memory_bytes: u64,
    /// Number of GPUs of all workers of the lease together.
    pub gpus: u32,
    /// Time when the manager asked for the lease, milliseconds since 1970 by its clock.
    pub granted_ms: u64,
    /// Whether the lease runs.
    pub state: LeaseState,
}

/// State of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease runs.
    Active,
    /// The lease has ended.
    Ended {
        /// Reason in words: from the lease's agent, or the manager's finding about the agent.
        why: String,
    },
}

/// Key of a ledger row. The same lease id under another boot is another row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Agent that measured.
    pub agent: AgentId,
    /// Run of the agent.
    pub boot: BootId,
    /// Lease that was measured.
    pub lease: LeaseId,
}

impl LeaseRecord {
    /// Key of the lease's ledger row.
    pub fn key(&self) -> RowKey {
        RowKey {
            agent: self.agent,
            boot: self.boot,
            lease: self.id,
        }
    }

    /// Account that limits what the lease can bill.
    pub fn account(&self) -> Account {
        Account {
            slots: self.slots,
            busy_slots: self.busy_slots,
            memory_bytes: self.memory_bytes,
            granted_ms: self.granted_ms,
            ended_ms: None,
        }
    }
}

/// Cumulative usage of a lease, as an agent reports it repeatedly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    /// Key of the row.
    pub key: RowKey,
    /// Tenant that pays.
    pub tenant: String,
    /// Usage so far.
    pub usage: UsageTotals,
    /// Usage of the lease's functions, as far as this report contains it.
    pub functions: FunctionTotals,
    /// Whether the lease has ended, so that this total is its last.
    pub settled: bool,
}

/// Report of an agent; processed whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRecord {
    /// Agent that reports.
    pub agent: AgentId,
    /// Run of the agent.
    pub boot: BootId,
    /// Time when the report arrived, milliseconds since 1970 by the manager's clock.
    pub at_ms: u64,
    /// Leases with their current state.
    pub leases: Vec<LeaseRecord>,
    /// Usage of these leases, and of leases of earlier runs.
    pub usage: Vec<LedgerRow>,
    /// For a report that names every running lease: the leases that were missing in the previous report. A lease that
    /// is missing for the second time has ended without a message. `None` if this report names only some leases.
    pub missing_before: Option<BTreeSet<LeaseId>>,
}

/// Result of a [`ReportRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportResult {
    /// Running leases that are missing in a report for the first time.
    pub missing: BTreeSet<LeaseId>,
    /// Rows for which the agent reported more than their accounts allow; the excess is not billed.
    pub capped: Vec<RowKey>,
    /// Rows that this report opened without a grant of this manager; they are not billed.
    pub disputed: Vec<RowKey>,
    /// Rows for which the report names another tenant; their usage is billed to the tenant of the row.
    pub foreign: Vec<RowKey>,
}

/// Current state of a ledger row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowState {
    /// Key of the row.
    pub key: RowKey,
    /// Tenant that pays.
    pub tenant: String,
    /// Label of the lease.
    pub label: String,
    /// Job of the lease.
    pub job: String,
    /// Account that limits what can be billed.
    pub account: Account,
    /// Usage so far.
    pub usage: UsageTotals,
    /// Whether the lease has ended.
    pub settled: bool,
    /// Whether there is no grant of this manager for the row; such a row is not billed.
    pub disputed: bool,
}

/// Grouping of a bill's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BillGrouping {
    /// One line for each tenant.
    #[default]
    Tenant,
    /// One line for each tenant and job.
    Job,
    /// One line for each lease.
    Lease,
    /// One line for each tenant and function, and one line for usage of the tenant's leases by no function. Together
    /// these lines add up to the tenant's line.
    Function,
}

/// Query for a bill.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BillQuery {
    /// Only this tenant, if given.
    pub tenant: Option<String>,
    /// Only this job, if given.
    pub job: Option<String>,
    /// Start of the range, milliseconds since 1970; rounded down to a whole [`PERIOD_MS`].
    pub since_ms: Option<u64>,
    /// End of the range, milliseconds since 1970; rounded up to a whole [`PERIOD_MS`].
    pub until_ms: Option<u64>,
    /// Grouping of the lines.
    pub by: BillGrouping,
}

/// Length of the periods by which usage is kept. Usage is counted in the period in which it was reported.
pub const PERIOD_MS: u64 = 3_600_000;

/// Usage to be paid by one tenant, job, lease or function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BillLine {
    /// Tenant that pays.
    pub tenant: String,
    /// Job; empty if the lines are not by job or lease, or the leases had no job.
    pub job: String,
    /// Lease, if the lines are by lease.
    pub lease: Option<RowKey>,
    /// Label of the lease, if the lines are by lease.
    pub label: String,
    /// Function, if the lines are by function; `None` in the line for usage that belongs to no function.
    pub function: Option<FunctionId>,
    /// Number of leases in this line; 0 if it only has rows that were folded into their tenant's total.
    pub leases: u64,
    /// Usage.
    pub usage: UsageTotals,
    /// Memory held, MiB times milliseconds.
    pub memory_mib_ms: u64,
}

/// Lines of a bill, ordered by tenant, job, lease and function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bill {
    /// Lines of the bill.
    pub lines: Vec<BillLine>,
    /// Number of rows that are not billed, because this manager recorded no grant for them.
    pub disputed: u64,
}

/// Result of an audit of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Number of rows that were checked.
    pub rows: u64,
    /// Rows that are not billed, because this manager recorded no grant for them; at most [`FINDINGS_MAX`].
    pub disputed: Vec<RowState>,
    /// Faults in words; at most [`FINDINGS_MAX`]. Empty if there are none.
    pub problems: Vec<String>,
}

/// Limit of findings of one kind in an audit.
pub const FINDINGS_MAX: usize = 1000;
/// Limit of lines of one bill.
pub const BILL_LINES_MAX: usize = 100_000;
