//! What a node is, and does not change.

use crate::caller::Tenants;
use crate::images::Images;
use crate::neighbours::Sending;
use crate::reach::Grants;
use crate::sandboxes::Sandboxes;
use crate::sharing::SharingTerms;
use crate::storage::Storage;
use crate::swap::SwapOptions;
use hotlease_net::Address;
use hotlease_wire::ids::{AgentId, BootId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What is fixed for one run of an agent.
pub(crate) struct Identity {
    /// The agent's name.
    pub agent: AgentId,
    /// This run.
    pub boot: BootId,
    /// What the manager connects to: its gRPC socket, or its endpoint where the manager is elsewhere.
    pub address: String,
    /// Where it serves other hosts.
    pub endpoint: Option<Address>,
    /// Whose code may run here.
    pub tenants: Tenants,
    /// Of its session socket.
    pub session_socket: PathBuf,
    /// Name of the machine, as operators say it.
    pub host: String,
    /// Cores that it may offer.
    pub usable: Vec<u32>,
    /// Cores that it offers unless its manager says otherwise.
    pub cores: Vec<u32>,
    /// Memory that it offers unless its manager says otherwise.
    pub memory_bytes: u64,
    /// GPUs that it has, and offers unless its manager says otherwise.
    pub gpus: u32,
    /// Time to live of leases that ask for none.
    pub ttl: Duration,
    /// How cores are shared.
    pub sharing: SharingTerms,
    /// Cores that one tenant may hold of those that clients ask for themselves; none: they may not.
    pub direct: Option<u32>,
    /// The same of GPUs.
    pub direct_gpus: u32,
    /// Which kinds of sandbox its leases get.
    pub sandboxes: Sandboxes,
    /// What of the host they may ask for.
    pub grants: Grants,
    /// And of object storage.
    pub storage: Storage,
    /// Environments that they name.
    pub images: Arc<Images>,
    /// Those that go to other agents.
    pub sending: Sending,
    /// Where states of workers are saved.
    pub swap: Option<Arc<SwapOptions>>,
}
