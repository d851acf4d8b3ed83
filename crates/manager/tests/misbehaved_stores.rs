//! Tests of a manager with a store that is slow, as a database can be, or that cannot be read.

use hotlease_lease::ledger::FunctionTotals;
use hotlease_lease::manager::{NodeWish, OrderRecord};
use hotlease_manager::{MANAGER_SOCKET, Manager, ManagerConfig, ManagerError};
use hotlease_store::{
    AgentRecord, Audit, Bill, BillQuery, KeyRecord, LeaseRecord, MemoryStore, PutCondition, ReportRecord, ReportResult,
    RowKey, RowState, Store, StoreError, TenantRecord, TenantStore,
};
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AgentInfo, PutTenantRequest, RegisterRequest, Tenant};
use hotlease_wire::ids::{AgentId, LeaseId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tonic::transport::Endpoint;

/// Longer than two ticks of the manager.
const SLOW: Duration = Duration::from_millis(600);

/// Store that confirms agents and tenants slowly, counts removals of agents, and panics when it is read if `panics` is
/// set.
#[derive(Default)]
struct SlowStore {
    inner: MemoryStore,
    removed: AtomicUsize,
    panics: bool,
}

impl Store for SlowStore {
    fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe()
    }

    fn put_agent(&self, agent: AgentRecord, at_ms: u64) -> Result<(), StoreError> {
        self.inner.put_agent(agent, at_ms)?;
        thread::sleep(SLOW);
        Ok(())
    }

    fn remove_agent(&self, agent: AgentId, at_ms: u64) -> Result<(), StoreError> {
        self.removed.fetch_add(1, Ordering::Relaxed);
        self.inner.remove_agent(agent, at_ms)
    }

    fn agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        self.inner.agents()
    }

    fn open_lease(&self, lease: LeaseRecord, at_ms: u64) -> Result<(), StoreError> {
        self.inner.open_lease(lease, at_ms)
    }

    fn lease(&self, lease: LeaseId) -> Result<Option<LeaseRecord>, StoreError> {
        self.inner.lease(lease)
    }

    fn leases(&self, tenant: Option<&str>) -> Result<Vec<LeaseRecord>, StoreError> {
        self.inner.leases(tenant)
    }

    fn active_leases(&self) -> Result<u64, StoreError> {
        self.inner.active_leases()
    }

    fn report(&self, report: ReportRecord) -> Result<ReportResult, StoreError> {
        self.inner.report(report)
    }

    fn rows(&self, keys: &[RowKey]) -> Result<Vec<Option<RowState>>, StoreError> {
        self.inner.rows(keys)
    }

    fn functions(&self, keys: &[RowKey]) -> Result<Vec<FunctionTotals>, StoreError> {
        self.inner.functions(keys)
    }

    fn bill(&self, query: &BillQuery) -> Result<Bill, StoreError> {
        self.inner.bill(query)
    }

    fn audit(&self, now_ms: u64) -> Result<Audit, StoreError> {
        self.inner.audit(now_ms)
    }

    fn put_wish(&self, agent: AgentId, wish: NodeWish, order: Option<OrderRecord>) -> Result<(), StoreError> {
        self.inner.put_wish(agent, wish, order)
    }

    fn forget_order(&self, agent: AgentId, number: u64) -> Result<(), StoreError> {
        self.inner.forget_order(agent, number)
    }

    fn orders(&self) -> Result<Vec<OrderRecord>, StoreError> {
        self.inner.orders()
    }

    fn remove_wish(&self, agent: AgentId) -> Result<(), StoreError> {
        self.inner.remove_wish(agent)
    }

    fn wishes(&self) -> Result<Vec<(AgentId, NodeWish)>, StoreError> {
        self.inner.wishes()
    }

    fn latest_ms(&self) -> Result<u64, StoreError> {
        assert!(!self.panics, "the test said so");
        self.inner.latest_ms()
    }
}

impl TenantStore for SlowStore {
    fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        self.inner.tenants()
    }

    fn put_tenant(&self, tenant: TenantRecord, condition: PutCondition) -> Result<bool, StoreError> {
        // Gives the other request time to check the manager's old copy of the tenants.
        thread::sleep(SLOW);
        self.inner.put_tenant(tenant, condition)
    }

    fn remove_tenant(&self, name: &str) -> Result<bool, StoreError> {
        self.inner.remove_tenant(name)
    }

    fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.inner.keys()
    }

    fn put_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        self.inner.put_key(key)
    }
}

/// While it registers, an agent is in the store and not yet in the registry. The same is true of an agent that has been
/// silent for long; the manager removes that agent and ends its leases.
#[tokio::test]
async fn an_agent_is_not_forgotten_while_it_registers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SlowStore::default());
    let mut config = ManagerConfig::new(dir.path());
    config.store = Arc::clone(&store) as Arc<dyn Store>;
    let manager = Manager::start(config).await.unwrap();
    let uri = format!("unix:{}", dir.path().join(MANAGER_SOCKET).display());
    let mut client = ManagerClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap());
    let agent = Some(AgentInfo {
        id: "01".repeat(8),
        boot: "02".repeat(8),
        address: "/run/agent.sock".into(),
        session_socket: "/run/session.sock".into(),
        ..Default::default()
    });
    client.register(RegisterRequest { agent, proof: 0 }).await.unwrap();
    assert_eq!(manager.an_agent().await.id, AgentId([1; 8]));
    assert_eq!(
        store.removed.load(Ordering::Relaxed),
        0,
        "it was taken for a silent one"
    );
    assert_eq!(store.agents().unwrap().len(), 1);
}

/// A name that was typed twice must not replace the first tenant's quota and members.
#[tokio::test]
async fn the_second_of_two_requests_to_add_a_tenant_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ManagerConfig::new(dir.path());
    config.store = Arc::new(SlowStore::default());
    let _manager = Manager::start(config).await.unwrap();
    let uri = format!("unix:{}", dir.path().join(MANAGER_SOCKET).display());
    let client = ManagerClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap());
    let add = |cores| {
        let mut client = client.clone();
        let tenant = Some(Tenant {
            name: "alice".into(),
            enabled: true,
            role: "user".into(),
            cores: Some(cores),
            ..Tenant::default()
        });
        async move { client.put_tenant(PutTenantRequest { tenant, is_new: true }).await }
    };
    let (first, second) = tokio::join!(add(1), add(2));
    assert_eq!(
        u32::from(first.is_ok()) + u32::from(second.is_ok()),
        1,
        "{first:?}, {second:?}"
    );
}

/// A start without the unreadable state would forget leases, usage and orders.
#[tokio::test]
async fn a_manager_that_cannot_read_its_ledger_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ManagerConfig::new(dir.path());
    config.store = Arc::new(SlowStore {
        panics: true,
        ..SlowStore::default()
    });
    let started = Manager::start(config).await.map(drop);
    assert!(matches!(started, Err(ManagerError::ReadingPanicked)), "{started:?}");
}
