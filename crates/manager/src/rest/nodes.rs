//! Nodes that operators and batch systems give to the site and take back.

use super::agents::Agent;
use super::extract::{
    JsonBody, Page, PageQuery, PathParameter, QueryParameters, RequestCaller, TokenHeader, deserialize_number,
};
use super::problem::Problem;
use crate::agents::nodes;
use crate::records::CORES_MAX;
use crate::state::ManagerState as Shared;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hotlease_lease::agent::{BadCoreChoice, CoreChoice};
use hotlease_wire::grpc::{CoresWanted, NodeInfo, NodeOrder, OfferWanted, OrderNodeReply, OrderNodeRequest};
use hotlease_wire::mirror;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

mirror! {
    /// A node, and the operator's wish for it.
    #[derive(Debug, Serialize, ToSchema)]
    pub(super) struct Node from(info: NodeInfo) {
        /// Agent of the node. If the node is away, only the id is known, and the state is `away`.
        agent: Agent = info.agent.unwrap_or_default().into(),
        /// Number of leases that hold cores of the node.
        leases: u32,
        /// Whether an operator wants it drained.
        drained: bool,
        /// Time until the deadline of the drain, milliseconds; 0: it has passed.
        drain_left_ms: u64,
        /// Whether the node has not carried out an order yet.
        pending: bool,
        /// Reason why the node rejects its latest order and carries out nothing of it; empty: it has not rejected it.
        rejected: String,
    }
}

/// List of nodes, ordered by the ids of their agents.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    /// Value of `after` for the next page; null: there are no more.
    next: Option<String>,
}

/// Result of an order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ordered {
    /// Agent of the node.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    agent: String,
    /// Name of the host; empty: the node is away.
    host: String,
    /// Whether the node has the order; false: the node is away, and gets the order when it comes.
    done: bool,
}

/// Cores that a node is to offer: a count, a list of their numbers, or a text: `"unchanged"`, `"all"`, `"none"`, or
/// numbers and ranges like `"0,2-5"`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "cores must be a count, a list of numbers, or a text: \"unchanged\", \"all\", \"none\", or like \"0,2-5\""
)]
pub(super) enum Cores {
    Text(String),
    Count(u32),
    These(Vec<u32>),
}

impl Cores {
    /// Converts the choice into the fields of an order. The error says what a text must be.
    fn wanted(self) -> Result<(CoresWanted, u32, Vec<u32>), Problem> {
        let count = |count: usize| match u32::try_from(count) {
            Ok(count) if count <= CORES_MAX as u32 => Ok((CoresWanted::CoresCount, count, Vec::new())),
            _ => Err(Problem::bad("more cores than any host has")),
        };
        match self {
            Self::Text(text) if text == "unchanged" => Ok((CoresWanted::CoresUnchanged, 0, Vec::new())),
            Self::Text(text) => match text
                .parse()
                .map_err(|bad: BadCoreChoice| Problem::bad(bad.to_string()))?
            {
                CoreChoice::All => Ok((CoresWanted::CoresAll, 0, Vec::new())),
                CoreChoice::NoCores => Ok((CoresWanted::CoresThese, 0, Vec::new())),
                CoreChoice::Count(cores) => count(cores),
                CoreChoice::List(cores) => Ok((CoresWanted::CoresThese, 0, cores)),
            },
            Self::Count(cores) => count(cores as usize),
            Self::These(cores) => Ok((CoresWanted::CoresThese, 0, cores)),
        }
    }
}

/// GPUs that a node is to offer: a count (the first ones of the node), a list of their numbers, or a text: `"none"`, or
/// numbers and ranges like `"0,2-5"`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "gpus must be a count, a list of numbers, or a text: \"none\", or like \"0,2-5\""
)]
pub(super) enum Gpus {
    Text(String),
    Count(u32),
    These(Vec<u32>),
}

impl Gpus {
    /// Converts the choice into the fields of an order: a count, or numbers.
    fn wanted(self) -> Result<(Option<u32>, Option<Vec<u32>>), Problem> {
        match self {
            Self::Count(count) => Ok((Some(count), None)),
            Self::These(gpus) => Ok((None, Some(gpus))),
            Self::Text(text) => match text.parse() {
                Ok(CoreChoice::Count(count)) => Ok((Some(u32::try_from(count).unwrap_or(u32::MAX)), None)),
                Ok(CoreChoice::List(gpus)) => Ok((None, Some(gpus))),
                Ok(CoreChoice::NoCores) => Ok((Some(0), None)),
                Ok(CoreChoice::All) | Err(_) => Err(Problem::bad(format!(
                    "{text:?} names no GPUs: write \"none\", a count like \"2\", or a list like \"0,2-5\""
                ))),
            },
        }
    }
}

