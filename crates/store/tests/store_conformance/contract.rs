//! Tests of each single promise of a store.

use crate::fixture::{START_MS, TENANT, agent, ended, lease, limits, report, row, stores, used};
use hotlease_store::{
    BillGrouping, BillQuery, LeaseRecord, LeaseState, LedgerRow, Limits, PERIOD_MS, ReportRecord, StoreError,
};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeSet;

/// Time late enough that no account limits the usage of these tests.
const LATER_MS: u64 = START_MS + 100_000;

#[test]
fn reports_in_any_order_and_any_number_bill_once() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        for total in [3, 9, 1, 9, 4] {
            let report = report(LATER_MS, vec![], vec![row(key, total, total == 9)]);
            scene.store.report(report).unwrap();
        }
        assert_eq!(scene.invocations(TENANT), 9, "{}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn each_counter_is_merged_by_itself() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let total = |allocated_ns, hot_ns, compute_ns, invocations| LedgerRow {
            usage: UsageTotals {
                allocated_ns,
                hot_ns,
                compute_ns,
                invocations,
            },
            ..row(key, 0, false)
        };
        let usage = vec![total(5, 1, 9, 2), total(4, 3, 9, 1)];
        scene.store.report(report(LATER_MS, vec![], usage)).unwrap();
        let merged = scene.store.rows(&[key]).unwrap()[0].clone().expect("there");
        assert_eq!(merged.usage, total(5, 3, 9, 2).usage, "{}", scene.name);
    }
}

#[test]
fn the_same_lease_of_another_boot_is_billed_besides() {
    for scene in stores(limits()) {
        let rows = vec![row(lease(1, 1).key(), 10, false), row(lease(1, 2).key(), 5, false)];
        scene.store.report(report(LATER_MS, vec![], rows)).unwrap();
        assert_eq!(scene.invocations(TENANT), 15, "{}", scene.name);
    }
}

#[test]
fn an_agent_bills_no_more_than_its_lease_could_use() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let greedy = LedgerRow {
            usage: UsageTotals {
                allocated_ns: u64::MAX,
                hot_ns: u64::MAX,
                compute_ns: u64::MAX,
                invocations: 1,
            },
            ..row(key, 0, false)
        };
        let at = START_MS + 10_000;
        let told = scene.store.report(report(at, vec![], vec![greedy.clone()])).unwrap();
        assert_eq!(told.capped, [key], "{}", scene.name);
        let kept = scene.store.rows(&[key]).unwrap()[0].clone().expect("there").usage;
        // Two slots for ten seconds, plus a thousandth as tolerance for the clocks, plus a millisecond.
        let most = 2 * 10_012_000_000;
        assert!(
            kept.allocated_ns <= most && kept.hot_ns + kept.compute_ns <= most,
            "{}: {kept:?}",
            scene.name
        );
        // More time after the lease's end does not raise the limit.
        let last = vec![LedgerRow {
            settled: true,
            ..greedy.clone()
        }];
        scene.store.report(report(at, vec![ended(lease(1, 1))], last)).unwrap();
        let much_later = report(at + 10_000_000, vec![], vec![greedy]);
        scene.store.report(much_later).unwrap();
        let after = scene.store.rows(&[key]).unwrap()[0].clone().expect("there").usage;
        assert!(after.allocated_ns <= most, "{}: {after:?}", scene.name);
        scene.assert_sound(at);
    }
}

#[test]
fn usage_belongs_to_the_period_in_which_it_was_reported() {
    let hour = |number: u64| START_MS / PERIOD_MS * PERIOD_MS + number * PERIOD_MS;
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        for (number, total) in [(1, 10), (2, 30), (4, 100)] {
            let report = report(hour(number) + 1, vec![], vec![row(key, total, false)]);
            scene.store.report(report).unwrap();
        }
        let within = |since_ms, until_ms| {
            let query = BillQuery {
                since_ms,
                until_ms,
                ..BillQuery::default()
            };
            let bill = scene.store.bill(&query).unwrap();
            bill.lines.iter().map(|line| line.usage.invocations).sum::<u64>()
        };
        let all = [
            within(None, Some(hour(2))),
            within(Some(hour(2)), Some(hour(3))),
            within(Some(hour(3)), Some(hour(4))),
            within(Some(hour(4)), None),
        ];
        assert_eq!(all, [10, 20, 0, 70], "{}", scene.name);
        assert_eq!(within(Some(0), None), 100, "{}", scene.name);
        scene.assert_sound(hour(5));
    }
}

