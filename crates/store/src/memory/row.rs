//! Ledger row of the memory store.

use crate::bill::FunctionRow;
use crate::{PERIOD_MS, RowState};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;

#[derive(Clone)]
pub(super) struct MemoryRow {
    pub(super) standing: RowState,
    pub(super) periods: Vec<(u64, UsageTotals)>,
    pub(super) functions: FunctionTotals,
    pub(super) function_periods: BTreeMap<FunctionId, Vec<(u64, FunctionUse)>>,
}

impl MemoryRow {
    /// Merges the reported usage of the lease's functions into the row.
    pub(super) fn merge_functions(&mut self, told: &FunctionTotals, at_ms: u64) {
        if self.standing.disputed {
            return;
        }
        for id in self.functions.merge(told, self.standing.usage) {
            let used = self.functions.get(&id);
            let periods = self.function_periods.entry(id).or_default();
            let period = at_ms / PERIOD_MS;
            match periods.last_mut() {
                Some((last, known)) if *last >= period => *known = used,
                _ => periods.push((period, used)),
            }
        }
    }

    pub(super) fn functions(&self) -> impl Iterator<Item = FunctionRow<'_>> {
        self.functions.iter().map(|(id, used)| FunctionRow {
            tenant: &self.standing.tenant,
            job: &self.standing.job,
            disputed: self.standing.disputed,
            function: id,
            used,
            periods: self.function_periods.get(id).map_or(&[], Vec::as_slice),
        })
    }
}
