//! Connections to the agents: one channel each, made when first needed and kept. To agents of this machine
//! over their sockets, to others over TLS.

use hotlease_lease::manager::AgentRecord;
use hotlease_net::{Address, Identity, Role, grpc};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::ids::AgentId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest answer of an agent: its listing of all leases, workers and libraries.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// See the module.
pub(crate) struct Links {
    /// For agents on other hosts.
    identity: Option<Arc<Identity>>,
    /// At most one for each agent of the registry, which is bounded.
    channels: Mutex<HashMap<AgentId, Link>>,
}

struct Link {
    address: String,
    client: AgentClient<Channel>,
}

impl Links {
    pub(crate) fn new(identity: Option<Arc<Identity>>) -> Self {
        Self {
            identity,
            channels: Mutex::default(),
        }
    }

    /// The agent's client. Nothing is sent here; a channel that broke connects again when used.
    pub(crate) fn client(&self, agent: &AgentRecord) -> Result<AgentClient<Channel>, Refusal> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = channels.get(&agent.id)
            && link.address == agent.address
        {
            return Ok(link.client.clone());
        }
        let unusable = |why: String| Refusal::Unavailable {
            what: format!("agent {} at {}: {why}", agent.id, agent.address),
        };
        let channel = if agent.address.starts_with('/') {
            let endpoint = Endpoint::from_shared(format!("unix:{}", agent.address));
            let endpoint = endpoint.map_err(|error| unusable(error.to_string()))?;
            endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy()
        } else {
            let address: Address = agent.address.parse().map_err(Refusal::from)?;
            let identity = self.identity.clone();
            let identity = identity.ok_or_else(|| unusable("this manager serves one machine".into()))?;
            grpc::channel(address, identity, Role::Agent)
        };
        let client = AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let link = Link {
            address: agent.address.clone(),
            client: client.clone(),
        };
        channels.insert(agent.id, link);
        Ok(client)
    }

    /// The agent is gone, or was started again.
    pub(crate) fn drop_link(&self, agent: AgentId) {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.remove(&agent);
    }
}

/// What an agent answered within `limit`, or why it did not.
pub(crate) async fn answer<T>(
    agent: AgentId,
    limit: Duration,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Refusal> {
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(grpc::refusal(status)),
        Err(_) => Err(Refusal::Timeout {
            what: format!("agent {agent}"),
            after_ms: limit.as_millis() as u64,
        }),
    }
}
