//! Orders of operators for nodes: checked here, and decided by the state machine.

use crate::agents::listing;
use crate::records::{CORES_MAX, bad_request};
use crate::state::ManagerState;
use crate::state::driver::unexpected_answer;
use hotlease_lease::agent::{OfferedCores, OfferedGpus};
use hotlease_lease::manager::{
    AgentProfile, ClusterAnswer, ClusterEvent, NodeOrder, NodeWish, OfferWish, OrderRequest, OrderToken,
};
use hotlease_net::Address;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    AgentInfo, CoresWanted, NodeInfo, NodeList, NodeOrder as Ordered, OfferWanted, OrderNodeReply, OrderNodeRequest,
};
use hotlease_wire::ids::AgentId;
use hotlease_wire::limits::{GPUS_PER_AGENT_MAX, ORDER_TOKEN_BYTES_MAX};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest notice that an agent accepts, milliseconds.
const WITHIN_MS_MAX: u64 = 7 * 24 * 3_600_000;
/// State of a node that has a wish and is not registered.
const AWAY: &str = "away";

/// Reason for which an order was not accepted.
#[derive(Debug)]
pub(crate) enum OrderRejection {
    /// The caller has used this token for another order.
    TokenUsed(String),
    Refused(Rejection),
}

impl From<Rejection> for OrderRejection {
    fn from(refusal: Rejection) -> Self {
        Self::Refused(refusal)
    }
}

impl From<OrderRejection> for Rejection {
    fn from(error: OrderRejection) -> Self {
        match error {
            OrderRejection::TokenUsed(what) => Self::BadRequest { what },
            OrderRejection::Refused(refusal) => refusal,
        }
    }
}

/// Checks the token of an order. Returns `None` if the caller sent none.
fn token(request: &OrderNodeRequest, by: &str) -> Result<Option<OrderToken>, Rejection> {
    let token = request.token.clone();
    if token.len() > ORDER_TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad_request(format!(
            "a token of an order has 1 to {ORDER_TOKEN_BYTES_MAX} visible ASCII characters"
        )));
    }
    let content = OrderNodeRequest {
        token: String::new(),
        ..request.clone()
    };
    let order = OrderToken {
        caller: by.to_owned(),
        token,
        content: blake3::hash(&content.encode_to_vec()).to_string(),
    };
    Ok(Some(order).filter(|order| !order.token.is_empty()))
}

/// Carries out an operator's order, or stores it if the node is away. Returns when the order is durable.
pub(crate) async fn order(
    state: &Arc<ManagerState>,
    request: OrderNodeRequest,
    by: &str,
) -> Result<OrderNodeReply, OrderRejection> {
    let token = token(&request, by)?;
    let at_ms = state.unix_ms();
    let by_ms = |within_ms: u64| at_ms + within_ms.min(WITHIN_MS_MAX);
    let order = match Ordered::try_from(request.order) {
        Ok(Ordered::Add) => NodeOrder::Add(offer(request.offer.unwrap_or_default(), by_ms)?),
        Ok(Ordered::Drain) => NodeOrder::Drain {
            by_ms: by_ms(request.within_ms),
        },
        Ok(Ordered::Resume) => NodeOrder::Resume,
        Ok(Ordered::Remove) => NodeOrder::Remove,
        Ok(Ordered::None) | Err(_) => return Err(bad_request("unknown order for a node").into()),
    };
    let known = {
        let machine = state.machine();
        let known = token.as_ref().and_then(|token| machine.cluster.known_order(token));
        known.map(|order| order.agent)
    };
    // If an order is repeated, its node may have left meanwhile; then the name of the node's host is not known.
    let (agent, host) = match known {
        Some(agent) => (agent, host(state, agent)),
        None => find(state, &request.node)?,
    };
    tracing::info!(by, %agent, host, ?order, "an operator orders");
    let named = request.token;
    let order = OrderRequest {
        agent,
        order,
        token,
        at_ms,
    };
    let ask = |request| ClusterEvent::Order { request, order };
    match state.ask(None, ask).await? {
        (ClusterAnswer::Ordered { done }, _) => Ok(OrderNodeReply {
            agent: agent.to_string(),
            host,
            done,
        }),
        (ClusterAnswer::OtherOrder, _) => Err(OrderRejection::TokenUsed(format!(
            "the token {named:?} stands for another order, of the last hour; nothing was changed: repeat that order, or \
             give this one a token of its own"
        ))),
        (answer, _) => Err(unexpected_answer(&answer).into()),
    }
}

/// Name of an agent's host; empty: the agent is away.
fn host(state: &Arc<ManagerState>, agent: AgentId) -> String {
    let machine = state.machine();
    let known = machine.cluster.registry().agent(agent);
    known.map_or(String::new(), |(known, ..)| known.host.clone())
}

