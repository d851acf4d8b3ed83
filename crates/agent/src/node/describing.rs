//! A lease as its client is told.

use super::Node;
use hotlease_lease::agent::{Lease, Sharing};
use hotlease_net::node_id;
use hotlease_wire::grpc::Grant;
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights};

impl Node {
    pub(super) fn describe(&self, lease: &Lease) -> Grant {
        let claims = Claims {
            version: CLAIMS_VERSION,
            lease: lease.id,
            tenant: lease.tenant.clone(),
            agent: self.identity.agent,
            boot: self.identity.boot,
            epoch: lease.epoch,
            attach_until_ms: lease.expires.as_millis() as u64,
            rights: Rights::HOLDER,
        };
        Grant {
            lease: lease.id.to_string(),
            agent: self.identity.agent.to_string(),
            token: self.key.mint(&claims),
            session_socket: self.identity.session_socket.display().to_string(),
            epoch: lease.epoch.0,
            ttl_ms: lease.ttl.as_millis() as u64,
            cores: lease.cores(),
            endpoint: self.endpoint(),
            boot: self.identity.boot.to_string(),
            node: node_id().map(|node| node.to_string()).unwrap_or_default(),
            places_per_core: match lease.sharing {
                Sharing::Exclusive => 0,
                Sharing::Shared => self.identity.sharing.places_per_core,
            },
            workers: lease.workers.len() as u32,
            others: Vec::new(),
        }
    }
}
