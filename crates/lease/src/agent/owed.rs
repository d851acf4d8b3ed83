//! Final totals that no ledger has acknowledged yet.
//!
//! A total is owed from the end of its lease (or from the time at which it was read from a journal) until the latest
//! report with the total is acknowledged; the acknowledgement of an earlier report does not count. If a report or its
//! answer is lost, the totals are sent again; a ledger that merges by maximum bills them once.

use super::{EndedLease, QuestionId};
use crate::ledger::FunctionTotals;
use crate::manager::LeaseReport;
use hotlease_wire::ids::{BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeMap;

/// Largest number of totals in one report; the next reports contain the rest.
pub const REPORTED_AT_ONCE_MAX: usize = 1024;
/// Largest number of rows of functions in one report, not counting the rows of the report's last lease.
pub const FUNCTIONS_AT_ONCE_MAX: usize = 8192;

/// Cumulative usage of a lease that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalTotal {
    /// The run of the agent that granted the lease.
    pub boot: BootId,
    /// The lease.
    pub lease: LeaseId,
    /// Tenant that held the lease.
    pub tenant: String,
    /// The lease's label, shown in listings.
    pub label: String,
    /// The lease's epoch at its grant.
    pub epoch: Epoch,
    /// The cores that the lease held.
    pub cores: Vec<u32>,
    /// Why the lease ended, in words.
    pub why: String,
    /// Total usage of the lease.
    pub usage: UsageTotals,
    /// The part of the usage that each function has.
    pub functions: FunctionTotals,
}

impl FinalTotal {
    /// Total of a lease that ended in this run of the agent.
    pub fn of(ended: &EndedLease, boot: BootId) -> Self {
        Self {
            boot,
            lease: ended.id,
            tenant: ended.request.tenant.clone(),
            label: ended.request.label.clone(),
            epoch: ended.epoch,
            cores: ended.cores.clone(),
            why: ended.reason.to_string(),
            usage: ended.usage,
            functions: ended.functions.clone(),
        }
    }

    /// Entry of a report with this total.
    pub fn report(&self) -> LeaseReport {
        LeaseReport {
            lease: self.lease,
            boot: self.boot,
            tenant: self.tenant.clone(),
            label: self.label.clone(),
            epoch: self.epoch,
            gpus: 0,
            cores: self.cores.clone(),
            usage: self.usage,
            functions: self.functions.clone(),
            end_reason: Some(self.why.clone()),
        }
    }
}

#[derive(Debug)]
struct OwedTotal {
    total: FinalTotal,
    /// The latest report with the total.
    sent: Option<QuestionId>,
}

/// Final totals that no ledger has acknowledged yet.
///
/// At most `totals_max` totals are kept. When there are more, the total with the smallest key is dropped, and
/// [`owe`](Self::owe) returns it so that the caller can report the loss.
#[derive(Debug)]
pub struct OwedTotals {
    owed: BTreeMap<(BootId, LeaseId), OwedTotal>,
    totals_max: usize,
}

impl OwedTotals {
    /// Makes an empty set that keeps at most `totals_max` totals.
    pub fn new(totals_max: usize) -> Self {
        Self {
            owed: BTreeMap::new(),
            totals_max,
        }
    }

    /// Adds the total of a lease that has ended, or a total that an earlier run has left. Returns the total that was
    /// dropped to make room, if any.
    pub fn owe(&mut self, total: FinalTotal) -> Option<FinalTotal> {
        let key = (total.boot, total.lease);
        self.owed.insert(key, OwedTotal { total, sent: None });
        if self.owed.len() <= self.totals_max {
            return None;
        }
        self.owed.pop_first().map(|(_, owed)| owed.total)
    }

    /// Returns the totals for the report `ask`: at most [`REPORTED_AT_ONCE_MAX`] totals, and not many more than
    /// [`FUNCTIONS_AT_ONCE_MAX`] rows of functions. A total counts as sent in this report once the iterator has
    /// returned it.
    pub fn report(&mut self, ask: QuestionId) -> impl Iterator<Item = &FinalTotal> {
        let mut functions = 0;
        let fits = move |owed: &&mut OwedTotal| {
            let fits = functions < FUNCTIONS_AT_ONCE_MAX;
            functions += owed.total.functions.len();
            fits
        };
        self.owed
            .values_mut()
            .take(REPORTED_AT_ONCE_MAX)
            .take_while(fits)
            .map(move |owed| {
                owed.sent = Some(ask);
                &owed.total
            })
    }

    /// Totals that were in the report `ask`, and in no later report.
    pub fn sent_in(&self, ask: QuestionId) -> impl Iterator<Item = &FinalTotal> {
        let sent = self.owed.values().filter(move |owed| owed.sent == Some(ask));
        sent.map(|owed| &owed.total)
    }

    /// Forgets the totals of the report `ask`: they are durable at the manager.
    pub fn acknowledge(&mut self, ask: QuestionId) {
        self.owed.retain(|_, owed| owed.sent != Some(ask));
    }

    /// Number of owed totals.
    pub fn len(&self) -> usize {
        self.owed.len()
    }

    /// Whether no total is owed.
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(number: u8) -> FinalTotal {
        FinalTotal {
            boot: BootId([1; 8]),
            lease: LeaseId([number; 8]),
            tenant: "uid:1".into(),
            label: String::new(),
            epoch: Epoch(1),
            cores: vec![0],
            why: "released".into(),
            usage: UsageTotals::default(),
            functions: FunctionTotals::default(),
        }
    }

    #[test]
    fn only_the_report_that_carried_a_total_acknowledges_it() {
        let mut outstanding = OwedTotals::new(8);
        assert_eq!(outstanding.owe(total(1)), None);
        assert_eq!(outstanding.report(QuestionId(1)).count(), 1);
        assert_eq!(outstanding.owe(total(2)), None);
        assert_eq!(outstanding.report(QuestionId(2)).count(), 2, "the first is sent again");
        outstanding.acknowledge(QuestionId(1));
        assert_eq!(
            outstanding.len(),
            2,
            "a report that was given up on acknowledges nothing"
        );
        outstanding.owe(total(3));
        outstanding.acknowledge(QuestionId(2));
        assert_eq!(outstanding.report(QuestionId(3)).next(), Some(&total(3)));
    }

    #[test]
    fn the_table_of_totals_is_bounded_and_reports_each_total_that_it_drops() {
        let mut outstanding = OwedTotals::new(2);
        assert_eq!(outstanding.owe(total(1)), None);
        assert_eq!(outstanding.owe(total(2)), None);
        assert_eq!(outstanding.owe(total(3)), Some(total(1)));
        assert_eq!(outstanding.len(), 2);
    }
}
