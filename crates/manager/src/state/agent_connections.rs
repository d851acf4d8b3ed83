//! Connections to the agents. Each agent has one channel, which is made at its first use. The most recently used
//! channels are kept. Agents of this node are reached over their sockets, others over TLS.

use hotlease_lease::manager::AgentProfile;
use hotlease_net::{Address, CertificateRole, Identity, grpc};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::ids::AgentId;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest response of an agent, bytes: its listing of all leases, workers and libraries.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Limit of kept connections. Up to [`AGENTS_MAX`](hotlease_lease::manager::AGENTS_MAX) agents hold connections to the
/// manager. As many connections from the manager to the agents would double the number of descriptors that the manager
/// needs, and most agents are asked nothing for long times.
const LINKS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not 0");

/// Connections to agents, by agent.
pub(crate) struct AgentConnections {
    /// Identity for connections to agents on other hosts.
    identity: Option<Arc<Identity>>,
    channels: Mutex<LruCache<AgentId, AgentConnection>>,
}

struct AgentConnection {
    address: String,
    client: AgentClient<Channel>,
}

impl AgentConnections {
    pub(crate) fn new(identity: Option<Arc<Identity>>) -> Self {
        Self {
            identity,
            channels: Mutex::new(LruCache::new(LINKS_MAX)),
        }
    }

    /// Client for an agent. Sends nothing; a channel that broke connects again when it is used.
    pub(crate) fn client(&self, agent: &AgentProfile) -> Result<AgentClient<Channel>, Rejection> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = channels.get(&agent.id)
            && link.address == agent.address
        {
            return Ok(link.client.clone());
        }
        let unusable = |why: String| Rejection::Unavailable {
            what: format!("agent {} at {}: {why}", agent.id, agent.address),
        };
        let channel = if agent.address.starts_with('/') {
            let endpoint = Endpoint::from_shared(format!("unix:{}", agent.address));
            let endpoint = endpoint.map_err(|error| unusable(error.to_string()))?;
            endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy()
        } else {
            let address: Address = agent.address.parse().map_err(Rejection::from)?;
            let identity = self.identity.clone();
            let identity = identity.ok_or_else(|| unusable("this manager serves only its own host".into()))?;
            grpc::channel(address, identity, CertificateRole::Agent)
        };
        let client = AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let link = AgentConnection {
            address: agent.address.clone(),
            client: client.clone(),
        };
        // A request under way over the evicted channel keeps that channel until its answer.
        channels.put(agent.id, link);
        Ok(client)
    }

    /// Drops the channel of an agent that is gone or has restarted.
    pub(crate) fn remove(&self, agent: AgentId) {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.pop(&agent);
    }
}

/// Waits at most `limit` for an agent's response; returns the response, or the reason for which there is none.
pub(crate) async fn answer<T>(
    agent: AgentId,
    limit: Duration,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Rejection> {
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(grpc::refusal(status)),
        Err(_) => Err(Rejection::Timeout {
            what: format!("agent {agent}"),
            after_ms: limit.as_millis() as u64,
        }),
    }
}
