//! Leases: listing them, and ending one.

use super::extract::{Page, PathParameter, QueryParameters, RequestCaller};
use super::problem::Problem;
use crate::agents::listing;
use crate::identity::Caller;
use crate::leases::acquire;
use crate::records::lease_info;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{LeaseInfo, ListRequest, ReleaseRequest, Usage as Used};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::mirror;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// State of a running lease.
const ACTIVE: &str = "active";

mirror! {
    /// Cumulative usage.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Usage from(used: Used) {
        /// Allocated time: slots times the time that they were held, nanoseconds.
        allocated_ns: u64,
        /// Time of polling for invocations, nanoseconds.
        hot_ns: u64,
        /// Time of running functions, nanoseconds.
        compute_ns: u64,
        /// Number of invocations.
        invocations: u64,
    }
}

mirror! {
    /// Resources granted to a tenant for a time.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Lease from(info: LeaseInfo) {
        /// Identifier of the lease.
        #[schema(pattern = "^[0-9a-f]{16}$")]
        id: String,
        /// Agent that granted the lease.
        #[schema(pattern = "^[0-9a-f]{16}$")]
        agent: String,
        /// Tenant that pays.
        tenant: String,
        /// Label that the holder gave it.
        label: String,
        /// `active` or `ended`.
        state: String,
        /// Reason for its end; empty: it has not ended.
        end_reason: String,
        /// Epoch of the lease.
        epoch: u32,
        /// Time until its expiry if it is not renewed, milliseconds; null: only its agent knows.
        expires_in_ms: Option<u64> = Some(info.expires_in_ms).filter(|left| *left > 0),
        /// Cores of the lease.
        cores: Vec<u32>,
        /// Numbers of its GPUs on its agent; also empty if only the agent knows them.
        gpus: Vec<u32>,
        /// Usage so far; null: nothing was reported yet.
        usage: Option<Usage> = info.usage.map(Usage::from),
    }
}

/// List of leases, ordered by id.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Leases {
    leases: Vec<Lease>,
    /// Value of `after` for the next page; null: there are no more.
    next: Option<String>,
}

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LeaseState {
    Active,
    Ended,
}

/// Selects leases.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LeasesQuery {
    /// Show only this tenant's leases. A caller that is no operator always sees its own tenant's.
    #[param(max_length = 64)]
    tenant: Option<String>,
    /// Show only leases in this state.
    #[param(inline)]
    state: Option<LeaseState>,
    /// Limit of rows (default: 1000).
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// Show only leases whose id is greater than this.
    #[param(max_length = 64)]
    after: Option<String>,
}

/// Lists leases: running ones, and ended ones as long as they are kept.
#[utoipa::path(get, path = "/v1/leases", operation_id = "list_leases", tag = "leases", params(LeasesQuery),
    responses((status = 200, description = "Leases", body = Leases)))]
pub(super) async fn list(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    QueryParameters(which): QueryParameters<LeasesQuery>,
) -> Result<Json<Leases>, Problem> {
    let page = Page::of(which.limit, which.after.as_deref())?;
    let request = caller.listing(ListRequest {
        tenant: which.tenant.unwrap_or_default(),
    })?;
    let leases = listing::leases(&state, request).await?.leases.into_iter();
    let wanted = |lease: &LeaseInfo| {
        let is_active = lease.state == ACTIVE;
        which
            .state
            .is_none_or(|state| (state == LeaseState::Active) == is_active)
    };
    let leases = leases.filter(wanted).map(Lease::from).collect();
    let (leases, next) = page.cut(leases, which.after.as_deref(), |lease| &lease.id);
    Ok(Json(Leases { leases, next }))
}

/// Describes one lease, as it was last reported.
#[utoipa::path(get, path = "/v1/leases/{lease}", operation_id = "get_lease", tag = "leases",
    params(("lease" = String, Path, description = "Id of the lease", pattern = "^[0-9a-f]{16}$")),
    responses((status = 200, description = "The lease", body = Lease)))]
pub(super) async fn get(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(id): PathParameter<String>,
) -> Result<Json<Lease>, Problem> {
    let id = parse_id(&id)?;
    let found = state.store(move |store| {
        let Some(lease) = store.lease(id)? else {
            return Ok(None);
        };
        let row = store.rows(&[lease.key()])?.into_iter().flatten().next();
        Ok(Some((lease, row.map(|row| row.usage))))
    });
    let (lease, usage) = found.await?.ok_or(Rejection::UnknownLease)?;
    check_visible(&caller, &lease.tenant)?;
    Ok(Json(lease_info(lease, usage).into()))
}

/// Lease that was ended, with its whole usage.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ended {
    /// Identifier of the lease.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    lease: String,
    usage: Usage,
}

/// Ends a lease: one's own, or as an operator any. Returns when its workers are gone and its usage is durable.
#[utoipa::path(delete, path = "/v1/leases/{lease}", operation_id = "end_lease", tag = "leases",
    params(("lease" = String, Path, description = "Id of the lease", pattern = "^[0-9a-f]{16}$")),
    responses((status = 200, description = "The lease has ended", body = Ended)))]
pub(super) async fn end(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(id): PathParameter<String>,
) -> Result<Json<Ended>, Problem> {
    let id = parse_id(&id)?;
    let noted = state.store(move |store| store.lease(id)).await?;
    if let Some(lease) = &noted {
        check_visible(&caller, &lease.tenant)?;
    }
    let request = ReleaseRequest {
        lease: id.to_string(),
        // An operator may have no tenant.
        tenant: match caller.is_operator() {
            true => caller.tenant.clone().unwrap_or_default(),
            false => caller.tenant()?.to_owned(),
        },
        reason: String::new(),
    };
    let over = acquire::release(&state, request, caller.is_operator()).await?;
    tracing::info!(by = caller.name, lease = %id, "ended a lease");
    Ok(Json(Ended {
        lease: id.to_string(),
        usage: over.usage.unwrap_or_default().into(),
    }))
}

fn parse_id(id: &str) -> Result<LeaseId, Problem> {
    id.parse().map_err(|_| Rejection::UnknownLease.into())
}

/// Fails if the caller may not see the lease; the error does not reveal that the lease exists.
fn check_visible(caller: &Caller, tenant: &str) -> Result<(), Problem> {
    let seen = caller.visible_tenant(tenant.to_owned())?;
    match seen == tenant {
        true => Ok(()),
        false => Err(Rejection::UnknownLease.into()),
    }
}
