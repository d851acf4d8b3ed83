//! State of the manager.

use super::problem::Problem;
use crate::agents::listing;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// State of the manager.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    /// Version of hotlease.
    version: String,
    /// Process id of the manager.
    pid: u32,
    /// Time since the manager started, milliseconds.
    uptime_ms: u64,
    /// Number of agents that are not gone.
    agents: u32,
    /// Number of running leases.
    leases: u32,
}

/// Describes the manager.
#[utoipa::path(get, path = "/v1/info", operation_id = "get_info", tag = "manager",
    responses((status = 200, description = "State of the manager", body = Info)))]
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
