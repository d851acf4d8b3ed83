//! The ledger in memory: merging by max, and folding of old rows so that it stays bounded.
//!
//! ```text
//! report ──merge by max──▶ row (live) ──lease over──▶ row (settled) ──oldest, when full──▶ tenant's bill
//! ```
//!
//! A folded row's key is forgotten, so a report that comes after the fold would bill twice. Folding
//! therefore takes only settled rows, in the order in which they were settled: an agent would have to
//! repeat a final report after as many other leases have ended as the ledger has rows. Agents repeat
//! those for seconds, and a ledger has tens of thousands of rows.

use crate::{LedgerRow, RowKey, StoreError};
use hotlease_wire::ids::{AgentId, BootId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, VecDeque};

struct Row {
    tenant: String,
    usage: UsageTotals,
    settled: bool,
}

/// See the module.
pub(crate) struct Ledger {
    rows: BTreeMap<RowKey, Row>,
    /// Settled rows, the longest settled first. Every settled row stands here exactly once.
    settled: VecDeque<RowKey>,
    /// Folded rows, by tenant.
    bills: BTreeMap<String, UsageTotals>,
    rows_max: usize,
    tenants_max: usize,
}

impl Ledger {
    pub(crate) fn new(rows_max: usize, tenants_max: usize) -> Self {
        Self {
            rows: BTreeMap::new(),
            settled: VecDeque::new(),
            bills: BTreeMap::new(),
            rows_max,
            tenants_max,
        }
    }

    /// All of `rows` or, on an error, none of them.
    pub(crate) fn merge(&mut self, rows: &[LedgerRow]) -> Result<(), StoreError> {
        self.check(rows)?;
        for row in rows {
            let entry = self.rows.entry(row.key).or_insert_with(|| Row {
                tenant: row.tenant.clone(),
                usage: UsageTotals::default(),
                settled: false,
            });
            entry.usage = larger(entry.usage, row.usage);
            if row.settled && !entry.settled {
                entry.settled = true;
                self.settled.push_back(row.key);
            }
        }
        while self.rows.len() > self.rows_max {
            self.fold_oldest();
        }
        Ok(())
    }

    /// Whether `rows` can be merged, and the ledger brought back under its bounds afterwards.
    fn check(&self, rows: &[LedgerRow]) -> Result<(), StoreError> {
        // What these rows add, counted on the side: a report may name a row twice.
        let mut added: BTreeMap<RowKey, (&str, bool)> = BTreeMap::new();
        let mut newly_settled = 0;
        for row in rows {
            let changed = StoreError::TenantChanged {
                agent: row.key.agent,
                boot: row.key.boot,
                lease: row.key.lease,
            };
            let known = self.rows.get(&row.key);
            let (tenant, settled) = added.entry(row.key).or_insert_with(|| match known {
                Some(known) => (known.tenant.as_str(), known.settled),
                None => (row.tenant.as_str(), false),
            });
            if *tenant != row.tenant {
                return Err(changed);
            }
            if row.settled && !*settled {
                *settled = true;
                newly_settled += 1;
            }
        }
        let fresh = added.keys().filter(|key| !self.rows.contains_key(key)).count();
        let excess = (self.rows.len() + fresh).saturating_sub(self.rows_max);
        if excess > self.settled.len() + newly_settled {
            return Err(StoreError::Full {
                what: "ledger rows of running leases",
                limit: self.rows_max,
            });
        }
        // Folding makes at most one bill for each tenant that has a row.
        let fresh_tenants = added
            .values()
            .map(|(tenant, _)| *tenant)
            .chain(
                self.rows
                    .values()
                    .map(|row| row.tenant.as_str())
                    .filter(|_| excess > 0),
            )
            .filter(|tenant| !self.bills.contains_key(*tenant))
            .collect::<std::collections::BTreeSet<_>>()
            .len();
        if excess > 0 && self.bills.len() + fresh_tenants > self.tenants_max {
            return Err(StoreError::Full {
                what: "tenants' bills",
                limit: self.tenants_max,
            });
        }
        Ok(())
    }

