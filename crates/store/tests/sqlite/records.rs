//! Records for tests of database stores.

use hotlease_store::{BillQuery, LeaseRecord, LeaseState, LedgerRow, ReportRecord, RowKey, Store};
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;

pub(crate) const START_MS: u64 = 1_700_000_000_000;

pub(crate) fn lease(number: u64) -> LeaseRecord {
    LeaseRecord {
        id: LeaseId(number.to_be_bytes()),
        agent: AgentId([1; 8]),
        boot: BootId([1; 8]),
        tenant: "uid:1".into(),
        label: "label".into(),
        job: "job".into(),
        epoch: Epoch(1),
        cores: vec![0],
        slots: 1,
        busy_slots: 1,
        memory_bytes: 0,
        gpus: 0,
        granted_ms: START_MS,
        state: LeaseState::Active,
    }
}

pub(crate) fn key(number: u64) -> RowKey {
    lease(number).key()
}

pub(crate) fn report(usage: Vec<LedgerRow>) -> ReportRecord {
    ReportRecord {
        agent: AgentId([1; 8]),
        boot: BootId([1; 8]),
        at_ms: START_MS + 3_600_000,
        leases: vec![],
        usage,
        missing_before: None,
    }
}

pub(crate) fn row(number: u64, invocations: u64) -> LedgerRow {
    LedgerRow {
        key: key(number),
        tenant: "uid:1".into(),
        usage: UsageTotals {
            allocated_ns: invocations,
            invocations,
            ..UsageTotals::default()
        },
        functions: Default::default(),
        settled: false,
    }
}

/// Notes a grant, and a report with some usage of the lease.
pub(crate) fn use_lease(store: &dyn Store, number: u64, invocations: u64) {
    store.open_lease(lease(number), START_MS).expect("room");
    store.report(report(vec![row(number, invocations)])).expect("taken");
}

pub(crate) fn invocations(store: &dyn Store) -> u64 {
    let bill = store.bill(&BillQuery::default()).expect("a bill");
    bill.lines.iter().map(|line| line.usage.invocations).sum()
}
