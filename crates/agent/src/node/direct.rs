//! Direct leases: clients ask the agent for them, without a manager.
//!
//! An agent has no quotas, and a direct lease is announced to a manager only later, by its holder. So direct leases are
//! off unless the agent's operator says how many cores one tenant may hold by them.

use crate::isolation::caller::RequestOrigin;
use crate::node::{NodeSettings, NodeState};
use hotlease_lease::LeaseRequest;
use hotlease_net::CertificateRole;
use hotlease_net::grpc::PeerInfo;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::AcquireRequest;
use tonic::Request;
use tonic::transport::server::UdsConnectInfo;

/// Party that asks for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A manager, which has checked the request and the tenant's quota.
    Manager,
    /// The client that will use the lease.
    Client,
}

/// Tenant that asks, according to its credentials. The tenant that the request names is ignored.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<(String, RequestOrigin), Rejection> {
    let not_permitted = |what: String| Rejection::NotPermitted { what };
    if let Some(PeerInfo(peer)) = request.extensions().get::<PeerInfo>() {
        return match (peer.role, &peer.tenant) {
            (CertificateRole::Client, Some(tenant)) => Ok((tenant.clone(), RequestOrigin::Remote)),
            _ => Err(not_permitted(format!(
                "leases are for clients with a tenant, and this is the certificate of the {peer}"
            ))),
        };
    }
    let local = request.extensions().get::<UdsConnectInfo>();
    let credentials = local.and_then(|local| local.peer_cred);
    let credentials = credentials.ok_or_else(|| not_permitted("a lease for a process without credentials".into()))?;
    Ok((format!("uid:{}", credentials.uid()), RequestOrigin::Local))
}

/// Refuses a request that this agent does not serve without a manager.
pub(crate) fn check_request(identity: &NodeSettings, message: &AcquireRequest) -> Result<(), Rejection> {
    if identity.direct.is_none() {
        return Err(Rejection::NotPermitted {
            what: "a lease from this agent itself; ask the manager, or start the agent with `--direct`".into(),
        });
    }
    if message.spread_least > 0 {
        return Err(Rejection::BadRequest {
            what: "one agent spreads nothing: ask the manager".into(),
        });
    }
    Ok(())
}

/// Refuses a lease that would take one tenant over its limit of direct leases.
pub(crate) fn admit(identity: &NodeSettings, tables: &NodeState, asked: &LeaseRequest) -> Result<(), Rejection> {
    let most = identity.direct.unwrap_or(0);
    let own = tables
        .leases
        .values()
        .filter(|lease| lease.terms.direct && lease.terms.request.tenant == asked.tenant);
    let held = own.filter_map(|lease| tables.book.active(lease.id).ok());
    let (held, held_gpus) = held.fold((0, 0), |(cores, gpus), lease| {
        (cores + lease.cores().len(), gpus + lease.gpus().len())
    });
    let wanted = asked.spec.all_slots() as usize;
    let too_many = |what: &str, limit: u32| {
        Err(Rejection::TooMany {
            what: format!("{what} of one agent that a tenant holds without the manager"),
            limit: limit.into(),
        })
    };
    if held + wanted > most as usize {
        return too_many("cores", most);
    }
    let wanted_gpus = asked.spec.all_gpus() as usize;
    if wanted_gpus > 0 && held_gpus + wanted_gpus > identity.direct_gpus as usize {
        return too_many("GPUs", identity.direct_gpus);
    }
    Ok(())
}
