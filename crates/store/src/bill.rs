//! Adding up a bill, from rows in any order.

use crate::{BILL_LINES_MAX, Bill, BillLine, BillQuery, By, PERIOD_MS, RowKey, Standing, StoreError};
use hotlease_lease::ledger::{TOTAL_MAX, difference, sum};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;

/// See the module.
pub(crate) struct Biller<'a> {
    query: &'a BillQuery,
    lines: BTreeMap<(String, String, Option<RowKey>), BillLine>,
    disputed: u64,
}

impl<'a> Biller<'a> {
    pub(crate) fn new(query: &'a BillQuery) -> Self {
        Self {
            query,
            lines: BTreeMap::new(),
            disputed: 0,
        }
    }

    /// Whether usage of periods matters, or the rows' totals alone.
    pub(crate) fn is_ranged(&self) -> bool {
        self.query.since_ms.is_some() || self.query.until_ms.is_some()
    }

    /// First period that counts.
    pub(crate) fn first_period(&self) -> u64 {
        self.query.since_ms.unwrap_or(0) / PERIOD_MS
    }

    /// First period that counts no more.
    pub(crate) fn end_period(&self) -> u64 {
        self.query
            .until_ms
            .map_or(TOTAL_MAX, |until| until.div_ceil(PERIOD_MS))
    }

    /// A row. `periods`: its totals by period, in order; looked at only for a range.
    pub(crate) fn add(&mut self, row: &Standing, periods: &[(u64, UsageTotals)]) -> Result<(), StoreError> {
        let wanted =
            |filter: &Option<String>, value: &str| filter.as_deref().is_none_or(|only| only == value);
        if !wanted(&self.query.tenant, &row.tenant) || !wanted(&self.query.job, &row.job) {
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
        let lease = (self.query.by == By::Lease).then_some(row.key);
        let line = self.line(&row.tenant, &row.job, lease)?;
        if lease.is_some() {
            line.label.clone_from(&row.label);
        }
        line.leases += 1;
        line.usage = sum(line.usage, difference(until, from));
        line.memory_mib_ms = line.memory_mib_ms.saturating_add(memory).min(TOTAL_MAX);
        Ok(())
    }

    /// A tenant's total of folded rows, of which nothing else is known any more.
    pub(crate) fn folded(
        &mut self,
        tenant: &str,
        usage: UsageTotals,
        memory_mib_ms: u64,
    ) -> Result<(), StoreError> {
        let other = self.query.tenant.as_deref().is_some_and(|only| only != tenant);
        if other || self.query.job.is_some() || self.is_ranged() {
            return Ok(());
        }
        let line = self.line(tenant, "", None)?;
        line.usage = sum(line.usage, usage);
        line.memory_mib_ms = line.memory_mib_ms.saturating_add(memory_mib_ms).min(TOTAL_MAX);
        Ok(())
    }

    fn line(&mut self, tenant: &str, job: &str, lease: Option<RowKey>) -> Result<&mut BillLine, StoreError> {
        let job = match self.query.by {
            By::Tenant => "",
            By::Job | By::Lease => job,
        };
        let full = self.lines.len() >= BILL_LINES_MAX;
        let key = (tenant.to_owned(), job.to_owned(), lease);
        if full && !self.lines.contains_key(&key) {
            return Err(StoreError::TooManyLines {
                limit: BILL_LINES_MAX,
            });
        }
        Ok(self.lines.entry(key).or_insert_with(|| BillLine {
            tenant: tenant.to_owned(),
            job: job.to_owned(),
            lease,
            ..BillLine::default()
        }))
    }

    pub(crate) fn done(self) -> Bill {
        Bill {
            lines: self.lines.into_values().collect(),
            disputed: self.disputed,
        }
    }
}