    fn fold_oldest(&mut self) {
        let Some(key) = self.settled.pop_front() else {
            return;
        };
        if let Some(row) = self.rows.remove(&key) {
            let bill = self.bills.entry(row.tenant).or_default();
            *bill = sum(*bill, row.usage);
        }
    }

    /// Rows of `agent` that no report will follow: all but those of its present boot.
    pub(crate) fn settle_agent(&mut self, agent: AgentId, present: Option<BootId>) {
        for (key, row) in &mut self.rows {
            if key.agent == agent && Some(key.boot) != present && !row.settled {
                row.settled = true;
                self.settled.push_back(*key);
            }
        }
    }

    pub(crate) fn usage(&self, key: RowKey) -> Option<UsageTotals> {
        self.rows.get(&key).map(|row| row.usage)
    }

    pub(crate) fn bill(&self, tenant: &str) -> UsageTotals {
        let folded = self.bills.get(tenant).copied().unwrap_or_default();
        self.rows
            .values()
            .filter(|row| row.tenant == tenant)
            .fold(folded, |bill, row| sum(bill, row.usage))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.rows.len()
    }
}

/// Counter by counter: each is monotonic on its own, so an older report never lowers one.
fn larger(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    UsageTotals {
        allocated_ns: one.allocated_ns.max(other.allocated_ns),
        hot_ns: one.hot_ns.max(other.hot_ns),
        compute_ns: one.compute_ns.max(other.compute_ns),
        invocations: one.invocations.max(other.invocations),
    }
}

