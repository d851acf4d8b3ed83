//! Usage of a lease by function: names for the function numbers in workers' counts, and the times at which usage is
//! reported.
//!
//! A worker's figures are cut to the worker's own totals, and reported figures never shrink. A function that was once
//! reported by its name keeps that name: names are assigned in the order in which functions appear, until the lease's
//! table of names is full.

use crate::data::code::CheckedLibrary;
use hotlease_fabric::usage::FunctionUsage;
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_wire::limits::FUNCTIONS_BILLED_MAX;
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two reports of the functions of a running lease. At the end of the lease everything is reported.
const FUNCTIONS_EVERY: Duration = Duration::from_secs(10);

/// Usage of one lease by function.
#[derive(Default)]
pub(crate) struct Attribution {
    /// Libraries, each with the number of its first function.
    codes: Vec<(u16, Arc<CheckedLibrary>)>,
    named: BTreeMap<u16, FunctionId>,
    /// The largest totals that were ever seen.
    seen: FunctionTotals,
    /// Time and content of the last report.
    reported: (Duration, FunctionTotals),
}

impl Attribution {
    /// Adds a library, whose functions are numbered from `base` on.
    pub fn add_library(&mut self, base: u16, code: Arc<CheckedLibrary>) {
        self.codes.push((base, code));
    }

    /// Name of a function, for a log.
    pub fn name_of(&self, function: u16) -> Option<&str> {
        let (base, code) = self.codes.iter().rev().find(|(base, _)| *base <= function)?;
        code.functions.get(usize::from(function - base)).map(String::as_str)
    }

    fn id_of(&mut self, function: u16) -> FunctionId {
        if let Some(known) = self.named.get(&function) {
            return known.clone();
        }
        let of = self.codes.iter().rev().find(|(base, _)| *base <= function);
        let named = of.and_then(|(base, code)| {
            let name = code.functions.get(usize::from(function - base))?;
            Some(FunctionId::new(code.hash, name))
        });
        match named.filter(|_| self.named.len() < FUNCTIONS_BILLED_MAX) {
            Some(id) => {
                self.named.insert(function, id.clone());
                id
            }
            None => FunctionId::others(),
        }
    }

    /// Totals by function that a worker counted, cut to its own usage `within`.
    pub fn of_worker(&mut self, rows: &[FunctionUsage], within: UsageTotals) -> FunctionTotals {
        let mut told = FunctionTotals::default();
        for row in rows {
            let id = row
                .function
                .map_or_else(FunctionId::others, |function| self.id_of(function));
            let used = FunctionUse {
                compute_ns: row.compute_ns,
                invocations: row.invocations,
            };
            told.add(&id, used);
        }
        let mut believed = FunctionTotals::default();
        believed.merge(&told, within);
        believed
    }

    /// Totals by function of the whole lease so far: never less than before, and cut to the lease's usage `lease`.
    pub fn so_far(&mut self, counted: &FunctionTotals, lease: UsageTotals) -> FunctionTotals {
        self.seen.merge(counted, lease);
        self.seen.clone()
    }

    /// Time of the last report.
    pub fn reported_at(&self) -> Duration {
        self.reported.0
    }

    /// Whether a report at `now` should carry these totals.
    pub fn is_due(&self, functions: &FunctionTotals, now: Duration) -> bool {
        let (at, reported) = &self.reported;
        let rested = reported.is_empty() || now.saturating_sub(*at) >= FUNCTIONS_EVERY;
        rested && reported != functions
    }

    /// Records that a report carried these totals.
    pub fn record_report(&mut self, functions: &FunctionTotals, now: Duration) {
        self.reported = (now, functions.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(function: Option<u16>, compute_ns: u64) -> FunctionUsage {
        FunctionUsage {
            function,
            compute_ns,
            invocations: 1,
        }
    }

    fn used(compute_ns: u64, invocations: u64) -> UsageTotals {
        UsageTotals {
            compute_ns,
            invocations,
            ..UsageTotals::default()
        }
    }

    #[test]
    fn a_worker_that_lies_about_functions_gives_them_no_more_than_it_used() {
        let mut attribution = Attribution::default();
        let lies = [row(Some(3), u64::MAX), row(None, u64::MAX), row(Some(u16::MAX), 7)];
        let believed = attribution.of_worker(&lies, used(100, 2));
        let sum = believed.sum();
        assert_eq!((sum.compute_ns, sum.invocations), (100, 2), "{believed:?}");
        assert_eq!(believed.len(), 1, "what has no library has no name: {believed:?}");
    }

    #[test]
    fn a_running_lease_is_reported_soon_and_then_at_its_pace() {
        let mut attribution = Attribution::default();
        let some = attribution.of_worker(&[row(None, 5)], used(100, 2));
        let more = attribution.of_worker(&[row(None, 6)], used(100, 2));
        let at = Duration::from_secs;
        assert!(attribution.is_due(&some, at(1)));
        attribution.record_report(&some, at(1));
        assert!(!attribution.is_due(&more, at(2)), "too soon");
        assert!(!attribution.is_due(&some, at(60)), "nothing changed");
        assert!(attribution.is_due(&more, at(11)));
    }

    #[test]
    fn attributed_usage_never_shrinks() {
        let mut attribution = Attribution::default();
        let some = attribution.of_worker(&[row(None, 5)], used(100, 2));
        assert_eq!(attribution.so_far(&some, used(100, 2)), some);
        assert_eq!(attribution.so_far(&FunctionTotals::default(), used(100, 2)), some);
    }
}
