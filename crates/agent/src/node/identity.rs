//! Fixed settings of a node.

use crate::batch::follower::NodeParts;
use crate::data::image_transfer::ImageSender;
use crate::data::images::Images;
use crate::data::swap::SwapOptions;
use crate::isolation::caller::Tenants;
use crate::isolation::reach::Grants;
use crate::isolation::sandboxes::Sandboxes;
use crate::leases::sharing::SharingTerms;
use crate::node::lifetime::Lifetime;
use hotlease_lease::LeaseBounds;
use hotlease_net::Address;
use hotlease_wire::ids::{AgentId, BootId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Settings that are fixed for one run of an agent.
pub(crate) struct NodeSettings {
    /// Identifier of the agent.
    pub agent: AgentId,
    /// Identifier of this run.
    pub boot: BootId,
    /// Address that the manager connects to: the gRPC socket, or the endpoint if the manager is on another host.
    pub address: String,
    /// Address at which it serves other hosts.
    pub endpoint: Option<Address>,
    /// Tenants whose code may run here.
    pub tenants: Tenants,
    /// Path of its session socket.
    pub session_socket: PathBuf,
    /// Name of the host, as its operator has set it.
    pub host: String,
    /// Cores that it may offer.
    pub usable: Vec<u32>,
    /// Cores that it offers unless its manager orders otherwise.
    pub cores: Vec<u32>,
    /// Memory that it offers unless its manager orders otherwise, bytes.
    pub memory_bytes: u64,
    /// Memory of the host, bytes.
    pub usable_memory_bytes: u64,
    /// GPUs that it has, and offers unless its manager orders otherwise.
    pub gpus: u32,
    /// Time to live of leases that ask for none.
    pub ttl: Duration,
    /// End of the node's own time, if it has one.
    pub lifetime: Option<Lifetime>,
    /// Bounds of leases.
    pub bounds: LeaseBounds,
    /// Terms of sharing cores.
    pub sharing: SharingTerms,
    /// Largest number of cores that one tenant may hold by direct leases; `None` if direct leases are not allowed.
    pub direct: Option<u32>,
    /// Largest number of GPUs that one tenant may hold by direct leases.
    pub direct_gpus: u32,
    /// Kinds of sandbox for its leases.
    pub sandboxes: Sandboxes,
    /// Access to the host that leases may ask for.
    pub grants: Grants,
    /// Environments that leases name.
    pub images: Arc<Images>,
    /// Limit on environments that are sent to other agents.
    pub sending: ImageSender,
    /// Storage for saved states of workers.
    pub swap: Option<Arc<SwapOptions>>,
}

impl NodeSettings {
    /// Resources of the node that the agent may use.
    pub fn parts(&self) -> NodeParts {
        let mut cores = self.usable.clone();
        cores.sort_by_key(|core| (self.cores.contains(core), *core));
        NodeParts {
            cores,
            memory_bytes: self.memory_bytes,
            gpus: self.gpus,
        }
    }
}
