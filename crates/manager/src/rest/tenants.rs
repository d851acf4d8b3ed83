//! Tenants: their members, quotas, and what they hold.

use super::extract::{
    JsonBody, Page, PageQuery, PathParameter, QueryParameters, RequestCaller, deserialize_number, deserialize_object,
};
use super::problem::Problem;
use crate::state::ManagerState as Shared;
use crate::tenants;
use axum::Json;
use axum::extract::State;
use hotlease_store::PutCondition;
use hotlease_wire::grpc::Tenant as Message;
use hotlease_wire::mirror;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Role of a tenant's members.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    #[default]
    User,
    Operator,
    Hook,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Hook => "hook",
        }
    }
}

/// Limits on what a tenant may hold and use; null: no limit.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Quota {
    #[serde(deserialize_with = "deserialize_number")]
    cores: Option<u64>,
    #[serde(deserialize_with = "deserialize_number")]
    leases: Option<u64>,
    #[serde(deserialize_with = "deserialize_number")]
    memory_bytes: Option<u64>,
    #[serde(deserialize_with = "deserialize_number")]
    gpus: Option<u64>,
    /// Slots times the seconds that they are held.
    #[serde(deserialize_with = "deserialize_number")]
    core_seconds: Option<u64>,
    /// Window in which core-seconds count, hours up to now; null: all time.
    #[schema(minimum = 1, maximum = 8784)]
    window_hours: Option<u32>,
}

/// Resources that a tenant holds now, and has used.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Held {
    leases: u64,
    cores: u64,
    memory_bytes: u64,
    gpus: u64,
    /// Core-seconds used in the window, if there is a quota of them; measured every few seconds.
    core_seconds: u64,
}

mirror! {
    /// Tenant with its settings, and the resources that it holds.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Tenant from(tenant: Message) {
        name: String,
        /// Whether its members are admitted.
        enabled: bool,
        /// Role of its members: `user`, `operator` or `hook`.
        role: String,
        quota: Quota = Quota {
            cores: tenant.cores,
            leases: tenant.leases,
            memory_bytes: tenant.memory_bytes,
            gpus: tenant.gpus,
            core_seconds: tenant.core_seconds,
            window_hours: tenant.window_hours,
        },
        /// Members: `uid:N`, `cert:NAME`, `jwt:SUBJECT` or `jwt:ISSUER#SUBJECT`.
        members: Vec<String>,
        held: Held = Held {
            leases: tenant.held_leases,
            cores: tenant.held_cores,
            memory_bytes: tenant.held_memory_bytes,
            gpus: tenant.held_gpus,
            core_seconds: tenant.used_core_seconds,
        },
    }
}

/// List of tenants that operators named, ordered by name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Tenants {
    tenants: Vec<Tenant>,
    /// Value of `after` for the next page; null: there are no more.
    next: Option<String>,
}

/// Settings of a tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Whether its members are admitted (default: true).
    enabled: Option<bool>,
    /// Role of its members (default: user).
    role: Option<Role>,
    /// Quota (default: no limits).
    #[serde(default, deserialize_with = "deserialize_object")]
    quota: Quota,
    /// Members: `uid:N`, `cert:NAME`, `jwt:SUBJECT` or `jwt:ISSUER#SUBJECT`.
    #[serde(default)]
    members: Vec<String>,
}

/// Lists tenants that operators named, with the resources that they hold.
#[utoipa::path(get, path = "/v1/tenants", operation_id = "list_tenants", tag = "tenants", params(PageQuery),
    responses((status = 200, description = "Tenants", body = Tenants)))]
pub(super) async fn list(
    State(state): State<Arc<Shared>>,
    QueryParameters(which): QueryParameters<PageQuery>,
) -> Result<Json<Tenants>, Problem> {
    let page = Page::of(which.limit, which.after.as_deref())?;
    let tenants = tenants::tenants(&state, "")?.tenants.into_iter();
    let tenants = tenants.map(Tenant::from).collect();
    let (tenants, next) = page.cut(tenants, which.after.as_deref(), |tenant: &Tenant| &tenant.name);
    Ok(Json(Tenants { tenants, next }))
}

/// Finds a tenant that operators named.
fn find(state: &Shared, name: &str) -> Option<Message> {
    // An empty name would stand for all tenants.
    let found = (!name.is_empty()).then(|| tenants::tenants(state, name).ok());
    found.flatten()?.tenants.into_iter().next()
}

fn none() -> Problem {
    Problem::not_found("no operator has named such a tenant; see /v1/tenants")
}

/// Describes one tenant, with the resources that it holds.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", operation_id = "get_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "Name of the tenant")),
    responses((status = 200, description = "The tenant", body = Tenant)))]
pub(super) async fn get(
    State(state): State<Arc<Shared>>,
    PathParameter(name): PathParameter<String>,
) -> Result<Json<Tenant>, Problem> {
    let tenant = find(&state, &name).ok_or_else(none)?;
    Ok(Json(tenant.into()))
}

/// Adds a tenant, or replaces all its settings.
#[utoipa::path(put, path = "/v1/tenants/{tenant}", operation_id = "put_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "Name of the tenant")),
    request_body = Wanted,
    responses((status = 200, description = "The changed tenant", body = Tenant)))]
pub(super) async fn put(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(name): PathParameter<String>,
    JsonBody(wanted): JsonBody<Wanted>,
) -> Result<Json<Tenant>, Problem> {
    let quota = wanted.quota;
    let tenant = Message {
        name,
        enabled: wanted.enabled.unwrap_or(true),
        role: wanted.role.unwrap_or_default().word().into(),
        cores: quota.cores,
        leases: quota.leases,
        memory_bytes: quota.memory_bytes,
        gpus: quota.gpus,
        core_seconds: quota.core_seconds,
        window_hours: quota.window_hours,
        members: wanted.members,
        ..Message::default()
    };
    let put = (Some(tenant), PutCondition::Always);
    Ok(Json(tenants::put_tenant(&state, put, &caller).await?.into()))
}

/// Tenant that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Removed {
    tenant: String,
}

/// Removes a tenant and its keys. Its leases continue, and its bills stay.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", operation_id = "remove_tenant", tag = "tenants",
    params(("tenant" = String, Path, description = "Name of the tenant")),
    responses((status = 200, description = "The tenant is removed", body = Removed)))]
pub(super) async fn remove(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(name): PathParameter<String>,
) -> Result<Json<Removed>, Problem> {
    find(&state, &name).ok_or_else(none)?;
    tenants::remove_tenant(&state, name.clone(), &caller).await?;
    Ok(Json(Removed { tenant: name }))
}
