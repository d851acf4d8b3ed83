//! A simulated agent: it has the book of leases and the membership of a real agent, but starts no workers.

use hotlease_lease::LeaseRequest;
use hotlease_lease::agent::{
    BookAction, BookEvent, CoreLease, FinalTotal, LeaseBook, OwedTotals, QuestionId, SessionId,
};
use hotlease_wire::EndReason;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_server;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, AgentStatus, Grant, HeartbeatRequest, ImagePiece, LeaseInfo, ListRequest, NodeWish,
    OrderReply, ReadImageRequest, ReleaseReply, ReleaseRequest, RotateKeyReply, RotateKeyRequest, Usage,
};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};

/// Largest number of final totals that wait for the manager's acknowledgement. An agent ends fewer leases in a second.
const OUTSTANDING_MAX: usize = 4096;
const MEMORY_BYTES: u64 = 1 << 40;
/// Time to live of a lease whose request names none.
const TTL_DEFAULT: Duration = Duration::from_secs(5);

/// A simulated agent.
#[derive(Clone)]
pub(super) struct SimulatedAgent(Arc<Inner>);

struct Inner {
    id: AgentId,
    boot: BootId,
    /// Address where managers reach it.
    address: String,
    cores: Vec<u32>,
    began: Instant,
    tables: Mutex<Tables>,
}

struct Tables {
    book: LeaseBook,
    outstanding: OwedTotals,
}

impl SimulatedAgent {
    pub(super) fn new(address: String, cores: u32) -> Self {
        let cores: Vec<u32> = (0..cores).collect();
        Self(Arc::new(Inner {
            id: AgentId(rand::random()),
            boot: BootId(rand::random()),
            address,
            began: Instant::now(),
            tables: Mutex::new(Tables {
                book: LeaseBook::new(cores.iter().copied(), MEMORY_BYTES),
                outstanding: OwedTotals::new(OUTSTANDING_MAX),
            }),
            cores,
        }))
    }

