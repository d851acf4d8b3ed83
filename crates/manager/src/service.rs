//! The gRPC service: passes each request to its module. The gate has already checked the caller.

use crate::agents::{images, listing, membership, nodes};
use crate::identity::caller_of;
use crate::leases::{acquire, offers};
use crate::state::ManagerState;
use crate::{billing, tenants};
use hotlease_store::PutCondition;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_server::Manager;
use hotlease_wire::grpc::{
    AcquireRequest, AddKeyRequest, AgentList, BillReply, BillRequest, CodeList, FindImageRequest, FindOffersRequest,
    Grant, HeartbeatReply, HeartbeatRequest, ImageSource, Info, InfoRequest, KeyInfo, KeyList, LeaseList,
    ListKeysRequest, ListRequest, ListTenantsRequest, NewKey, NodeList, OrderNodeReply, OrderNodeRequest,
    PastUsageReply, PastUsageRequest, PutOfferReply, PutTenantRequest, RegisterReply, RegisterRequest, ReleaseReply,
    ReleaseRequest, RemoveTenantReply, RemoveTenantRequest, RevokeKeyRequest, RotateKeyReply, RotateKeyRequest,
    ShutdownReply, ShutdownRequest, SlotOffer, SlotOfferList, Tenant, TenantList, VerifyReply, VerifyRequest,
    VouchReply, VouchRequest, WaitingList, WithdrawOfferReply, WithdrawOfferRequest, WorkerList,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Implementation of the service `Manager`.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<ManagerState>);

fn reply<T>(result: Result<T, Rejection>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(Status::from)
}

