//! Rules for changes of a ledger row: pure functions that all stores share.

use crate::{LeaseRecord, LedgerRow, RowKey, RowState};
use hotlease_lease::ledger::{Account, FunctionId, FunctionUse, TotalsText, larger};
use hotlease_wire::session::UsageTotals;

/// Ledger row after a change, with the findings about the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) row: RowState,
    /// Whether more was reported than the account allows.
    pub(crate) capped: bool,
    /// Whether the row was opened by a report alone, without a grant.
    pub(crate) is_newly_disputed: bool,
    /// Whether the tenant in the report is not the tenant of the row.
    pub(crate) is_foreign: bool,
}

/// Row after the manager noted a grant. If the agent's report came first, its usage is billed as far as the manager's
/// account allows.
pub(crate) fn open_row(lease: &LeaseRecord, known: Option<RowState>, at_ms: u64) -> RowState {
    let mut account = lease.account();
    let mut usage = UsageTotals::default();
    let mut settled = false;
    let mut tenant = lease.tenant.clone();
    if let Some(known) = known {
        settled = known.settled;
        account.ended_ms = known.account.ended_ms;
        if known.disputed {
            (usage, _) = account.merge(usage, known.usage, at_ms);
        } else {
            // Billed usage stays billed, to the same tenant.
            tenant = known.tenant;
            usage = known.usage;
            account.granted_ms = account.granted_ms.min(known.account.granted_ms);
        }
    }
    RowState {
        key: lease.key(),
        tenant,
        label: lease.label.clone(),
        job: lease.job.clone(),
        account,
        usage,
        settled,
        disputed: false,
    }
}

/// Row after an agent's report. `lease` is the lease as the report describes it. If `adopt`, the agent's report of an
/// unknown lease is accepted. A row keeps its tenant, which was granted the lease or has announced it: if the report
/// names another tenant, the usage is still billed to the row's tenant. Such a report is not refused, because that
/// would refuse all its other rows, too.
pub(crate) fn report_row(
    told: &LedgerRow,
    lease: Option<&LeaseRecord>,
    known: Option<RowState>,
    adopt: bool,
    at_ms: u64,
) -> RowChange {
    let newly_disputed = known.is_none() && !adopt;
    let mut row = known.unwrap_or_else(|| unknown_row(told, lease, adopt, at_ms));
    let capped;
    (row.usage, capped) = if row.disputed {
        (larger(row.usage, told.usage), false)
    } else {
        row.account.merge(row.usage, told.usage, at_ms)
    };
    if told.settled {
        row.settled = true;
        row.account.ended_ms.get_or_insert(at_ms);
    }
    RowChange {
        is_foreign: row.tenant != told.tenant,
        row,
        capped,
        is_newly_disputed: newly_disputed,
    }
}

/// Makes a row for a lease that only an agent's report names. If the agent's report is accepted, it also determines
/// when the lease began. From now on the manager's clock limits the usage.
fn unknown_row(told: &LedgerRow, lease: Option<&LeaseRecord>, adopt: bool, at_ms: u64) -> RowState {
    let slots = lease.map_or(1, |lease| lease.slots.max(1));
    let held_ms = told.usage.allocated_ns / 1_000_000 / u64::from(slots);
    RowState {
        key: told.key,
        tenant: told.tenant.clone(),
        label: lease.map(|lease| lease.label.clone()).unwrap_or_default(),
        job: lease.map(|lease| lease.job.clone()).unwrap_or_default(),
        account: Account {
            slots,
            busy_slots: lease.map_or(0, |lease| lease.busy_slots),
            memory_bytes: lease.map_or(0, |lease| lease.memory_bytes),
            granted_ms: at_ms.saturating_sub(held_ms).saturating_sub(1),
            ended_ms: None,
        },
        usage: UsageTotals::default(),
        settled: false,
        disputed: !adopt,
    }
}

/// Settles a row of an agent that is gone: no report follows unless the agent returns. If `ended`, it cannot return.
pub(crate) fn settle_row(mut row: RowState, ended: bool, at_ms: u64) -> RowState {
    row.settled = true;
    if ended {
        row.account.ended_ms.get_or_insert(at_ms);
    }
    row
}

/// Sums the functions of each lease during an audit. Functions must be passed in the order of their leases.
#[derive(Default)]
pub(crate) struct FunctionSums {
    current: Option<(RowKey, FunctionUse)>,
}

impl FunctionSums {
    /// Checks the next function; describes a fault in words. `lease` is the usage of the whole lease; `periods` are the
    /// function's totals by period, in order.
    pub(crate) fn problem(
        &mut self,
        key: RowKey,
        lease: FunctionUse,
        function: &FunctionId,
        used: FunctionUse,
        periods: &[(u64, FunctionUse)],
    ) -> Option<String> {
        let before = self.current.filter(|(of, _)| *of == key);
        let sum = before.map(|(_, sum)| sum).unwrap_or_default().plus(used);
        self.current = Some((key, sum));
        let what = if !lease.covers(sum) {
            "functions are billed more than their lease"
        } else if periods.windows(2).any(|pair| !pair[1].1.covers(pair[0].1)) {
            "a later period has a smaller total"
        } else if periods.last().map(|(_, last)| *last) != Some(used) {
            "its periods do not end at its total"
        } else {
            return None;
        };
        Some(format!(
            "function {} of lease {} of agent {} (boot {}): {what}",
            function.name, key.lease, key.agent, key.boot
        ))
    }
}

/// Checks a row; describes its faults in words. `periods` are the row's totals by period, in order.
pub(crate) fn problems(row: &RowState, periods: &[(u64, UsageTotals)], now_ms: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let key = row.key;
    let name = format!("lease {} of agent {} (boot {})", key.lease, key.agent, key.boot);
    if row.account.ended_ms.is_some() && !row.settled {
        problems.push(format!("{name} has ended and is not settled"));
    }
    if row.disputed {
        return problems;
    }
    let limit = row.account.limit_ns(now_ms);
    let busy = row.usage.hot_ns.saturating_add(row.usage.compute_ns);
    if row.usage.allocated_ns > limit || busy > row.account.busy_limit_ns(now_ms) {
        problems.push(format!(
            "{name} is billed more than {} slots since {} ms allow ({limit} ns): {}",
            row.account.slots,
            row.account.granted_ms,
            TotalsText(row.usage)
        ));
    }
    let falls = |pair: &[(u64, UsageTotals)]| larger(pair[0].1, pair[1].1) != pair[1].1;
    if periods.windows(2).any(falls) {
        problems.push(format!("{name}: a later period has a smaller total"));
    }
    let last = periods.last().map(|(_, usage)| *usage).unwrap_or_default();
    if last != row.usage {
        problems.push(format!(
            "{name}: its periods end at {}, its row at {}",
            TotalsText(last),
            TotalsText(row.usage)
        ));
    }
    problems
}
