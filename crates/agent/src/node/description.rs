//! Description of a lease for its client.

use super::Node;
use hotlease_lease::CoreUse;
use hotlease_lease::agent::CoreLease;
use hotlease_net::node_id;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::token::Rights;

impl Node {
    /// Refuses unless the lease is active: neither ending nor ended.
    pub fn check_active(&self, lease: LeaseId) -> Result<(), Rejection> {
        self.tables().book.active(lease).map(|_| ())
    }

    /// Address at which the agent serves other hosts; empty if it serves none.
    pub fn endpoint(&self) -> String {
        let endpoint = self.identity.endpoint.as_ref();
        endpoint.map(ToString::to_string).unwrap_or_default()
    }

    pub(super) fn describe(&self, lease: &CoreLease) -> Grant {
        Grant {
            lease: lease.id.to_string(),
            agent: self.identity.agent.to_string(),
            token: self.token(lease, Rights::HOLDER),
            session_socket: self.identity.session_socket.display().to_string(),
            epoch: lease.epoch.0,
            ttl_ms: lease.request.ttl.as_millis() as u64,
            cores: lease.cores(),
            endpoint: self.endpoint(),
            boot: self.identity.boot.to_string(),
            node: node_id().map(|node| node.to_string()).unwrap_or_default(),
            places_per_core: match lease.request.spec.sharing {
                CoreUse::Exclusive(_) => 0,
                CoreUse::Shared => self.identity.sharing.places_per_core,
            },
            workers: lease.workers.len() as u32,
            others: Vec::new(),
            gpus: lease.gpus(),
            reach: None,
            host: self.identity.host.clone(),
            sandbox: String::new(),
            memory_bytes: lease.request.spec.all_memory_bytes(),
        }
    }
}
