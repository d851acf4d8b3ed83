//! A manager in its own directory, a client of it, and agents with scripted answers.

use hotlease_manager::{MANAGER_SOCKET, Manager, ManagerConfig};
use hotlease_store::{BillQuery, MemoryStore, Store};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_server::{Agent, AgentServer};
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, AgentStatus, Grant, HeartbeatRequest, ImagePiece, LeaseInfo, ListRequest, NodeWish,
    OrderReply, ReadImageRequest, RegisterRequest, ReleaseReply, ReleaseRequest, RotateKeyReply, RotateKeyRequest,
    Usage, WorkerInfo,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Script of an agent's answers, and a record of the requests it got.
#[derive(Default)]
pub struct AgentScript {
    pub refusal: Option<Rejection>,
    pub leases: Vec<LeaseInfo>,
    pub asked: Vec<AcquireRequest>,
    pub ended: Vec<ReleaseRequest>,
    pub hangs: bool,
    pub free_cores: Option<u32>,
}

#[derive(Clone)]
struct ScriptedAgent(Arc<Mutex<AgentScript>>);

#[tonic::async_trait]
impl Agent for ScriptedAgent {
    async fn grant(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        let mut told = self.0.lock().unwrap();
        told.asked.push(request.into_inner());
        if let Some(refusal) = &told.refusal {
            return Err(refusal.clone().into());
        }
        Ok(Response::new(Grant {
            lease: "0b".repeat(8),
            epoch: 4,
            ttl_ms: 5000,
            ..Default::default()
        }))
    }

    async fn grant_direct(&self, _: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        Err(Status::unimplemented("this agent serves managers only"))
    }

    async fn end_lease(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        self.0.lock().unwrap().ended.push(request.into_inner());
        Ok(Response::new(ReleaseReply { usage: used(70) }))
    }

    async fn rotate_key(&self, _: Request<RotateKeyRequest>) -> Result<Response<RotateKeyReply>, Status> {
        Ok(Response::new(RotateKeyReply::default()))
    }

    async fn order(&self, _: Request<NodeWish>) -> Result<Response<OrderReply>, Status> {
        Err(Status::unimplemented("this agent is not given back"))
    }

    type ReadImageStream = tokio_stream::Empty<Result<ImagePiece, Status>>;

    async fn read_image(&self, _: Request<ReadImageRequest>) -> Result<Response<Self::ReadImageStream>, Status> {
        Err(Status::unimplemented("this agent has no environments"))
    }

    async fn status(&self, _: Request<ListRequest>) -> Result<Response<AgentStatus>, Status> {
        if self.0.lock().unwrap().hangs {
            std::future::pending::<()>().await;
        }
        let (leases, free_cores) = {
            let told = self.0.lock().unwrap();
            (told.leases.clone(), told.free_cores)
        };
        let agent = free_cores.map(|free_cores| AgentInfo {
            cores: (0..4).collect(),
            free_cores,
            state: "draining".into(),
            ..Default::default()
        });
        let workers = vec![WorkerInfo {
            pid: 77,
            state: "pooled".into(),
            ..Default::default()
        }];
        Ok(Response::new(AgentStatus {
            agent,
            leases,
            workers,
            ..Default::default()
        }))
    }
}

pub fn used(invocations: u64) -> Option<Usage> {
    Some(Usage {
        invocations,
        compute_ns: 1000 * invocations,
        ..Default::default()
    })
}

pub struct TestManager {
    pub dir: TempDir,
    pub store: Arc<MemoryStore>,
    pub manager: Manager,
    pub client: ManagerClient<Channel>,
}

impl TestManager {
    /// Invocations billed to a tenant.
    pub fn billed(&self, tenant: &str) -> u64 {
        let query = BillQuery {
            tenant: Some(tenant.into()),
            ..BillQuery::default()
        };
        let bill = self.store.bill(&query).unwrap();
        bill.lines.iter().map(|line| line.usage.invocations).sum()
    }

    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::default());
        let manager = start(dir.path(), &store).await;
        let client = connect(dir.path()).await;
        Self {
            dir,
            store,
            manager,
            client,
        }
    }

    /// Starts an agent on its own socket, and registers it.
    pub async fn agent(&mut self, number: u8, cores: u32) -> Arc<Mutex<AgentScript>> {
        let told = Arc::new(Mutex::new(AgentScript::default()));
        let listener = UnixListener::bind(self.agent_socket(number)).unwrap();
        let service = AgentServer::new(ScriptedAgent(Arc::clone(&told)));
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        let agent = Some(self.info(number, cores));
        self.client.register(RegisterRequest { agent, proof: 0 }).await.unwrap();
        told
    }

    pub fn agent_socket(&self, number: u8) -> PathBuf {
        self.dir.path().join(format!("agent{number}.sock"))
    }

    pub fn info(&self, number: u8, cores: u32) -> AgentInfo {
        AgentInfo {
            id: format!("{number:02x}").repeat(8),
            boot: "0d".repeat(8),
            address: self.agent_socket(number).to_str().unwrap().into(),
            session_socket: "/run/session.sock".into(),
            cores: (0..cores).collect(),
            free_cores: cores,
            ..Default::default()
        }
    }

    /// Sends a heartbeat as if it was written after all grants of the test.
    pub async fn heartbeat(&mut self, agent: AgentInfo, leases: Vec<LeaseInfo>) -> bool {
        self.heartbeat_of(agent, leases, u32::MAX).await
    }

    pub async fn heartbeat_of(&mut self, agent: AgentInfo, leases: Vec<LeaseInfo>, epoch: u32) -> bool {
        let request = HeartbeatRequest {
            agent: Some(agent),
            leases,
            epoch,
            partial: false,
        };
        self.client.heartbeat(request).await.unwrap().into_inner().known
    }

    pub async fn leases(&mut self) -> Vec<LeaseInfo> {
        self.client
            .list_leases(ListRequest::default())
            .await
            .unwrap()
            .into_inner()
            .leases
    }

    pub async fn refusal(&mut self, request: AcquireRequest) -> Rejection {
        self.client
            .acquire(request)
            .await
            .expect_err("the lease was granted")
            .into()
    }
}

pub async fn start(dir: &Path, store: &Arc<MemoryStore>) -> Manager {
    let mut config = ManagerConfig::new(dir);
    config.store = Arc::clone(store) as Arc<dyn Store>;
    config.listing_timeout = Duration::from_secs(2);
    Manager::start(config).await.unwrap()
}

pub async fn connect(dir: &Path) -> ManagerClient<Channel> {
    let uri = format!("unix:{}", dir.join(MANAGER_SOCKET).display());
    ManagerClient::new(Endpoint::from_shared(uri).unwrap().connect().await.unwrap())
}

pub fn wish(workers: u32) -> AcquireRequest {
    AcquireRequest {
        workers,
        slots_per_worker: 1,
        ..Default::default()
    }
}

pub fn lease(number: u8, invocations: u64, state: &str) -> LeaseInfo {
    LeaseInfo {
        id: format!("{number:02x}").repeat(8),
        agent: "01".repeat(8),
        tenant: "uid:7".into(),
        state: state.into(),
        usage: used(invocations),
        ..Default::default()
    }
}

pub fn tenant() -> String {
    format!("uid:{}", nix::unistd::geteuid())
}
