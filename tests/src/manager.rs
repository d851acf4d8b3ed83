//! The manager's gRPC interface, blocking.

use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_client::ManagerClient as Stub;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, Grant, LeaseInfo, ListRequest, ReleaseRequest, Usage, WorkerInfo,
};
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// A blocking client of a manager's gRPC interface. For one thread.
pub struct ManagerClient {
    runtime: Runtime,
    stub: RefCell<Stub<Channel>>,
}

const LIMIT: Duration = Duration::from_secs(10);

impl ManagerClient {
    /// Connects to the manager of a runtime directory.
    pub fn connect(directory: &Path) -> Result<Self, tonic::transport::Error> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = format!("unix:{}", directory.join("manager.sock").display());
        let endpoint = Endpoint::from_shared(address)?.connect_timeout(LIMIT).timeout(LIMIT);
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self {
            runtime,
            stub: RefCell::new(Stub::new(channel)),
        })
    }

    fn ask<T>(
        &self,
        call: impl AsyncFnOnce(&mut Stub<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Rejection> {
        let answer = self.runtime.block_on(call(&mut self.stub.borrow_mut()));
        answer.map(Response::into_inner).map_err(Rejection::from)
    }

    /// Takes a lease.
    pub fn acquire(&self, request: AcquireRequest) -> Result<Grant, Rejection> {
        self.ask(async |stub| stub.acquire(request).await)
    }

    /// Takes a lease of `workers` workers with one slot each.
    pub fn lease(&self, workers: u32, ttl: Duration) -> Result<Grant, Rejection> {
        self.acquire(AcquireRequest {
            workers,
            slots_per_worker: 1,
            ttl_ms: ttl.as_millis() as u64,
            hot_budget_us: 1000,
            label: "test".into(),
            ..AcquireRequest::default()
        })
    }

    /// Releases a lease.
    pub fn release(&self, lease: &str) -> Result<Option<Usage>, Rejection> {
        self.end(lease, "released")
    }

    /// Revokes a lease, as an operator does.
    pub fn revoke(&self, lease: &str) -> Result<Option<Usage>, Rejection> {
        self.end(lease, "revoked")
    }

    fn end(&self, lease: &str, reason: &str) -> Result<Option<Usage>, Rejection> {
        let request = ReleaseRequest {
            lease: lease.to_owned(),
            reason: reason.to_owned(),
            ..ReleaseRequest::default()
        };
        self.ask(async |stub| stub.release(request).await)
            .map(|reply| reply.usage)
    }

    /// Registered agents.
    pub fn agents(&self) -> Result<Vec<AgentInfo>, Rejection> {
        self.ask(async |stub| stub.list_agents(ListRequest::default()).await)
            .map(|list| list.agents)
    }

    /// Leases that are held or have ended.
    pub fn leases(&self) -> Result<Vec<LeaseInfo>, Rejection> {
        self.ask(async |stub| stub.list_leases(ListRequest::default()).await)
            .map(|list| list.leases)
    }

    /// Information about one lease.
    pub fn lease_info(&self, lease: &str) -> Option<LeaseInfo> {
        self.leases()
            .expect("leases are listed")
            .into_iter()
            .find(|info| info.id == lease)
    }

    /// Worker processes.
    pub fn workers(&self) -> Result<Vec<WorkerInfo>, Rejection> {
        self.ask(async |stub| stub.list_workers(ListRequest::default()).await)
            .map(|list| list.workers)
    }

    /// Number of cores that no lease holds: the offered cores minus the cores of active leases. The agent reports both
    /// numbers now; they are not from its last heartbeat.
    pub fn free_cores(&self) -> u32 {
        let agents = self.agents().expect("agents are listed");
        let offered: usize = agents.iter().map(|agent| agent.cores.len()).sum();
        let leases = self.leases().expect("leases are listed");
        let active = leases.iter().filter(|lease| lease.state == "active");
        (offered - active.map(|lease| lease.cores.len()).sum::<usize>()) as u32
    }
}
