//! Agents: the daemons of the nodes.

use super::extract::{Page, PageQuery, PathParameter, QueryParameters};
use super::problem::Problem;
use crate::agents::listing;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use hotlease_wire::grpc::AgentInfo;
use hotlease_wire::ids::AgentId;
use hotlease_wire::mirror;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

mirror! {
    /// Daemon of a node.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Agent from(info: AgentInfo) {
        /// Identifier of the agent.
        #[schema(pattern = "^[0-9a-f]{16}$")]
        id: String,
        /// Name of its host.
        host: String,
        /// Identifier of the agent's run.
        boot: String,
        /// Address on which it serves managers: a socket of the manager's node, or `https://HOST:PORT`.
        address: String,
        /// Address on which it accepts sessions from other hosts; empty: none.
        endpoint: String,
        /// State: `serving`, `draining` and the like, or `suspected` or `gone` if it has been silent.
        state: String,
        /// Cores that it offers.
        cores: Vec<u32>,
        /// Number of offered cores that no lease holds.
        free_cores: u32,
        /// Memory that it offers, bytes.
        memory_bytes: u64,
        /// Number of GPUs that it offers.
        gpus: u32,
        /// Numbers of the GPUs that it offers.
        gpu_numbers: Vec<u32>,
        /// Number of offered GPUs that no lease holds.
        free_gpus: u32,
        /// Number of workers in its warm pool.
        pool: u32,
        /// Time since its last message, milliseconds.
        silent_ms: u64 = info.last_heartbeat_ms,
    }
}

impl Agent {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether this is the agent's id or the name of its host.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.id == name || (self.host == name && !name.is_empty())
    }
}

/// List of agents, ordered by id.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Agents {
    agents: Vec<Agent>,
    /// Value of `after` for the next page; null: there are no more.
    next: Option<String>,
}

/// Lists agents as they are now; one that does not answer is shown as it last reported.
#[utoipa::path(get, path = "/v1/agents", operation_id = "list_agents", tag = "nodes", params(PageQuery),
    responses((status = 200, description = "Agents", body = Agents)))]
pub(super) async fn list(
    State(state): State<Arc<Shared>>,
    QueryParameters(which): QueryParameters<PageQuery>,
) -> Result<Json<Agents>, Problem> {
    let page = Page::of(which.limit, which.after.as_deref())?;
    let agents = listing::agents(&state).await.agents;
    let agents = agents.into_iter().map(Agent::from).collect();
    let (agents, next) = page.cut(agents, which.after.as_deref(), |agent| &agent.id);
    Ok(Json(Agents { agents, next }))
}

/// Describes one agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", operation_id = "get_agent", tag = "nodes",
    params(("agent" = String, Path, description = "Id of the agent", pattern = "^[0-9a-f]{16}$")),
    responses((status = 200, description = "The agent", body = Agent)))]
pub(super) async fn get(
    State(state): State<Arc<Shared>>,
    PathParameter(id): PathParameter<String>,
) -> Result<Json<Agent>, Problem> {
    let unknown = || Problem::not_found("there is no agent of this id; see /v1/agents");
    let id: AgentId = id.parse().map_err(|_| unknown())?;
    let found = listing::agent(&state, id).await.ok_or_else(unknown)?;
    Ok(Json(found.into()))
}
