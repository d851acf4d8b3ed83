//! `hotlease agents`: a list of agents.

use clap::Args;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{AgentInfo, ListRequest};
use hotlease_wire::mirror;
use serde::Serialize;

/// List agents
///
/// With `--json`, prints an object for each agent: id, boot, address, session_socket, cores, free_cores,
/// memory_bytes, state (serving, draining, drained, standby, stopping, suspected, gone), last_heartbeat_ms (its
/// age), pool, endpoint (for clients on other hosts, or empty), gpus, free_gpus, places_per_core (warm slots on a
/// shared core; 0: no core is shared), free_places.
#[derive(Debug, Args)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    site: SiteArgs,
}

mirror! {
    #[derive(Serialize)]
    struct AgentRow from(info: AgentInfo) {
        id: String,
        boot: String,
        address: String,
        session_socket: String,
        cores: Vec<u32>,
        free_cores: u32,
        memory_bytes: u64,
        state: String,
        last_heartbeat_ms: u64,
        pool: u32,
        endpoint: String,
        places_per_core: u32,
        free_places: u32,
        gpus: u32,
        free_gpus: u32,
    }
}

pub(crate) fn carry_out(args: AgentsArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    let list = platform.request(async |client| client.list_agents(ListRequest::default()).await)?;
    let rows: Vec<AgentRow> = list.agents.into_iter().map(AgentRow::from).collect();
    let columns = "AGENT, STATE, CORES, >FREE, >WARM, >GPUS, >POOL, >MEMORY, >HEARD, ADDRESS";
    output.list(&rows, columns, "no agents; start one with `hotlease agent`", |row| {
        vec![
            row.id.clone(),
            row.state.clone(),
            quantity::cores(&row.cores),
            row.free_cores.to_string(),
            row.free_places.to_string(),
            quantity::free_of(row.free_gpus, row.gpus),
            row.pool.to_string(),
            quantity::bytes(row.memory_bytes),
            format!(
                "{} ago",
                quantity::nanoseconds(row.last_heartbeat_ms.saturating_mul(1_000_000))
            ),
            row.address.clone(),
        ]
    })
}
