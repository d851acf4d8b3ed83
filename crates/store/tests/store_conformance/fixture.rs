//! Stores to test, and records to put into them.

use crate::server::{self, Database};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_store::{
    AgentRecord, BillQuery, LeaseRecord, LeaseState, LedgerRow, Limits, MemoryStore, PostgresOptions, ReportRecord,
    RowKey, SqliteOptions, Store, open_postgres, open_sqlite,
};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use tempfile::TempDir;

pub(crate) const TENANT: &str = "uid:1";
/// Arbitrary moment.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// Store under test, with the directory or database that must outlive it.
pub(crate) struct TestStore {
    pub(crate) name: &'static str,
    pub(crate) store: Box<dyn Store>,
    _directory: Option<TempDir>,
    _database: Option<Database>,
}

pub(crate) fn limits() -> Limits {
    Limits {
        agents: 3,
        active_leases: 4,
        ended_leases: 3,
        ledger_rows: 8,
        tenants: 3,
        keys: 2,
    }
}

/// Stores that need no server. All have the same limits, and accept agents' reports of unknown leases.
pub(crate) fn local_stores(limits: Limits) -> Vec<TestStore> {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions {
        limits,
        adopt_unknown: true,
        ..SqliteOptions::default()
    };
    vec![
        TestStore {
            name: "memory",
            store: Box::new(MemoryStore::new(limits)),
            _directory: None,
            _database: None,
        },
        TestStore {
            name: "SQLite",
            store: Box::new(open_sqlite(&directory.path().join("state"), options).expect("opened")),
            _directory: Some(directory),
            _database: None,
        },
    ]
}

/// One store of each kind.
pub(crate) fn stores(limits: Limits) -> Vec<TestStore> {
    let mut scenes = local_stores(limits);
    if let Some(database) = server::new_database() {
        let options = PostgresOptions {
            limits,
            adopt_unknown: true,
            hook: None,
        };
        scenes.push(TestStore {
            name: "PostgreSQL",
            store: Box::new(open_postgres(&database, options).expect("opened")),
            _directory: None,
            _database: Some(database),
        });
    }
    scenes
}

pub(crate) fn agent(number: u8, boot: u8) -> AgentRecord {
    AgentRecord {
        id: AgentId([number; 8]),
        boot: BootId([boot; 8]),
        address: "/run/agent.sock".into(),
        cores: vec![0, 1],
    }
}

/// A lease of agent 1.
pub(crate) fn lease(number: u8, boot: u8) -> LeaseRecord {
    LeaseRecord {
        id: LeaseId([number; 8]),
        agent: AgentId([1; 8]),
        boot: BootId([boot; 8]),
        tenant: TENANT.into(),
        label: "label".into(),
        job: "42".into(),
        epoch: Epoch(1),
        cores: vec![0, 7],
        slots: 2,
        busy_slots: 2,
        memory_bytes: 1 << 30,
        gpus: 3,
        granted_ms: START_MS,
        state: LeaseState::Active,
    }
}

pub(crate) fn ended(lease: LeaseRecord) -> LeaseRecord {
    let why = "released".into();
    LeaseRecord {
        state: LeaseState::Ended { why },
        ..lease
    }
}

pub(crate) fn used(invocations: u64) -> UsageTotals {
    UsageTotals {
        allocated_ns: invocations * 1_000_000,
        hot_ns: invocations * 1000,
        compute_ns: invocations * 10_000,
        invocations,
    }
}

pub(crate) fn row(key: RowKey, invocations: u64, settled: bool) -> LedgerRow {
    LedgerRow {
        key,
        tenant: TENANT.into(),
        usage: used(invocations),
        functions: functions(invocations),
        settled,
    }
}

/// Usage of two functions; a tenth of the compute time belongs to no function.
pub(crate) fn functions(invocations: u64) -> FunctionTotals {
    let most = invocations - invocations / 4;
    let used = |compute_ns, invocations| FunctionUse {
        compute_ns,
        invocations,
    };
    let id = |name| FunctionId::new(CodeHash([9; 32]), name);
    FunctionTotals::from_iter([
        (id("f"), used(invocations * 6_000, most)),
        (id("g"), used(invocations * 3_000, invocations - most)),
    ])
}

/// Report about some leases only.
pub(crate) fn report(at_ms: u64, leases: Vec<LeaseRecord>, usage: Vec<LedgerRow>) -> ReportRecord {
    ReportRecord {
        agent: AgentId([1; 8]),
        boot: BootId([1; 8]),
        at_ms,
        leases,
        usage,
        missing_before: None,
    }
}

impl TestStore {
    /// Invocations billed to a tenant.
    pub(crate) fn invocations(&self, tenant: &str) -> u64 {
        let query = BillQuery {
            tenant: Some(tenant.into()),
            ..BillQuery::default()
        };
        let bill = self.store.bill(&query).expect("a bill");
        bill.lines.iter().map(|line| line.usage.invocations).sum()
    }

    /// State of a lease.
    pub(crate) fn state(&self, number: u8) -> Option<LeaseState> {
        let lease = self.store.lease(LeaseId([number; 8])).expect("readable");
        lease.map(|lease| lease.state)
    }

    /// Checks that an audit finds no problem.
    pub(crate) fn assert_sound(&self, now_ms: u64) {
        let audit = self.store.audit(now_ms).expect("an audit");
        assert_eq!(audit.problems, Vec::<String>::new(), "{}", self.name);
    }
}
