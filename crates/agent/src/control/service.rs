//! The agent's gRPC service: requests of managers, of other agents, and of clients that ask for direct leases.

use crate::control::listing;
use crate::data::image_transfer::ImagePieces;
use crate::isolation::caller::RequestOrigin;
use crate::node::Node;
use crate::node::direct::{self, Requester};
use hotlease_lease::agent::BookEvent;
use hotlease_net::CertificateRole;
use hotlease_net::grpc::PeerInfo;
use hotlease_wire::grpc::agent_server;
use hotlease_wire::grpc::{
    AcquireRequest, AgentStatus, Grant, ListRequest, NodeWish, OrderReply, ReadImageRequest, ReleaseReply,
    ReleaseRequest, RotateKeyReply, RotateKeyRequest,
};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::{EndReason, Rejection};
use std::fmt::Display;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tracing::{Instrument, Span};

/// Tenant name of root, which may end any lease.
const ROOT: &str = "uid:0";
/// Limits how many listings are made at a time: each listing reads files about all processes of the agent's workers,
/// and tenants choose the number of these processes.
static LISTINGS: Semaphore = Semaphore::const_new(2);

/// The agent's gRPC service.
#[derive(Clone)]
pub(crate) struct Service {
    /// State of the agent.
    pub node: Arc<Node>,
}

/// Checks that a manager sends the request. On the Unix socket every admitted peer is treated as a manager; a peer on
/// another host must show a manager's certificate.
fn origin<T>(request: &Request<T>) -> Result<RequestOrigin, Rejection> {
    match request.extensions().get::<PeerInfo>() {
        None => Ok(RequestOrigin::Local),
        Some(PeerInfo(peer)) if peer.role == CertificateRole::Manager => Ok(RequestOrigin::Remote),
        Some(PeerInfo(peer)) => Err(Rejection::NotPermitted {
            what: format!("an agent answers managers, and this is the certificate of the {peer}"),
        }),
    }
}

/// Log span of the manager's request, by its W3C trace id, which is in the manager's log, too.
fn span<T>(request: &Request<T>) -> Span {
    let header = request
        .metadata()
        .get("traceparent")
        .and_then(|value| value.to_str().ok());
    // 00-TRACE-SPAN-FLAGS, as managers write it.
    match header.and_then(|header| header.get(3..35)) {
        Some(trace) => tracing::info_span!("request", trace),
        None => Span::none(),
    }
}

#[tonic::async_trait]
impl agent_server::Agent for Service {
    async fn grant(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        let origin = origin(&request)?;
        let span = span(&request);
        let granting = self.node.grant_soon(request.into_inner(), origin, Requester::Manager);
        Ok(Response::new(granting.instrument(span).await?))
    }

    async fn grant_direct(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        let (tenant, origin) = direct::caller(&request)?;
        let span = span(&request);
        let message = AcquireRequest {
            tenant,
            ..request.into_inner()
        };
        direct::check_request(&self.node.identity, &message)?;
        let granting = self.node.grant_soon(message, origin, Requester::Client);
        Ok(Response::new(granting.instrument(span).await?))
    }

    async fn end_lease(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        origin(&request)?;
        let span = span(&request);
        Ok(Response::new(self.end(request.into_inner()).instrument(span).await?))
    }

    type ReadImageStream = ImagePieces;

    async fn read_image(&self, request: Request<ReadImageRequest>) -> Result<Response<ImagePieces>, Status> {
        if let Some(PeerInfo(peer)) = request.extensions().get::<PeerInfo>()
            && peer.role != CertificateRole::Agent
        {
            return Err(Rejection::NotPermitted {
                what: format!("environments are for other agents, and this is the certificate of the {peer}"),
            }
            .into());
        }
        let identity = &self.node.identity;
        let pieces = identity.sending.send(&identity.images, &request.into_inner())?;
        Ok(Response::new(pieces))
    }

    async fn status(&self, request: Request<ListRequest>) -> Result<Response<AgentStatus>, Status> {
        origin(&request)?;
        let (node, tenant) = (Arc::clone(&self.node), request.into_inner().tenant);
        let failed = |error: &dyn Display| Rejection::Unavailable {
            what: format!("a listing failed: {error}"),
        };
        let turn = LISTINGS.acquire().await.map_err(|error| failed(&error))?;
        let listed = tokio::task::spawn_blocking(move || {
            let listed = listing::status(&node, &tenant);
            drop(turn);
            listed
        });
        Ok(Response::new(listed.await.map_err(|error| failed(&error))?))
    }

    async fn rotate_key(&self, request: Request<RotateKeyRequest>) -> Result<Response<RotateKeyReply>, Status> {
        origin(&request)?;
        self.node.rotate_token_key();
        Ok(Response::new(RotateKeyReply::default()))
    }

    async fn order(&self, request: Request<NodeWish>) -> Result<Response<OrderReply>, Status> {
        origin(&request)?;
        self.node.order(request.into_inner())?;
        Ok(Response::new(OrderReply {
            agent: Some(listing::agent(&self.node, false)),
        }))
    }
}

impl Service {
    async fn end(&self, request: ReleaseRequest) -> Result<ReleaseReply, Rejection> {
        let bad = |what: &str| Rejection::BadRequest { what: what.into() };
        let id: LeaseId = request.lease.parse().map_err(|_| bad("not a lease id"))?;
        let reason = match request.reason.as_str() {
            "" | "released" | "unused" => EndReason::Released,
            "revoked" => EndReason::Revoked,
            _ => return Err(bad("the reason is not \"released\", \"revoked\" or \"unused\"")),
        };
        let lease = {
            let tables = self.node.tables();
            let booked = tables.book.active(id)?;
            let holder = &booked.request.tenant;
            // An empty tenant means the manager itself.
            let permitted = request.tenant.is_empty() || request.tenant == ROOT || request.tenant == *holder;
            if !permitted {
                return Err(Rejection::WrongTenant);
            }
            let lease = tables.leases.get(&id).cloned().ok_or(Rejection::UnknownLease)?;
            if request.reason == "unused" && booked.all_sessions().is_empty() {
                lease.mark_unused();
            }
            lease
        };
        self.node.step(BookEvent::End { lease: id, reason })?;
        let (_, usage) = lease.wait_for_end().await;
        // A reported total must be durable.
        self.node.make_usage_durable().await;
        Ok(ReleaseReply {
            usage: Some(usage.into()),
        })
    }
}
