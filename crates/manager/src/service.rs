//! The gRPC service: who asks, and which module answers.

use crate::listener::PeerInfo;
use crate::state::State;
use crate::{acquire, listing, membership};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::manager_server::Manager;
use hotlease_wire::grpc::{
    AcquireRequest, AgentList, CodeList, Grant, HeartbeatReply, HeartbeatRequest, Info, InfoRequest,
    LeaseList, ListRequest, RegisterReply, RegisterRequest, ReleaseReply, ReleaseRequest, ShutdownReply,
    ShutdownRequest, WorkerList,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// See the module.
pub(crate) struct Service(pub(crate) Arc<State>);

/// The caller, as the kernel named it when it connected.
fn peer<T>(request: &Request<T>) -> Result<PeerInfo, Status> {
    request.extensions().get::<PeerInfo>().copied().ok_or_else(|| {
        Refusal::NotPermitted {
            what: "a connection without credentials".into(),
        }
        .into()
    })
}

fn reply<T>(result: Result<T, Refusal>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(Status::from)
}

#[tonic::async_trait]
impl Manager for Service {
    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        let tenant = peer(&request)?.tenant();
        let request = acquire::checked(request.into_inner(), tenant)?;
        reply(acquire::acquire(&self.0, request).await)
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let tenant = peer(&request)?.tenant();
        let request = ReleaseRequest {
            tenant,
            ..request.into_inner()
        };
        reply(acquire::release(&self.0, request).await)
    }

    async fn list_agents(&self, _: Request<ListRequest>) -> Result<Response<AgentList>, Status> {
        reply(Ok(listing::agents(&self.0).await))
    }

    async fn list_leases(&self, request: Request<ListRequest>) -> Result<Response<LeaseList>, Status> {
        reply(listing::leases(&self.0, request.into_inner()).await)
    }

    async fn list_workers(&self, request: Request<ListRequest>) -> Result<Response<WorkerList>, Status> {
        reply(listing::workers(&self.0, request.into_inner()).await)
    }

    async fn list_functions(&self, request: Request<ListRequest>) -> Result<Response<CodeList>, Status> {
        reply(listing::functions(&self.0, request.into_inner()).await)
    }

    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<Info>, Status> {
        reply(listing::info(&self.0).await)
    }

    async fn shutdown(&self, request: Request<ShutdownRequest>) -> Result<Response<ShutdownReply>, Status> {
        let uid = peer(&request)?.uid;
        tracing::info!(uid, "asked to stop");
        self.0.asked_to_stop.send_replace(true);
        reply(Ok(ShutdownReply {}))
    }

    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        reply(membership::register(&self.0, request.into_inner()).await)
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatReply>, Status> {
        reply(membership::heartbeat(&self.0, request.into_inner()).await)
    }
}