/// Resources that a node is to offer from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Offer {
    /// Cores to offer (default: unchanged).
    cores: Option<Cores>,
    /// Memory to offer, bytes (default: what its agent offers by itself).
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "deserialize_number")]
    memory_bytes: Option<u64>,
    /// GPUs to offer (default: what its agent offers by itself).
    gpus: Option<Gpus>,
    /// Time until leases end if they hold resources that are no longer offered, milliseconds (default: at once).
    #[serde(default, deserialize_with = "deserialize_number")]
    within_ms: Option<u64>,
}

/// Drain of a node.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    /// Time after which the remaining leases end, milliseconds from now; a week at most.
    within_ms: u64,
}

/// Lists registered nodes, and nodes that are away but have an operator's wish.
#[utoipa::path(get, path = "/v1/nodes", operation_id = "list_nodes", tag = "nodes", params(PageQuery),
    responses((status = 200, description = "Nodes", body = Nodes)))]
pub(super) async fn list(
    State(state): State<Arc<Shared>>,
    QueryParameters(which): QueryParameters<PageQuery>,
) -> Result<Json<Nodes>, Problem> {
    let page = Page::of(which.limit, which.after.as_deref())?;
    let nodes = nodes::list(&state).await.nodes.into_iter();
    let nodes = nodes.map(Node::from).collect();
    let (nodes, next) = page.cut(nodes, which.after.as_deref(), |node: &Node| node.agent.id());
    Ok(Json(Nodes { nodes, next }))
}

/// Describes one node.
#[utoipa::path(get, path = "/v1/nodes/{node}", operation_id = "get_node", tag = "nodes",
    params(("node" = String, Path, description = "Id of the node's agent, or name of its host")),
    responses((status = 200, description = "The node", body = Node)))]
pub(super) async fn get(
    State(state): State<Arc<Shared>>,
    PathParameter(name): PathParameter<String>,
) -> Result<Json<Node>, Problem> {
    let nodes = nodes::list(&state).await.nodes.into_iter().map(Node::from);
    let mut found = nodes.filter(|node| node.agent.is_called(&name));
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(Json(node)),
        (None, _) => Err(Problem::not_found("no node is called so; see /v1/nodes")),
        (Some(_), Some(_)) => Err(Problem::bad("several agents are on this host; name one by its id")),
    }
}

/// Sets what a node offers, and lets it grant leases. A node that is away gets the order when it comes.
#[utoipa::path(put, path = "/v1/nodes/{node}/offer", operation_id = "offer_node", tag = "nodes",
    params(
        ("node" = String, Path, description = "Id of the node's agent, or name of its host"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
            description = "Token of the caller's choice: within an hour, a request with this token and the same order is \
                           answered again and not carried out again, and one with another order gets 409"),
    ),
    request_body = Offer,
    responses(
        (status = 200, description = "The node offers these resources", body = Ordered),
        (status = 202, description = "The node is away; its agent gets the order when it connects", body = Ordered),
    ))]
pub(super) async fn offer(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(node): PathParameter<String>,
    TokenHeader(token): TokenHeader,
    JsonBody(offer): JsonBody<Offer>,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    let unchanged = (CoresWanted::CoresUnchanged, 0, Vec::new());
    let (choice, count, cores) = offer.cores.map_or(Ok(unchanged), Cores::wanted)?;
    let (gpus, numbers) = offer.gpus.map_or(Ok((None, None)), Gpus::wanted)?;
    let request = OrderNodeRequest {
        node,
        order: NodeOrder::Add.into(),
        token,
        within_ms: 0,
        offer: Some(OfferWanted {
            choice: choice.into(),
            count,
            cores,
            memory_bytes: offer.memory_bytes.unwrap_or(0),
            within_ms: offer.within_ms.unwrap_or(0),
            gpus,
            gpus_named: numbers.is_some(),
            gpu_numbers: numbers.unwrap_or_default(),
        }),
    };
    order(&state, request, &caller.name).await
}

/// Takes a node back by a deadline: it grants no new leases, and running leases end by then.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", operation_id = "drain_node", tag = "nodes",
    params(
        ("node" = String, Path, description = "Id of the node's agent, or name of its host"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
            description = "Token of the caller's choice: within an hour, a request with this token and the same order is \
                           answered again and not carried out again, and one with another order gets 409"),
    ),
    request_body = Drain,
    responses(
        (status = 200, description = "The node drains", body = Ordered),
        (status = 202, description = "The node is away; its agent gets the order when it connects", body = Ordered),
    ))]
pub(super) async fn drain(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(node): PathParameter<String>,
    TokenHeader(token): TokenHeader,
    JsonBody(drain): JsonBody<Drain>,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    if i64::try_from(drain.within_ms).is_err() {
        return Err(Problem::bad("within_ms is more than a week"));
    }
    let request = OrderNodeRequest {
        node,
        order: NodeOrder::Drain.into(),
        within_ms: drain.within_ms,
        offer: None,
        token,
    };
    order(&state, request, &caller.name).await
}

