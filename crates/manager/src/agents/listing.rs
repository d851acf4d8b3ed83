//! Listings: collected from the agents at the time of the request, and merged.
//!
//! A listing does not wait for agents that do not answer in time, and asks no silent agents. These agents and their
//! leases are listed as last reported.

use crate::records::{CORES_MAX, agent_info, lease_info};
use crate::state::ManagerState;
use crate::state::agent_connections::answer;
use hotlease_lease::agent::Availability;
use hotlease_lease::manager::AgentProfile;
use hotlease_store::{LeaseRecord, LeaseState};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    AgentInfo, AgentList, AgentStatus, CodeList, Info, LeaseInfo, LeaseList, ListRequest, WorkerList,
};
use hotlease_wire::ids::AgentId;
use hotlease_wire::limits::{GPUS_PER_AGENT_MAX, TENANT_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Limit of agents that are asked at the same time.
const ASKED_AT_ONCE_MAX: usize = 64;
/// Time limit for an agent's status. The last report is less than a second old, so a longer wait is not worthwhile.
const STATE_WITHIN: Duration = Duration::from_millis(250);

/// Lists agents. On a small site agents are asked, so that the list includes leases granted just now. On a large site
/// agents are listed as they last reported.
pub(crate) async fn agents(state: &Arc<ManagerState>) -> AgentList {
    let limit = STATE_WITHIN.min(state.config.listing_timeout);
    let answers = ask_each(state, agents_of_small_site(state), limit, "").await;
    let mut answers: BTreeMap<AgentId, AgentStatus> = answers.into_iter().collect();
    let listed = state
        .agents()
        .into_iter()
        .map(|(record, heard, silent)| merge_status(agent_info(&record, heard, silent), answers.remove(&record.id)));
    AgentList {
        agents: listed.collect(),
    }
}

/// Agents to ask for a listing: on a small site all agents that serve; on a large site none, because the listing is
/// made from their last reports.
fn agents_of_small_site(state: &Arc<ManagerState>) -> Vec<AgentProfile> {
    let agents = Some(state.serving_agents());
    agents
        .filter(|agents| agents.len() <= ASKED_AT_ONCE_MAX)
        .unwrap_or_default()
}

/// Describes one agent, after asking it.
pub(crate) async fn agent(state: &Arc<ManagerState>, id: AgentId) -> Option<AgentInfo> {
    let mut agents = state.agents().into_iter();
    let (record, heard, silent) = agents.find(|(record, ..)| record.id == id)?;
    let limit = STATE_WITHIN.min(state.config.listing_timeout);
    let answer = ask(Arc::clone(state), record.clone(), limit, String::new()).await;
    Some(merge_status(
        agent_info(&record, heard, silent),
        answer.map(|(_, status)| status),
    ))
}

/// Merges an agent's answer, which is newer than its last heartbeat, into `info`. Id and address are not merged: they
/// come from the registration alone.
fn merge_status(mut info: AgentInfo, answer: Option<AgentStatus>) -> AgentInfo {
    if let Some(now) = answer.and_then(|status| status.agent) {
        if now.cores.len() <= CORES_MAX {
            info.cores = now.cores;
        }
        info.free_cores = now.free_cores.min(info.cores.len() as u32);
        info.free_places = now.free_places;
        if now.gpus as usize == now.gpu_numbers.len() && now.gpus <= GPUS_PER_AGENT_MAX {
            info.gpus = now.gpus;
            info.gpu_numbers = now.gpu_numbers;
        }
        info.free_gpus = now.free_gpus.min(info.gpus);
        info.pool = now.pool;
        if Availability::of_word(&now.state).is_some() {
            info.state = now.state;
        }
    }
    info
}

/// Lists leases. On a large site the list is made from the ledger, which is at most about a second old; on a small site
/// from the agents' answers.
pub(crate) async fn leases(state: &Arc<ManagerState>, request: ListRequest) -> Result<LeaseList, Rejection> {
    let tenant = checked(request)?;
    let answers = ask_each(
        state,
        agents_of_small_site(state),
        state.config.listing_timeout,
        &tenant,
    )
    .await;
    let noted = state
        .store(move |store| {
            let tenant = Some(tenant.as_str()).filter(|tenant| !tenant.is_empty());
            let leases = store.leases(tenant)?;
            let keys: Vec<_> = leases.iter().map(LeaseRecord::key).collect();
            let rows = store.rows(&keys)?.into_iter();
            let usage = rows.map(|row| row.map(|row| row.usage));
            Ok(leases.into_iter().zip(usage).collect::<Vec<_>>())
        })
        .await?;
    let answered: BTreeSet<AgentId> = answers.iter().map(|(agent, _)| *agent).collect();
    // An agent's answer overrides the ledger: a lease that is active in the ledger, but not in the answer, has ended.
    let noted = noted
        .into_iter()
        .filter(|(lease, _)| lease.state != LeaseState::Active || !answered.contains(&lease.agent))
        .map(|(lease, usage)| lease_info(lease, usage));
    let told = answers.into_iter().flat_map(|(_, status)| status.leases);
    let mut leases: BTreeMap<String, LeaseInfo> = noted.map(|lease| (lease.id.clone(), lease)).collect();
    leases.extend(told.map(|lease| (lease.id.clone(), lease)));
    Ok(LeaseList {
        leases: leases.into_values().collect(),
    })
}

pub(crate) async fn workers(state: &Arc<ManagerState>, request: ListRequest) -> Result<WorkerList, Rejection> {
    let answers = ask_all(state, &checked(request)?).await;
    let workers = answers.into_iter().flat_map(|(_, status)| status.workers);
    Ok(WorkerList {
        workers: workers.collect(),
    })
}

pub(crate) async fn functions(state: &Arc<ManagerState>, request: ListRequest) -> Result<CodeList, Rejection> {
    let answers = ask_all(state, &checked(request)?).await;
    let codes = answers.into_iter().flat_map(|(_, status)| status.codes);
    Ok(CodeList { codes: codes.collect() })
}

/// Describes the manager. Cheap enough for frequent requests, because no agent is asked.
pub(crate) async fn info(state: &Arc<ManagerState>) -> Result<Info, Rejection> {
    let leases = state.store(|store| store.active_leases());
    Ok(Info {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: state.now().as_millis() as u64,
        agents: state.reachable_agents() as u32,
        leases: leases.await? as u32,
    })
}

fn checked(request: ListRequest) -> Result<String, Rejection> {
    if request.tenant.len() > TENANT_BYTES_MAX {
        return Err(Rejection::TooMany {
            what: "bytes in the tenant's name".into(),
            limit: TENANT_BYTES_MAX as u64,
        });
    }
    Ok(request.tenant)
}

/// Status of every agent that answers in time, by agent.
pub(crate) async fn ask_all(state: &Arc<ManagerState>, tenant: &str) -> Vec<(AgentId, AgentStatus)> {
    ask_each(state, state.serving_agents(), state.config.listing_timeout, tenant).await
}

async fn ask_each(
    state: &Arc<ManagerState>,
    agents: Vec<AgentProfile>,
    limit: Duration,
    tenant: &str,
) -> Vec<(AgentId, AgentStatus)> {
    let mut agents = agents.into_iter();
    let mut asked = JoinSet::new();
    let mut answers = BTreeMap::new();
    for agent in agents.by_ref().take(ASKED_AT_ONCE_MAX) {
        asked.spawn(ask(Arc::clone(state), agent, limit, tenant.to_owned()));
    }
    while let Some(answer) = asked.join_next().await {
        if let Some(agent) = agents.next() {
            asked.spawn(ask(Arc::clone(state), agent, limit, tenant.to_owned()));
        }
        if let Ok(Some((agent, status))) = answer {
            answers.insert(agent, status);
        }
    }
    answers.into_iter().collect()
}

async fn ask(
    state: Arc<ManagerState>,
    agent: AgentProfile,
    limit: Duration,
    tenant: String,
) -> Option<(AgentId, AgentStatus)> {
    let asked = async {
        let mut client = state.links.client(&agent)?;
        let status = client.status(ListRequest { tenant });
        answer(agent.id, limit, status).await
    };
    match asked.await {
        Ok(status) => Some((agent.id, status)),
        Err(refusal) => {
            tracing::warn!(agent = %agent.id, %refusal, "agent left out of a listing");
            None
        }
    }
}