#[tonic::async_trait]
impl Manager for Service {
    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<Grant>, Status> {
        let tenant = caller_of(&request)?.tenant()?.to_owned();
        reply(acquire::acquire(&self.0, request.into_inner(), tenant).await)
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseReply>, Status> {
        let caller = caller_of(&request)?;
        let request = ReleaseRequest {
            tenant: caller.tenant()?.to_owned(),
            ..request.into_inner()
        };
        reply(acquire::release(&self.0, request, caller.is_operator()).await)
    }

    async fn vouch(&self, request: Request<VouchRequest>) -> Result<Response<VouchReply>, Status> {
        let tenant = caller_of(&request)?.tenant()?.to_owned();
        reply(acquire::vouch(&self.0, request.into_inner(), tenant).await)
    }

    async fn put_offer(&self, request: Request<SlotOffer>) -> Result<Response<PutOfferReply>, Status> {
        let tenant = caller_of(&request)?.tenant()?.to_owned();
        reply(offers::put(&self.0, request.into_inner(), tenant))
    }

    async fn find_offers(&self, request: Request<FindOffersRequest>) -> Result<Response<SlotOfferList>, Status> {
        let caller = caller_of(&request)?;
        reply(offers::find(&self.0, &request.into_inner(), caller.tenant()?))
    }

    async fn withdraw_offer(
        &self,
        request: Request<WithdrawOfferRequest>,
    ) -> Result<Response<WithdrawOfferReply>, Status> {
        let tenant = caller_of(&request)?.tenant()?.to_owned();
        reply(offers::withdraw(&self.0, &request.into_inner(), tenant))
    }

    async fn list_agents(&self, _: Request<ListRequest>) -> Result<Response<AgentList>, Status> {
        reply(Ok(listing::agents(&self.0).await))
    }

    async fn list_leases(&self, request: Request<ListRequest>) -> Result<Response<LeaseList>, Status> {
        let caller = caller_of(&request)?;
        reply(listing::leases(&self.0, caller.listing(request.into_inner())?).await)
    }

    async fn list_waiting(&self, request: Request<ListRequest>) -> Result<Response<WaitingList>, Status> {
        let caller = caller_of(&request)?;
        let ListRequest { tenant } = caller.listing(request.into_inner())?;
        let clients = self.0.waiting.list(&tenant, self.0.now());
        reply(Ok(WaitingList { clients }))
    }

    async fn list_workers(&self, request: Request<ListRequest>) -> Result<Response<WorkerList>, Status> {
        let caller = caller_of(&request)?;
        reply(listing::workers(&self.0, caller.listing(request.into_inner())?).await)
    }

    async fn list_functions(&self, request: Request<ListRequest>) -> Result<Response<CodeList>, Status> {
        let caller = caller_of(&request)?;
        reply(listing::functions(&self.0, caller.listing(request.into_inner())?).await)
    }

    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<Info>, Status> {
        reply(listing::info(&self.0).await)
    }

    async fn shutdown(&self, request: Request<ShutdownRequest>) -> Result<Response<ShutdownReply>, Status> {
        let by = caller_of(&request)?.name;
        tracing::info!(by, "asked to stop");
        self.0.asked_to_stop.send_replace(true);
        reply(Ok(ShutdownReply {}))
    }

    async fn bill(&self, request: Request<BillRequest>) -> Result<Response<BillReply>, Status> {
        let caller = caller_of(&request)?;
        let request = caller.bill(request.into_inner())?;
        reply(billing::bill(&self.0, request).await)
    }

    async fn verify(&self, request: Request<VerifyRequest>) -> Result<Response<VerifyReply>, Status> {
        reply(billing::verify(&self.0, request.into_inner()).await)
    }

    async fn list_nodes(&self, _: Request<ListRequest>) -> Result<Response<NodeList>, Status> {
        reply(Ok(nodes::list(&self.0).await))
    }

    async fn order_node(&self, request: Request<OrderNodeRequest>) -> Result<Response<OrderNodeReply>, Status> {
        let by = caller_of(&request)?.name;
        reply(
            nodes::order(&self.0, request.into_inner(), &by)
                .await
                .map_err(Rejection::from),
        )
    }

    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        let caller = caller_of(&request)?;
        let owner = caller.agent();
        reply(membership::register(&self.0, request.into_inner(), owner).await)
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<HeartbeatReply>, Status> {
        let caller = caller_of(&request)?;
        let owner = caller.agent();
        reply(membership::heartbeat(&self.0, request.into_inner(), owner).await)
    }

    async fn report_past(&self, request: Request<PastUsageRequest>) -> Result<Response<PastUsageReply>, Status> {
        let caller = caller_of(&request)?;
        let owner = caller.agent();
        reply(membership::report_past(&self.0, request.into_inner(), owner).await)
    }

    async fn find_image(&self, request: Request<FindImageRequest>) -> Result<Response<ImageSource>, Status> {
        let caller = caller_of(&request)?;
        let owner = caller.agent();
        reply(images::find(&self.0, &request.into_inner(), owner))
    }

    async fn list_tenants(&self, request: Request<ListTenantsRequest>) -> Result<Response<TenantList>, Status> {
        reply(tenants::tenants(&self.0, &request.into_inner().name))
    }

    async fn put_tenant(&self, request: Request<PutTenantRequest>) -> Result<Response<Tenant>, Status> {
        let by = caller_of(&request)?;
        let PutTenantRequest { tenant, is_new } = request.into_inner();
        let condition = if is_new { PutCondition::New } else { PutCondition::Known };
        reply(tenants::put_tenant(&self.0, (tenant, condition), &by).await)
    }

    async fn remove_tenant(
        &self,
        request: Request<RemoveTenantRequest>,
    ) -> Result<Response<RemoveTenantReply>, Status> {
        let by = caller_of(&request)?;
        tenants::remove_tenant(&self.0, request.into_inner().name, &by).await?;
        reply(Ok(RemoveTenantReply {}))
    }

    async fn list_keys(&self, request: Request<ListKeysRequest>) -> Result<Response<KeyList>, Status> {
        reply(tenants::keys(&self.0, request.into_inner().tenant).await)
    }

    async fn add_key(&self, request: Request<AddKeyRequest>) -> Result<Response<NewKey>, Status> {
        let by = caller_of(&request)?;
        reply(tenants::add_key(&self.0, request.into_inner(), &by).await)
    }

    async fn revoke_key(&self, request: Request<RevokeKeyRequest>) -> Result<Response<KeyInfo>, Status> {
        let by = caller_of(&request)?;
        reply(tenants::revoke_key(&self.0, request.into_inner().id, &by).await)
    }

    async fn rotate_key(&self, request: Request<RotateKeyRequest>) -> Result<Response<RotateKeyReply>, Status> {
        let by = caller_of(&request)?;
        reply(Ok(tenants::rotate(&self.0, &by).await))
    }
}
