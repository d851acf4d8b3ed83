//! The state machine of the cluster with the data of its driver: requests that wait, grants, and the channel of writes.

use crate::records::lease_note;
use crate::trace::Trace;
use hotlease_lease::manager::{AskId, Cluster, ClusterAnswer, CommitId, RequestId, StateWrite};
use hotlease_store::{LeaseState, StoreError};
use hotlease_wire::grpc::{AcquireRequest, Grant};
use hotlease_wire::ids::AgentId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Writes on their way to the store.
pub(crate) struct Commit {
    pub(crate) id: CommitId,
    pub(crate) agent: AgentId,
    pub(crate) writes: Vec<StateWrite>,
}

/// Answer of the state machine, with the grant if there is one: the grant of the first part, which contains those of
/// the other parts.
pub(crate) type MachineAnswer = (ClusterAnswer, Option<Box<Grant>>);

pub(super) struct PendingRequest {
    pub(super) answer: oneshot::Sender<MachineAnswer>,
    /// The message for agents, if the request is one for a lease.
    pub(super) message: Option<Arc<AcquireRequest>>,
    pub(super) trace: Option<Trace>,
}

/// The state machine and the data of its driver. Locked for moments only, never across an await.
pub(crate) struct ClusterDriver {
    pub(crate) cluster: Cluster,
    pub(super) waiting: HashMap<RequestId, PendingRequest>,
    /// Grants of agents that are not handed out yet.
    pub(super) grants: HashMap<AskId, Grant>,
    pub(super) last_request: u64,
    pub(super) commits: mpsc::UnboundedSender<Commit>,
}

impl ClusterDriver {
    /// Wraps a state machine. The channel of commits needs no limit: it is bounded by the requests.
    pub(crate) fn new(cluster: Cluster, commits: mpsc::UnboundedSender<Commit>) -> Self {
        Self {
            cluster,
            waiting: HashMap::new(),
            grants: HashMap::new(),
            last_request: 0,
            commits,
        }
    }
}

/// Builds the state machine from the durable state when a manager starts.
pub(crate) fn restore_cluster(store: &dyn hotlease_store::Store) -> Result<Cluster, StoreError> {
    let agents = store.agents()?.into_iter().map(|agent| agent.id);
    let leases = store.leases(None)?.into_iter();
    let active = leases.filter(|lease| lease.state == LeaseState::Active);
    let cluster = Cluster::new(
        agents,
        active.map(|lease| (lease.id, lease_note(lease))),
        Duration::ZERO,
    );
    Ok(cluster
        .with_wishes(store.wishes()?)
        .with_orders(store.orders()?)
        .with_challenges_after(rand::random()))
}