/// Lets a drained or removed node grant leases again.
#[utoipa::path(post, path = "/v1/nodes/{node}/resume", operation_id = "resume_node", tag = "nodes",
    params(
        ("node" = String, Path, description = "Id of the node's agent, or name of its host"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
            description = "Token of the caller's choice: within an hour, a request with this token and the same order is \
                           answered again and not carried out again, and one with another order gets 409"),
    ),
    responses(
        (status = 200, description = "The node takes leases", body = Ordered),
        (status = 202, description = "The node is away; its agent gets the order when it connects", body = Ordered),
    ))]
pub(super) async fn resume(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(node): PathParameter<String>,
    TokenHeader(token): TokenHeader,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    let request = OrderNodeRequest {
        node,
        order: NodeOrder::Resume.into(),
        token,
        ..OrderNodeRequest::default()
    };
    order(&state, request, &caller.name).await
}

/// Takes a node back at once: invocations are aborted, and its leases end.
#[utoipa::path(delete, path = "/v1/nodes/{node}", operation_id = "remove_node", tag = "nodes",
    params(
        ("node" = String, Path, description = "Id of the node's agent, or name of its host"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
            description = "Token of the caller's choice: within an hour, a request with this token and the same order is \
                           answered again and not carried out again, and one with another order gets 409"),
    ),
    responses(
        (status = 200, description = "The node takes no leases, and its leases end", body = Ordered),
        (status = 202, description = "The node is away; its agent gets the order when it connects", body = Ordered),
    ))]
pub(super) async fn remove(
    State(state): State<Arc<Shared>>,
    RequestCaller(caller): RequestCaller,
    PathParameter(node): PathParameter<String>,
    TokenHeader(token): TokenHeader,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    let request = OrderNodeRequest {
        node,
        order: NodeOrder::Remove.into(),
        token,
        ..OrderNodeRequest::default()
    };
    order(&state, request, &caller.name).await
}

async fn order(
    state: &Arc<Shared>,
    request: OrderNodeRequest,
    by: &str,
) -> Result<(StatusCode, Json<Ordered>), Problem> {
    let OrderNodeReply { agent, host, done } = nodes::order(state, request, by).await?;
    let status = match done {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(Ordered { agent, host, done })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_on_the_command_line_and_an_error_says_what_they_may_be() {
        let read = |json: &str| serde_json::from_str::<Offer>(&format!("{{\"cores\": {json}}}"));
        for (json, wanted) in [
            ("\"unchanged\"", (CoresWanted::CoresUnchanged, 0, vec![])),
            ("\"all\"", (CoresWanted::CoresAll, 0, vec![])),
            ("\"none\"", (CoresWanted::CoresThese, 0, vec![])),
            ("2", (CoresWanted::CoresCount, 2, vec![])),
            ("\"2\"", (CoresWanted::CoresCount, 2, vec![])),
            ("[0, 2]", (CoresWanted::CoresThese, 0, vec![0, 2])),
            ("\"0-3\"", (CoresWanted::CoresThese, 0, vec![0, 1, 2, 3])),
        ] {
            let cores = read(json).ok().and_then(|offer| offer.cores).expect(json);
            assert_eq!(cores.wanted().ok(), Some(wanted), "{json}");
        }
        for bad in ["\"some\"", "\"0\"", "\"8193\"", "8193"] {
            let cores = read(bad).ok().and_then(|offer| offer.cores).expect(bad);
            assert!(cores.wanted().is_err(), "{bad}");
        }
        let error = read("true").map(|_| ()).map_err(|error| error.to_string());
        assert!(
            error.as_ref().is_err_and(|error| error.contains("\"0,2-5\"")),
            "{error:?}"
        );
    }

    #[test]
    fn gpus_are_a_count_or_named() {
        let read = |json: &str| serde_json::from_str::<Offer>(&format!("{{\"gpus\": {json}}}"));
        for (json, wanted) in [
            ("2", (Some(2), None)),
            ("0", (Some(0), None)),
            ("\"none\"", (Some(0), None)),
            ("\"2\"", (Some(2), None)),
            ("[1, 3]", (None, Some(vec![1, 3]))),
            ("[]", (None, Some(vec![]))),
            ("\"0,2-3\"", (None, Some(vec![0, 2, 3]))),
        ] {
            let gpus = read(json).ok().and_then(|offer| offer.gpus).expect(json);
            assert_eq!(gpus.wanted().ok(), Some(wanted), "{json}");
        }
        for bad in ["\"all\"", "\"some\"", "\"0\""] {
            let gpus = read(bad).ok().and_then(|offer| offer.gpus).expect(bad);
            assert!(gpus.wanted().is_err(), "{bad}");
        }
        assert!(read("-1").is_err());
    }
}
