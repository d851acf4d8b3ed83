//! How the manager is.

use super::problem::Problem;
use crate::listing;
use crate::state::State as Shared;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A manager.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    /// Of hotlease.
    version: String,
    /// Its process.
    pid: u32,
    /// Since it started, milliseconds.
    uptime_ms: u64,
    /// Agents that are heard.
    agents: u32,
    /// Leases that go on.
    leases: u32,
}

/// How the manager is.
#[utoipa::path(get, path = "/v1/info", operation_id = "get_info", tag = "manager",
    responses((status = 200, description = "How it is", body = Info)))]
pub(super) async fn info(State(state): State<Arc<Shared>>) -> Result<Json<Info>, Problem> {
    let info = listing::info(&state).await?;
    Ok(Json(Info {
        version: info.version,
        pid: info.pid,
        uptime_ms: info.uptime_ms,
        agents: info.agents,
        leases: info.leases,
    }))
}