    pub(super) fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Converts a time of this agent's clock into an instant.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.0.began + at
    }

    pub(super) fn leases(&self) -> usize {
        self.tables().book.leases().count()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info(&self, state: &str) -> AgentInfo {
        let inner = &self.0;
        AgentInfo {
            id: inner.id.to_string(),
            boot: inner.boot.to_string(),
            address: inner.address.clone(),
            session_socket: "/simulated/session.sock".into(),
            cores: inner.cores.clone(),
            free_cores: self.tables().book.free_cores(),
            memory_bytes: MEMORY_BYTES,
            state: state.into(),
            endpoint: inner.address.clone(),
            ..AgentInfo::default()
        }
    }

    pub(super) fn heartbeat(&self, ask: QuestionId, whole: bool, leaving: bool) -> HeartbeatRequest {
        let agent = Some(self.info(if leaving { "gone" } else { "serving" }));
        let now = self.now();
        let mut tables = self.tables();
        let Tables { book, outstanding } = &mut *tables;
        let mut leases: Vec<_> = outstanding.report(ask).map(|total| self.owed(total)).collect();
        leases.extend(book.leases().filter(|_| whole).map(|lease| self.active(lease, now)));
        HeartbeatRequest {
            agent,
            leases,
            epoch: book.epoch().0,
            partial: !whole,
        }
    }

    pub(super) fn acknowledge(&self, ask: QuestionId) {
        self.tables().outstanding.acknowledge(ask);
    }

    fn active(&self, lease: &CoreLease, now: Duration) -> LeaseInfo {
        LeaseInfo {
            id: lease.id.to_string(),
            agent: self.0.id.to_string(),
            state: "active".into(),
            epoch: lease.epoch.0,
            expires_in_ms: lease.expires.saturating_sub(now).as_millis() as u64,
            cores: lease.cores(),
            usage: Some(Usage {
                allocated_ns: lease.allocated_ns(now),
                ..Usage::default()
            }),
            ..lease.request.listing()
        }
    }

    fn owed(&self, total: &FinalTotal) -> LeaseInfo {
        LeaseInfo {
            id: total.lease.to_string(),
            agent: self.0.id.to_string(),
            tenant: total.tenant.clone(),
            label: total.label.clone(),
            state: "ended".into(),
            epoch: total.epoch.0,
            cores: total.cores.clone(),
            usage: Some(total.usage.into()),
            end_reason: total.why.clone(),
            ..LeaseInfo::default()
        }
    }

    /// Makes one step of the book of leases. Workers count as started, and as gone, at once.
    fn step(&self, tables: &mut Tables, event: BookEvent) -> Result<(), Rejection> {
        let now = self.now();
        let step = tables.book.step(event, now);
        for action in step.actions {
            let follows = match action {
                BookAction::StartWorker {
                    lease, worker, epoch, ..
                } => BookEvent::WorkerUp { lease, worker, epoch },
                BookAction::MoveWorker {
                    lease, worker, epoch, ..
                } => BookEvent::WorkerMoved {
                    lease,
                    worker,
                    epoch,
                    moved: true,
                },
                BookAction::KillWorker {
                    lease, worker, epoch, ..
                } => BookEvent::WorkerGone {
                    lease,
                    worker,
                    epoch,
                    used: UsageTotals::default(),
                    functions: Default::default(),
                },
                BookAction::LeaseEnded { .. } => {
                    let ended = tables.book.ended_leases().next_back();
                    if let Some(total) = ended.map(|ended| FinalTotal::of(ended, self.0.boot)) {
                        tables.outstanding.owe(total);
                    }
                    continue;
                }
                BookAction::ReportWorkerDeath { .. } | BookAction::DelegationEnded { .. } | BookAction::Drained => {
                    continue;
                }
            };
            self.step(tables, follows)?;
        }
        step.refusal.map_or(Ok(()), Err)
    }

    fn grant_lease(&self, message: AcquireRequest) -> Result<Grant, Rejection> {
        let request = LeaseRequest::of(&message, TTL_DEFAULT)?;
        let (id, tenant) = (LeaseId(rand::random()), message.tenant);
        let mut tables = self.tables();
        let grant = BookEvent::Grant {
            lease: id,
            request: request.into(),
        };
        self.step(&mut tables, grant)?;
        let lease = tables.book.active(id)?;
        let (epoch, cores) = (lease.epoch, lease.cores());
        // Attaches a session that never closes, as there are no real sessions here.
        let attach = BookEvent::Attach {
            session: SessionId(0),
            lease: id,
            epoch,
            tenant,
            until: Duration::MAX,
        };
        self.step(&mut tables, attach)?;
        Ok(Grant {
            memory_bytes: 0,
            lease: id.to_string(),
            agent: self.0.id.to_string(),
            token: vec![0; 128],
            session_socket: "/simulated/session.sock".into(),
            epoch: epoch.0,
            ttl_ms: message.ttl_ms,
            cores,
            endpoint: self.0.address.clone(),
            boot: self.0.boot.to_string(),
            node: "simulated".into(),
            sandbox: String::new(),
            places_per_core: 0,
            workers: message.workers,
            others: Vec::new(),
            gpus: Vec::new(),
            reach: message.reach,
            host: String::new(),
        })
    }

    fn end_lease_now(&self, request: ReleaseRequest) -> Result<ReleaseReply, Rejection> {
        let lease: LeaseId = request.lease.parse().map_err(|_| Rejection::UnknownLease)?;
        let mut tables = self.tables();
        let reason = EndReason::Released;
        self.step(&mut tables, BookEvent::End { lease, reason })?;
        let ended = tables.book.ended_leases().rev().find(|ended| ended.id == lease);
        Ok(ReleaseReply {
            usage: ended.map(|ended| ended.usage.into()),
        })
    }
}

#[tonic::async_trait]
impl agent_server::Agent for SimulatedAgent {
    async fn grant(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        Ok(Response::new(self.grant_lease(request.into_inner())?))
    }

    async fn grant_direct(&self, _: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        Err(Status::unimplemented("this agent serves managers only"))
    }

    async fn end_lease(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        Ok(Response::new(self.end_lease_now(request.into_inner())?))
    }

    async fn rotate_key(&self, _: Request<RotateKeyRequest>) -> Result<Response<RotateKeyReply>, Status> {
        Err(Status::unimplemented("simulated agents make no tokens"))
    }

    async fn order(&self, _: Request<NodeWish>) -> Result<Response<OrderReply>, Status> {
        Err(Status::unimplemented("simulated agents are not given back"))
    }

    type ReadImageStream = tokio_stream::Empty<Result<ImagePiece, Status>>;

    async fn read_image(&self, _: Request<ReadImageRequest>) -> Result<Response<Self::ReadImageStream>, Status> {
        Err(Status::unimplemented("simulated agents have no environments"))
    }

    async fn status(&self, _: Request<ListRequest>) -> Result<Response<AgentStatus>, Status> {
        Ok(Response::new(AgentStatus {
            agent: Some(self.info("serving")),
            ..AgentStatus::default()
        }))
    }
}
