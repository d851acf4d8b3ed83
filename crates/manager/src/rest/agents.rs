//! Agents: the daemons of the nodes.

use super::extract::{Asked, Named, Page, Which};
use super::problem::Problem;
use crate::listing;
use crate::state::State as Shared;
use axum::Json;
use axum::extract::State;
use hotlease_wire::grpc::AgentInfo;
use hotlease_wire::ids::AgentId;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A node's daemon.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Agent {
    /// Its id.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    id: String,
    /// Its machine's name.
    host: String,
    /// Which run of it.
    boot: String,
    /// Where it answers managers: a socket of this machine, or `https://HOST:PORT`.
    address: String,
    /// Where it takes sessions from other hosts; empty: nowhere.
    endpoint: String,
    /// What it does, or how long it has been silent: `serving`, `draining`, `suspected`, `gone` and the like.
    state: String,
    /// Cores that it offers.
    cores: Vec<u32>,
    /// How many of them no lease holds.
    free_cores: u32,
    /// Memory that it offers, bytes.
    memory_bytes: u64,
    /// GPUs that it offers: counted devices.
    gpus: u32,
    /// How many of them no lease holds.
    free_gpus: u32,
    /// Workers waiting in its warm pool.
    pool: u32,
    /// Since it was heard, milliseconds.
    silent_ms: u64,
}

impl Agent {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it has this id, or is on this host.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.id == name || (self.host == name && !name.is_empty())
    }
}

impl From<AgentInfo> for Agent {
    fn from(info: AgentInfo) -> Self {
        Self {
            id: info.id,
            host: info.host,
            boot: info.boot,
            address: info.address,
            endpoint: info.endpoint,
            state: info.state,
            cores: info.cores,
            free_cores: info.free_cores,
            memory_bytes: info.memory_bytes,
            gpus: info.gpus,
            free_gpus: info.free_gpus,
            pool: info.pool,
            silent_ms: info.last_heartbeat_ms,
        }
    }
}

/// Agents, by id.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Agents {
    agents: Vec<Agent>,
    /// Ask again with `after` set to it; null: that was all.
    next: Option<String>,
}

/// Agents, as they are now: one that does not answer is shown as it last reported.
#[utoipa::path(get, path = "/v1/agents", operation_id = "list_agents", tag = "nodes", params(Which),
    responses((status = 200, description = "Agents", body = Agents)))]
pub(super) async fn list(
    State(state): State<Arc<Shared>>,
    Asked(which): Asked<Which>,
) -> Result<Json<Agents>, Problem> {
    let page = Page::of(which.limit, which.after.as_deref())?;
    let agents = listing::agents(&state).await.agents;
    let agents = agents.into_iter().map(Agent::from).collect();
    let (agents, next) = page.cut(agents, which.after.as_deref(), |agent| &agent.id);
    Ok(Json(Agents { agents, next }))
}

/// One agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", operation_id = "get_agent", tag = "nodes",
    params(("agent" = String, Path, description = "Its id", pattern = "^[0-9a-f]{16}$")),
    responses((status = 200, description = "The agent", body = Agent)))]
pub(super) async fn get(
    State(state): State<Arc<Shared>>,
    Named(id): Named<String>,
) -> Result<Json<Agent>, Problem> {
    let unknown = || Problem::not_found("there is no agent of this id; see /v1/agents");
    let id: AgentId = id.parse().map_err(|_| unknown())?;
    let found = listing::agent(&state, id).await.ok_or_else(unknown)?;
    Ok(Json(found.into()))
}