/// Saturating: an agent that reports nonsense near the type's end spoils its own bill, not the process.
fn sum(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    UsageTotals {
        allocated_ns: one.allocated_ns.saturating_add(other.allocated_ns),
        hot_ns: one.hot_ns.saturating_add(other.hot_ns),
        compute_ns: one.compute_ns.saturating_add(other.compute_ns),
        invocations: one.invocations.saturating_add(other.invocations),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::ids::LeaseId;

    fn key(boot: u8, lease: u16) -> RowKey {
        let [high, low] = lease.to_be_bytes();
        RowKey {
            agent: AgentId([1; 8]),
            boot: BootId([boot; 8]),
            lease: LeaseId([0, 0, 0, 0, 0, 0, high, low]),
        }
    }

    fn row(boot: u8, lease: u16, invocations: u64, settled: bool) -> LedgerRow {
        LedgerRow {
            key: key(boot, lease),
            tenant: "uid:1".into(),
            usage: UsageTotals {
                allocated_ns: invocations * 1000,
                hot_ns: invocations * 10,
                compute_ns: invocations * 100,
                invocations,
            },
            settled,
        }
    }

    #[test]
    fn reports_in_any_order_and_any_number_bill_once() {
        let reports: Vec<_> = (1..=6).map(|n| row(1, 7, n * n, n == 6)).collect();
        // All orders of six reports, each sent twice: the bill is always the last total.
        let mut order: Vec<usize> = (0..reports.len()).collect();
        permute(&mut order, 0, &mut |order| {
            let mut ledger = Ledger::new(16, 16);
            for index in order.iter().chain(order) {
                ledger.merge(std::slice::from_ref(&reports[*index])).unwrap();
            }
            assert_eq!(ledger.bill("uid:1"), reports[5].usage, "order {order:?}");
        });
    }

    fn permute(order: &mut Vec<usize>, from: usize, visit: &mut impl FnMut(&[usize])) {
        if from == order.len() {
            return visit(order);
        }
        for index in from..order.len() {
            order.swap(from, index);
            permute(order, from + 1, visit);
            order.swap(from, index);
        }
    }

    #[test]
    fn each_counter_is_merged_by_itself() {
        let mut ledger = Ledger::new(16, 16);
        let mut first = row(1, 1, 0, false);
        first.usage = UsageTotals {
            allocated_ns: 5,
            hot_ns: 1,
            compute_ns: 9,
            invocations: 2,
        };
        let mut second = first.clone();
        second.usage = UsageTotals {
            allocated_ns: 4,
            hot_ns: 3,
            compute_ns: 9,
            invocations: 1,
        };
        ledger.merge(&[first, second]).unwrap();
        let merged = UsageTotals {
            allocated_ns: 5,
            hot_ns: 3,
            compute_ns: 9,
            invocations: 2,
        };
        assert_eq!(ledger.bill("uid:1"), merged);
    }

    #[test]
    fn the_same_lease_of_another_boot_is_billed_besides() {
        let mut ledger = Ledger::new(16, 16);
        ledger
            .merge(&[row(1, 1, 10, false), row(2, 1, 5, false)])
            .unwrap();
        assert_eq!(ledger.bill("uid:1").invocations, 15);
    }

    #[test]
    fn a_full_ledger_folds_what_is_settled_and_no_bill_changes() {
        let mut ledger = Ledger::new(8, 4);
        for lease in 0..100 {
            ledger.merge(&[row(1, lease, 3, true)]).unwrap();
            assert!(ledger.len() <= 8, "{} rows are over the bound", ledger.len());
            assert_eq!(ledger.bill("uid:1").invocations, 3 * (u64::from(lease) + 1));
        }
        // A repeated final report of a lease that ended just now still finds its row.
        ledger.merge(&[row(1, 99, 3, true)]).unwrap();
        assert_eq!(ledger.bill("uid:1").invocations, 300);
    }

    #[test]
    fn live_rows_are_never_folded_and_a_refused_report_changes_nothing() {
        let mut ledger = Ledger::new(4, 4);
        for lease in 0..4 {
            ledger.merge(&[row(1, lease, 1, false)]).unwrap();
        }
        let more = [row(1, 0, 50, false), row(1, 4, 1, false)];
        assert!(matches!(
            ledger.merge(&more),
            Err(StoreError::Full { limit: 4, .. })
        ));
        assert_eq!(
            ledger.bill("uid:1").invocations,
            4,
            "the refused report left a trace"
        );
        ledger.settle_agent(AgentId([1; 8]), None);
        ledger.merge(&more).unwrap();
        assert_eq!(ledger.bill("uid:1").invocations, 54);
    }

    #[test]
    fn one_large_report_of_ended_leases_fits_any_ledger() {
        let mut ledger = Ledger::new(4, 4);
        let report: Vec<_> = (0..1000).map(|lease| row(1, lease, 1, true)).collect();
        ledger.merge(&report).unwrap();
        assert_eq!(ledger.len(), 4);
        assert_eq!(ledger.bill("uid:1").invocations, 1000);
    }

    #[test]
    fn a_row_cannot_move_to_another_tenant() {
        let mut ledger = Ledger::new(4, 4);
        ledger.merge(&[row(1, 1, 1, false)]).unwrap();
        let stolen = LedgerRow {
            tenant: "uid:2".into(),
            ..row(1, 1, 2, false)
        };
        assert!(matches!(
            ledger.merge(&[stolen]),
            Err(StoreError::TenantChanged { .. })
        ));
        assert_eq!(ledger.bill("uid:2"), UsageTotals::default());
    }

    #[test]
    fn tenants_are_bounded() {
        let mut ledger = Ledger::new(2, 3);
        let refused = (0..10).find(|n| {
            let row = LedgerRow {
                tenant: format!("uid:{n}"),
                ..row(1, *n, 1, true)
            };
            ledger.merge(&[row]).is_err()
        });
        assert!(
            refused.is_some(),
            "ten tenants fitted where three bills may be kept"
        );
        assert!(ledger.bills.len() <= 3);
    }
}