fn offer(asked: OfferWanted, by_ms: impl Fn(u64) -> u64) -> Result<OfferWish, Rejection> {
    if asked.cores.len() > CORES_MAX {
        return Err(bad_request("more cores than any host has"));
    }
    let named = asked.gpu_numbers.len();
    if asked.gpus.is_some_and(|gpus| gpus > GPUS_PER_AGENT_MAX) || named > GPUS_PER_AGENT_MAX as usize {
        return Err(bad_request("more GPUs than an agent offers"));
    }
    Ok(OfferWish {
        cores: match CoresWanted::try_from(asked.choice) {
            Ok(CoresWanted::CoresUnchanged) => OfferedCores::Unchanged,
            Ok(CoresWanted::CoresAll) => OfferedCores::All,
            Ok(CoresWanted::CoresCount) => OfferedCores::Count(asked.count),
            Ok(CoresWanted::CoresThese) => OfferedCores::These(asked.cores.into_iter().collect()),
            Err(_) => return Err(bad_request("unknown choice of cores")),
        },
        memory_bytes: Some(asked.memory_bytes).filter(|bytes| *bytes > 0),
        gpus: match asked.gpus_named {
            true => Some(OfferedGpus::These(asked.gpu_numbers.into_iter().collect())),
            false => asked.gpus.map(OfferedGpus::Count),
        },
        by_ms: by_ms(asked.within_ms),
    })
}

/// Finds the agent that an operator names: by its id (even if the agent is away), by a name in its certificate, or by
/// its host name.
fn find(state: &Arc<ManagerState>, name: &str) -> Result<(AgentId, String), Rejection> {
    if let Ok(id) = name.parse() {
        return Ok((id, host(state, id)));
    }
    let agents = state.agents();
    let certified = |record: &AgentProfile| {
        let address: Option<Address> = record.endpoint.parse().ok();
        record.owner == name || address.is_some_and(|address| address.host() == name)
    };
    let told = |record: &AgentProfile| record.host == name;
    let named: Vec<_> = agents.iter().filter(|(record, ..)| certified(record)).collect();
    let named = match named.is_empty() || name.is_empty() {
        true => agents.iter().filter(|(record, ..)| told(record)).collect(),
        false => named,
    };
    match named[..] {
        [(record, ..)] => Ok((record.id, record.host.clone())),
        [] => Err(bad_request(format!(
            "no node is called {name:?}; `hotlease admin node list` lists them, and one that is away is named \
             by its agent's id"
        ))),
        _ => {
            let ids: Vec<_> = named.iter().map(|(record, ..)| record.id.to_string()).collect();
            Err(bad_request(format!(
                "several agents are on {name:?}; name one by its id: {}",
                ids.join(", ")
            )))
        }
    }
}

/// Lists registered nodes, and nodes that are away and have a wish.
pub(crate) async fn list(state: &Arc<ManagerState>) -> NodeList {
    let leases: BTreeMap<String, u32> = {
        let answers = listing::ask_all(state, "").await;
        let counted = answers.into_iter().map(|(agent, status)| {
            let active = status.leases.iter().filter(|lease| lease.state == "active");
            (agent.to_string(), active.count() as u32)
        });
        counted.collect()
    };
    let mut agents: BTreeMap<String, AgentInfo> = listing::agents(state)
        .await
        .agents
        .into_iter()
        .map(|agent| (agent.id.clone(), agent))
        .collect();
    let now_ms = state.unix_ms();
    let (mut wishes, mut rejected): (BTreeMap<String, NodeWish>, BTreeMap<String, String>) = {
        let machine = state.machine();
        let cluster = &machine.cluster;
        let wishes = cluster.wishes();
        let rejected = cluster.rejected_orders();
        (
            wishes.map(|(agent, wish)| (agent.to_string(), wish.clone())).collect(),
            rejected
                .map(|(agent, why)| (agent.to_string(), why.to_string()))
                .collect(),
        )
    };
    for id in wishes.keys() {
        agents.entry(id.clone()).or_insert_with(|| AgentInfo {
            id: id.clone(),
            state: AWAY.into(),
            ..AgentInfo::default()
        });
    }
    let nodes = agents.into_iter().map(|(id, agent)| {
        let wish = wishes.remove(&id);
        let by_ms = wish.as_ref().and_then(|wish| wish.state.drained_by_ms);
        NodeInfo {
            leases: leases.get(&id).copied().unwrap_or(0),
            drained: by_ms.is_some(),
            drain_left_ms: by_ms.map_or(0, |by_ms| by_ms.saturating_sub(now_ms)),
            pending: wish.is_some_and(|wish| wish.number != agent.order),
            rejected: rejected.remove(&id).unwrap_or_default(),
            agent: Some(agent),
        }
    });
    NodeList { nodes: nodes.collect() }
}