#[test]
fn a_bill_is_grouped_and_filtered() {
    for scene in stores(Limits::MEMORY) {
        for (number, tenant, job) in [
            (1, "uid:1", "a"),
            (2, "uid:1", "b"),
            (3, "uid:1", "b"),
            (4, "uid:2", "a"),
        ] {
            let granted = LeaseRecord {
                tenant: tenant.into(),
                job: job.into(),
                ..lease(number, 1)
            };
            let told = LedgerRow {
                tenant: tenant.into(),
                ..row(granted.key(), 10, false)
            };
            scene.store.open_lease(granted, START_MS).unwrap();
            scene.store.report(report(LATER_MS, vec![], vec![told])).unwrap();
        }
        let lines = |by, tenant: Option<&str>, job: Option<&str>| {
            let query = BillQuery {
                tenant: tenant.map(Into::into),
                job: job.map(Into::into),
                by,
                ..BillQuery::default()
            };
            let bill = scene.store.bill(&query).unwrap();
            let shown = bill.lines.into_iter();
            shown
                .map(|line| (line.tenant, line.job, line.leases, line.usage.invocations))
                .collect::<Vec<_>>()
        };
        let line = |tenant: &str, job: &str, leases, invocations| (tenant.into(), job.into(), leases, invocations);
        assert_eq!(
            lines(BillGrouping::Tenant, None, None),
            [line("uid:1", "", 3, 30), line("uid:2", "", 1, 10)]
        );
        assert_eq!(
            lines(BillGrouping::Job, Some("uid:1"), None),
            [line("uid:1", "a", 1, 10), line("uid:1", "b", 2, 20)]
        );
        assert_eq!(lines(BillGrouping::Lease, None, Some("b")).len(), 2);
        assert!(lines(BillGrouping::Tenant, Some("uid:3"), None).is_empty());
    }
}

#[test]
fn memory_is_billed_as_long_as_it_is_held() {
    for scene in stores(limits()) {
        let key = lease(1, 1).key();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        // Two slots for ten seconds: a GiB is held for ten seconds.
        let told = LedgerRow {
            usage: UsageTotals {
                allocated_ns: 20_000_000_000,
                ..Default::default()
            },
            ..row(key, 0, true)
        };
        scene.store.report(report(LATER_MS, vec![], vec![told])).unwrap();
        let bill = scene.store.bill(&BillQuery::default()).unwrap();
        assert_eq!(bill.lines[0].memory_mib_ms, 1024 * 10_000, "{}", scene.name);
    }
}

