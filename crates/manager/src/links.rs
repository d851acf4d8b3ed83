//! Connections to the agents: one channel each, made when first needed and kept.

use hotlease_lease::manager::AgentRecord;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::ids::AgentId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest answer of an agent: its listing of all leases, workers and libraries.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Links {
    /// At most one for each agent of the registry, which is bounded.
    channels: Mutex<HashMap<AgentId, Link>>,
}

struct Link {
    address: String,
    client: AgentClient<Channel>,
}

impl Links {
    /// The agent's client. Nothing is sent here; a channel that broke connects again when used.
    pub(crate) fn client(&self, agent: &AgentRecord) -> Result<AgentClient<Channel>, Refusal> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = channels.get(&agent.id)
            && link.address == agent.address
        {
            return Ok(link.client.clone());
        }
        let endpoint = Endpoint::from_shared(format!("unix:{}", agent.address)).map_err(|error| {
            Refusal::Unavailable {
                what: format!("agent {} at {}: {error}", agent.id, agent.address),
            }
        })?;
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy();
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
        Ok(Err(status)) => Err(Refusal::from(status)),
        Err(_) => Err(Refusal::Timeout {
            what: format!("agent {agent}"),
            after_ms: limit.as_millis() as u64,
        }),
    }
}
