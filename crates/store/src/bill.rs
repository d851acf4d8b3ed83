//! Adds up a bill from ledger rows in any order.

use crate::{BILL_LINES_MAX, Bill, BillGrouping, BillLine, BillQuery, PERIOD_MS, RowKey, RowState, StoreError};
use hotlease_lease::ledger::{FunctionId, FunctionUse, TOTAL_MAX, difference, sum};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;

/// Sums ledger rows and usage of functions into the lines of a bill.
pub(crate) struct Biller<'a> {
    query: &'a BillQuery,
    lines: BTreeMap<LineKey, BillLine>,
    /// For each tenant, the usage in its lines by function. It is subtracted from the tenant's line without a function,
    /// so that no usage is billed twice.
    attributed: BTreeMap<String, FunctionUse>,
    disputed: u64,
}

/// Tenant, job, lease, function.
type LineKey = (String, String, Option<RowKey>, Option<FunctionId>);

/// Usage of one function under one ledger row.
pub(crate) struct FunctionRow<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) job: &'a str,
    pub(crate) disputed: bool,
    pub(crate) function: &'a FunctionId,
    /// Total usage of the function.
    pub(crate) used: FunctionUse,
    /// Totals by period, in the order of periods; used only if the query has a time range.
    pub(crate) periods: &'a [(u64, FunctionUse)],
}

impl<'a> Biller<'a> {
    pub(crate) fn new(query: &'a BillQuery) -> Self {
        Self {
            query,
            lines: BTreeMap::new(),
            attributed: BTreeMap::new(),
            disputed: 0,
        }
    }

    /// Whether the query has a time range: then usage by period is needed, in addition to the rows' totals.
    pub(crate) fn is_ranged(&self) -> bool {
        self.query.since_ms.is_some() || self.query.until_ms.is_some()
    }

    /// First period of the range.
    pub(crate) fn first_period(&self) -> u64 {
        self.query.since_ms.unwrap_or(0) / PERIOD_MS
    }

    /// First period after the range.
    pub(crate) fn end_period(&self) -> u64 {
        self.query.until_ms.map_or(TOTAL_MAX, |until| until.div_ceil(PERIOD_MS))
    }

    /// Whether the bill has lines by function.
    pub(crate) fn is_by_function(&self) -> bool {
        self.query.by == BillGrouping::Function
    }

    fn is_wanted(&self, tenant: &str, job: &str) -> bool {
        let wanted = |filter: &Option<String>, value: &str| filter.as_deref().is_none_or(|only| only == value);
        wanted(&self.query.tenant, tenant) && wanted(&self.query.job, job)
    }

    /// Adds the usage of a function. All functions must be read and added before the rows: if a row grows between the
    /// two reads, it still covers its functions.
    pub(crate) fn function(&mut self, row: &FunctionRow<'_>) -> Result<(), StoreError> {
        if row.disputed || !self.is_wanted(row.tenant, row.job) {
            return Ok(());
        }
        let used = if self.is_ranged() {
            let total_before = |period: u64| {
                let before = row.periods.iter().take_while(|(known, _)| *known < period);
                before.last().map(|(_, used)| *used).unwrap_or_default()
            };
            total_before(self.end_period()).minus(total_before(self.first_period()))
        } else {
            row.used
        };
        if used == FunctionUse::default() {
            return Ok(());
        }
        let attributed = self.attributed.entry(row.tenant.to_owned()).or_default();
        *attributed = attributed.plus(used);
        let line = self.line(row.tenant, row.job, None, Some(row.function))?;
        line.leases += 1;
        line.usage = sum(
            line.usage,
            UsageTotals {
                compute_ns: used.compute_ns,
                invocations: used.invocations,
                ..UsageTotals::default()
            },
        );
        Ok(())
    }