#[test]
fn a_lease_that_was_spread_over_more_cores_is_billed_what_it_computed_there() {
    for scene in stores(limits()) {
        let granted = LeaseRecord {
            slots: 1,
            busy_slots: 2,
            ..lease(1, 1)
        };
        let key = granted.key();
        scene.store.open_lease(granted, START_MS).unwrap();
        // Allocated: the one core of the grant, for ten seconds. The lease's memory is held for the same time.
        let usage = UsageTotals {
            allocated_ns: 10_000_000_000,
            compute_ns: 15_000_000_000,
            ..Default::default()
        };
        let told = LedgerRow {
            usage,
            ..row(key, 0, true)
        };
        scene.store.report(report(LATER_MS, vec![], vec![told])).unwrap();
        let bill = scene.store.bill(&BillQuery::default()).unwrap();
        let line = &bill.lines[0];
        assert_eq!(
            (line.usage, line.memory_mib_ms),
            (usage, 1024 * 10_000),
            "{}",
            scene.name
        );
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn a_full_ledger_folds_what_is_settled_and_no_bill_changes() {
    for scene in stores(limits()) {
        for number in 0..100 {
            let told = vec![row(lease(number, 1).key(), 3, true)];
            scene.store.report(report(LATER_MS, vec![], told)).unwrap();
            assert_eq!(scene.invocations(TENANT), 3 * (u64::from(number) + 1), "{}", scene.name);
        }
        let audit = scene.store.audit(LATER_MS).unwrap();
        assert_eq!(audit.rows, 8, "{}", scene.name);
        // A repeated final report of a lease that just ended still finds its row.
        let again = vec![row(lease(99, 1).key(), 3, true)];
        scene.store.report(report(LATER_MS, vec![], again)).unwrap();
        assert_eq!(scene.invocations(TENANT), 300, "{}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn live_rows_are_never_folded_and_a_refused_report_changes_nothing() {
    for scene in stores(limits()) {
        let rows = (0..8).map(|number| row(lease(number, 1).key(), 1, false));
        scene.store.report(report(LATER_MS, vec![], rows.collect())).unwrap();
        let more = vec![row(lease(0, 1).key(), 50, false), row(lease(8, 1).key(), 1, false)];
        let refused = scene.store.report(report(LATER_MS, vec![], more.clone()));
        assert!(
            matches!(refused, Err(StoreError::Full { limit: 8, .. })),
            "{}: {refused:?}",
            scene.name
        );
        assert_eq!(
            scene.invocations(TENANT),
            8,
            "{}: the refused report left a trace",
            scene.name
        );
        scene.store.remove_agent(AgentId([1; 8]), LATER_MS).unwrap();
        scene.store.report(report(LATER_MS, vec![], more)).unwrap();
        assert_eq!(scene.invocations(TENANT), 58, "{}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn no_report_takes_a_row_from_its_tenant_and_all_others_of_the_report_count() {
    for scene in stores(limits()) {
        for number in [1, 2] {
            scene.store.open_lease(lease(number, 1), START_MS).unwrap();
        }
        let (stolen, other) = (lease(1, 1).key(), lease(2, 1).key());
        let told = LedgerRow {
            tenant: "uid:2".into(),
            ..row(stolen, 2, false)
        };
        let reported = scene
            .store
            .report(report(LATER_MS, vec![], vec![told, row(other, 3, false)]));
        assert_eq!(reported.unwrap().foreign, [stolen], "{}", scene.name);
        assert_eq!(scene.invocations("uid:2"), 0, "{}", scene.name);
        assert_eq!(scene.invocations(TENANT), 5, "{}", scene.name);
        scene.assert_sound(LATER_MS);
    }
}

#[test]
fn folded_totals_are_bounded() {
    for scene in stores(limits()) {
        let refused = (0..30).find(|number| {
            let told = LedgerRow {
                tenant: format!("uid:{number}"),
                ..row(lease(*number, 1).key(), 1, true)
            };
            scene.store.report(report(LATER_MS, vec![], vec![told])).is_err()
        });
        // Eight rows and three totals.
        assert_eq!(refused, Some(11), "{}", scene.name);
    }
}

#[test]
fn an_ended_lease_stays_ended() {
    for scene in stores(limits()) {
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        let over = report(LATER_MS, vec![ended(lease(1, 1))], vec![]);
        scene.store.report(over).unwrap();
        // A report that arrives after the end, although it was sent before the end.
        scene.store.report(report(LATER_MS, vec![lease(1, 1)], vec![])).unwrap();
        assert_eq!(scene.state(1), Some(ended(lease(1, 1)).state), "{}", scene.name);
        assert_eq!(scene.store.active_leases().unwrap(), 0, "{}", scene.name);
    }
}

#[test]
fn leases_die_with_the_boot_that_granted_them() {
    for scene in stores(limits()) {
        let active = |number| scene.state(number) == Some(LeaseState::Active);
        scene.store.put_agent(agent(1, 1), START_MS).unwrap();
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        scene.store.put_agent(agent(1, 1), LATER_MS).unwrap(); // the manager was started again
        assert!(active(1), "{}", scene.name);
        scene.store.put_agent(agent(1, 2), LATER_MS).unwrap();
        assert!(!active(1), "{}: the agent was started again", scene.name);
        // Usage that the run had not reported in time is still billed.
        let late = vec![row(lease(1, 1).key(), 7, true)];
        scene.store.report(report(LATER_MS + 5_000, vec![], late)).unwrap();
        assert_eq!(scene.invocations(TENANT), 7, "{}", scene.name);
        scene.store.open_lease(lease(2, 2), LATER_MS).unwrap();
        scene.store.remove_agent(AgentId([1; 8]), LATER_MS).unwrap();
        assert!(!active(2), "{}: the agent is gone", scene.name);
        assert!(scene.store.agents().unwrap().is_empty(), "{}", scene.name);
        scene.assert_sound(LATER_MS + 5_000);
    }
}

#[test]
fn a_lease_that_is_named_no_more_ends_at_the_second_report() {
    for scene in stores(limits()) {
        scene.store.open_lease(lease(1, 1), START_MS).unwrap();
        scene.store.open_lease(lease(2, 1), START_MS).unwrap();
        let whole = |missing_before: BTreeSet<LeaseId>| ReportRecord {
            missing_before: Some(missing_before),
            ..report(LATER_MS, vec![lease(2, 1)], vec![row(lease(2, 1).key(), 1, false)])
        };
        let missing = scene.store.report(whole(BTreeSet::new())).unwrap().missing;
        assert_eq!(missing, BTreeSet::from([LeaseId([1; 8])]), "{}", scene.name);
        assert_eq!(scene.state(1), Some(LeaseState::Active), "{}", scene.name);
        assert!(
            scene.store.report(whole(missing)).unwrap().missing.is_empty(),
            "{}",
            scene.name
        );
        assert_ne!(scene.state(1), Some(LeaseState::Active), "{}", scene.name);
        let settled = scene.store.rows(&[lease(1, 1).key()]).unwrap()[0].clone();
        assert!(settled.is_some_and(|row| row.settled), "{}", scene.name);
        // A lease of another run of the agent is not affected.
        scene.store.open_lease(lease(3, 9), LATER_MS).unwrap();
        assert!(scene.store.report(whole(BTreeSet::from([LeaseId([3; 8])]))).is_ok());
        assert_eq!(scene.state(3), Some(LeaseState::Active), "{}", scene.name);
    }
}

#[test]
fn every_table_is_bounded() {
    for scene in stores(limits()) {
        for number in 1..=3 {
            scene.store.put_agent(agent(number, 1), START_MS).unwrap();
        }
        let fourth = scene.store.put_agent(agent(4, 1), START_MS);
        assert!(
            matches!(fourth, Err(StoreError::Full { limit: 3, .. })),
            "{}: {fourth:?}",
            scene.name
        );
        scene.store.put_agent(agent(2, 5), START_MS).unwrap();
        for number in 1..=4 {
            scene.store.open_lease(lease(number, 1), START_MS).unwrap();
        }
        let fifth = scene.store.open_lease(lease(5, 1), START_MS);
        assert!(
            matches!(fifth, Err(StoreError::Full { limit: 4, .. })),
            "{}: {fifth:?}",
            scene.name
        );
        for number in 10..200 {
            let over = report(LATER_MS, vec![ended(lease(number, 1))], vec![]);
            scene.store.report(over).unwrap();
        }
        let kept: Vec<u8> = scene
            .store
            .leases(None)
            .unwrap()
            .iter()
            .map(|lease| lease.id.0[0])
            .collect();
        assert_eq!(
            kept,
            [1, 2, 3, 4, 197, 198, 199],
            "{}: running ones and the last three ended ones",
            scene.name
        );
    }
}

#[test]
fn records_come_back_as_they_went_in() {
    for scene in stores(limits()) {
        scene.store.put_agent(agent(2, 1), START_MS).unwrap();
        assert_eq!(scene.store.agents().unwrap(), [agent(2, 1)], "{}", scene.name);
        let odd = LeaseRecord {
            label: "it's \"odd\"; DROP TABLE leases --".into(),
            job: "grüße".into(),
            cores: vec![],
            ..lease(1, 1)
        };
        scene.store.open_lease(odd.clone(), START_MS).unwrap();
        assert_eq!(scene.store.lease(odd.id).unwrap(), Some(odd.clone()), "{}", scene.name);
        assert_eq!(
            scene.store.leases(Some(TENANT)).unwrap(),
            std::slice::from_ref(&odd),
            "{}",
            scene.name
        );
        assert!(scene.store.leases(Some("uid:3")).unwrap().is_empty(), "{}", scene.name);
        let row = scene.store.rows(&[odd.key()]).unwrap()[0].clone().expect("opened");
        assert_eq!((row.label, row.job), (odd.label, odd.job), "{}", scene.name);
        assert_eq!(scene.store.latest_ms().unwrap(), START_MS, "{}", scene.name);
    }
}

#[test]
fn a_report_before_the_grant_was_noted_loses_nothing() {
    for scene in stores(limits()) {
        let early = report(START_MS + 10, vec![lease(1, 1)], vec![row(lease(1, 1).key(), 2, false)]);
        scene.store.report(early).unwrap();
        let noted = LeaseRecord {
            job: "the manager's".into(),
            ..lease(1, 1)
        };
        scene.store.open_lease(noted.clone(), START_MS + 10).unwrap();
        assert_eq!(scene.store.lease(noted.id).unwrap(), Some(noted), "{}", scene.name);
        assert_eq!(scene.invocations(TENANT), 2, "{}", scene.name);
        assert_eq!(scene.store.active_leases().unwrap(), 1, "{}", scene.name);
        scene.assert_sound(START_MS + 10);
    }
}

#[test]
fn boots_are_told_apart_in_the_rows_that_are_asked_for() {
    for scene in stores(limits()) {
        let (one, other) = (lease(1, 1).key(), lease(1, 2).key());
        scene
            .store
            .report(report(LATER_MS, vec![], vec![row(one, 4, false)]))
            .unwrap();
        let rows = scene.store.rows(&[other, one]).unwrap();
        assert!(rows[0].is_none(), "{}", scene.name);
        assert_eq!(rows[1].as_ref().map(|row| row.usage), Some(used(4)), "{}", scene.name);
        assert_eq!(rows[1].as_ref().map(|row| row.key.boot), Some(BootId([1; 8])));
    }
}
