//! Tests of bills by function: the functions' lines are a part of their leases' bill.

use crate::fixture::{START_MS, TENANT, TestStore, ended, functions, lease, limits, report, row, stores, used};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse, sum};
use hotlease_store::{BillGrouping, BillLine, BillQuery, LeaseRecord, LedgerRow, Limits, PERIOD_MS};
use hotlease_wire::ids::CodeHash;
use hotlease_wire::session::UsageTotals;

const LATER_MS: u64 = START_MS + 100_000;

fn id(name: &str) -> FunctionId {
    FunctionId::new(CodeHash([9; 32]), name)
}

fn bill(scene: &TestStore, query: BillQuery) -> Vec<BillLine> {
    scene.store.bill(&query).expect("a bill").lines
}

/// Returns the bill by function; checks that its lines add up to the bill by tenant.
fn by_function(scene: &TestStore, query: BillQuery) -> Vec<BillLine> {
    let by = |by| bill(scene, BillQuery { by, ..query.clone() });
    let all = |lines: &[BillLine]| {
        lines
            .iter()
            .fold(UsageTotals::default(), |all, line| sum(all, line.usage))
    };
    let (functions, tenants) = (by(BillGrouping::Function), by(BillGrouping::Tenant));
    assert_eq!(all(&functions), all(&tenants), "{}: {functions:?}", scene.name);
    functions
}

fn named(lines: &[BillLine]) -> FunctionTotals {
    let named = lines
        .iter()
        .filter_map(|line| Some((line.function.clone()?, line.usage.into())));
    named.collect()
}

#[test]
fn reports_in_any_order_and_any_number_bill_functions_once() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        for total in [3, 9, 1, 9, 4] {
            let report = report(LATER_MS, vec![], vec![row(key, total, total == 9)]);
            scene.store.report(report).unwrap();
        }
        let lines = by_function(&scene, BillQuery::default());
        assert_eq!(named(&lines), functions(9), "{}", scene.name);
        assert_eq!(lines.len(), 3, "{}: two functions and the rest: {lines:?}", scene.name);
        let rest = lines.iter().find(|line| line.function.is_none()).expect("the rest");
        assert_eq!(
            rest.usage,
            UsageTotals {
                compute_ns: 9_000,
                invocations: 0,
                ..used(9)
            },
            "{}",
            scene.name
        );
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn a_report_without_functions_takes_none_away() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let without = |total| LedgerRow {
            functions: FunctionTotals::default(),
            ..row(key, total, false)
        };
        for told in [without(1), row(key, 5, false), without(8)] {
            scene.store.report(report(LATER_MS, vec![], vec![told])).unwrap();
        }
        let lines = by_function(&scene, BillQuery::default());
        assert_eq!(named(&lines), functions(5), "{}", scene.name);
        assert_eq!(scene.store.functions(&[key]).unwrap(), [functions(5)], "{}", scene.name);
    }
}

#[test]
fn functions_are_billed_no_more_than_their_lease() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let most = FunctionUse {
            compute_ns: u64::MAX,
            invocations: u64::MAX,
        };
        for name in ["f", "g", "h"] {
            let greedy = LedgerRow {
                functions: [(id(name), most)].into_iter().collect(),
                ..row(key, 7, false)
            };
            scene.store.report(report(LATER_MS, vec![], vec![greedy])).unwrap();
        }
        let lines = by_function(&scene, BillQuery::default());
        assert_eq!(named(&lines).sum(), used(7).into(), "{}: {lines:?}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn functions_are_filtered_by_tenant_job_and_time() {
    let hour = |number: u64| START_MS / PERIOD_MS * PERIOD_MS + number * PERIOD_MS;
    for scene in stores(Limits::MEMORY) {
        for (number, tenant, job) in [(1, TENANT, "a"), (2, TENANT, "b"), (3, "uid:2", "a")] {
            let granted = LeaseRecord {
                tenant: tenant.into(),
                job: job.into(),
                ..lease(number, 1)
            };
            scene.store.open_lease(granted.clone(), START_MS).unwrap();
            for (at, total) in [(1, 10), (2, 30)] {
                let told = LedgerRow {
                    tenant: tenant.into(),
                    ..row(granted.key(), total, false)
                };
                let report = report(hour(at) + 1, vec![], vec![told]);
                scene.store.report(report).unwrap();
            }
        }
        let only = |tenant: Option<&str>, job: Option<&str>, since_ms| {
            let query = BillQuery {
                tenant: tenant.map(Into::into),
                job: job.map(Into::into),
                since_ms,
                ..BillQuery::default()
            };
            let lines = by_function(&scene, query);
            assert!(lines.iter().all(|line| line.job.is_empty()));
            let f = lines.iter().filter(|line| line.function == Some(id("f")));
            f.map(|line| (line.leases, line.usage.compute_ns)).collect::<Vec<_>>()
        };
        assert_eq!(only(None, None, None), [(2, 360_000), (1, 180_000)], "{}", scene.name);
        assert_eq!(only(Some(TENANT), Some("b"), None), [(1, 180_000)], "{}", scene.name);
        assert_eq!(
            only(Some("uid:2"), None, Some(hour(2))),
            [(1, 120_000)],
            "{}",
            scene.name
        );
        assert_eq!(only(Some("uid:3"), None, None), [], "{}", scene.name);
    }
}

/// At the edge of a time range, a function's usage may have been reported later than its lease's usage.
#[test]
fn late_function_usage_is_not_billed_twice() {
    let hour = |number: u64| START_MS / PERIOD_MS * PERIOD_MS + number * PERIOD_MS;
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let early = LedgerRow {
            functions: FunctionTotals::default(),
            ..row(key, 10, false)
        };
        scene.store.report(report(hour(1) + 1, vec![], vec![early])).unwrap();
        scene
            .store
            .report(report(hour(2) + 1, vec![], vec![row(key, 12, false)]))
            .unwrap();
        for (since_ms, until_ms) in [(None, Some(hour(2))), (Some(hour(2)), None), (Some(0), None)] {
            by_function(
                &scene,
                BillQuery {
                    since_ms,
                    until_ms,
                    ..BillQuery::default()
                },
            );
        }
    }
}

#[test]
fn functions_of_a_folded_row_are_the_tenants_own() {
    for scene in stores(limits()) {
        for number in 1..=10 {
            let told = vec![row(lease(number, 1).key(), 1, true)];
            scene.store.open_lease(lease(number, 1), START_MS).unwrap();
            let report = report(LATER_MS, vec![ended(lease(number, 1))], told);
            scene.store.report(report).unwrap();
        }
        let lines = by_function(&scene, BillQuery::default());
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.function.is_some())
                .map(|line| line.leases)
                .max(),
            Some(8)
        );
        let folded = scene.store.functions(&[lease(1, 1).key()]).unwrap();
        assert!(folded[0].is_empty(), "{}: {folded:?}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}