    /// Adds a row. `periods` are its totals by period, in order; used only if the query has a time range.
    pub(crate) fn add(&mut self, row: &RowState, periods: &[(u64, UsageTotals)]) -> Result<(), StoreError> {
        if !self.is_wanted(&row.tenant, &row.job) {
            return Ok(());
        }
        if row.disputed {
            self.disputed += 1;
            return Ok(());
        }
        let (from, until) = if self.is_ranged() {
            let (first, end) = (self.first_period(), self.end_period());
            let total_before = |period: u64| {
                let before = periods.iter().take_while(|(known, _)| *known < period);
                before.last().map(|(_, usage)| *usage).unwrap_or_default()
            };
            (total_before(first), total_before(end))
        } else {
            (UsageTotals::default(), row.usage)
        };
        if self.is_ranged() && from == until {
            return Ok(());
        }
        let memory = row
            .account
            .memory_mib_ms(until)
            .saturating_sub(row.account.memory_mib_ms(from));
        let lease = (self.query.by == BillGrouping::Lease).then_some(row.key);
        let line = self.line(&row.tenant, &row.job, lease, None)?;
        if lease.is_some() {
            line.label.clone_from(&row.label);
        }
        line.leases += 1;
        line.usage = sum(line.usage, row.account.core_usage(difference(until, from)));
        line.memory_mib_ms = line.memory_mib_ms.saturating_add(memory).min(TOTAL_MAX);
        Ok(())
    }

    /// Adds a tenant's total of folded rows. Their job, lease, functions and periods are not known any more.
    pub(crate) fn add_folded(
        &mut self,
        tenant: &str,
        usage: UsageTotals,
        memory_mib_ms: u64,
    ) -> Result<(), StoreError> {
        let other = self.query.tenant.as_deref().is_some_and(|only| only != tenant);
        if other || self.query.job.is_some() || self.is_ranged() {
            return Ok(());
        }
        let line = self.line(tenant, "", None, None)?;
        line.usage = sum(line.usage, usage);
        line.memory_mib_ms = line.memory_mib_ms.saturating_add(memory_mib_ms).min(TOTAL_MAX);
        Ok(())
    }

    fn line(
        &mut self,
        tenant: &str,
        job: &str,
        lease: Option<RowKey>,
        function: Option<&FunctionId>,
    ) -> Result<&mut BillLine, StoreError> {
        let job = match self.query.by {
            BillGrouping::Tenant | BillGrouping::Function => "",
            BillGrouping::Job | BillGrouping::Lease => job,
        };
        let full = self.lines.len() >= BILL_LINES_MAX;
        let key = (tenant.to_owned(), job.to_owned(), lease, function.cloned());
        if full && !self.lines.contains_key(&key) {
            return Err(StoreError::TooManyLines { limit: BILL_LINES_MAX });
        }
        Ok(self.lines.entry(key).or_insert_with(|| BillLine {
            tenant: tenant.to_owned(),
            job: job.to_owned(),
            lease,
            function: function.cloned(),
            ..BillLine::default()
        }))
    }

    /// Completes the bill. Usage of functions is subtracted from the tenant's line without a function. Functions are
    /// reported some seconds after their lease. So the usage of a function may be reported in the range of the bill
    /// although the lease's usage was reported before the range. This excess is left off the bill, so that the lines
    /// add up to the usage of the tenant.
    pub(crate) fn complete(mut self) -> Bill {
        for (tenant, attributed) in &self.attributed {
            let key = (tenant.clone(), String::new(), None, None);
            let mut all = FunctionUse::default();
            if let Some(rest) = self.lines.get_mut(&key) {
                all = rest.usage.into();
                take(&mut rest.usage, *attributed);
            }
            let mut excess = attributed.minus(all);
            let lines = self.lines.range_mut(key..);
            let lines = lines.take_while(|((of, ..), _)| of == tenant);
            for (_, line) in lines.filter(|(_, line)| line.function.is_some()) {
                let cut = excess.within(line.usage.into());
                take(&mut line.usage, cut);
                excess = excess.minus(cut);
            }
        }
        Bill {
            lines: self.lines.into_values().collect(),
            disputed: self.disputed,
        }
    }
}

fn take(usage: &mut UsageTotals, used: FunctionUse) {
    usage.compute_ns = usage.compute_ns.saturating_sub(used.compute_ns);
    usage.invocations = usage.invocations.saturating_sub(used.invocations);
}
