//! Direct leases: clients ask the agent for them, without a manager.
//!
//! An agent knows nothing of quotas, and a manager learns of such a lease only later, from its holder. So direct leases
//! are off unless the agent's operator says how many cores one tenant may hold by them.

use crate::isolation::caller::RequestOrigin;
use crate::node::{NodeSettings, NodeState};
use hotlease_lease::agent::GrantRequest;
use hotlease_net::CertificateRole;
use hotlease_net::grpc::PeerInfo;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::limits::{LABEL_BYTES_MAX, SLOTS_MAX, WORKERS_MAX};
use tonic::Request;
use tonic::transport::server::UdsConnectInfo;

/// Shortest and longest time to live, milliseconds: the manager's bounds.
const TTL_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// Party that asks for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A manager, which has checked the request and the tenant's quota.
    Manager,
    /// The client that will use the lease.
    Client,
}

/// Tenant that asks, according to its credentials; what the request says about it does not count.
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

/// Checks all bounds of a request, and puts the caller's own name on it.
pub(crate) fn check_request(
    identity: &NodeSettings,
    request: AcquireRequest,
    tenant: String,
) -> Result<AcquireRequest, Rejection> {
    if identity.direct.is_none() {
        return Err(Rejection::NotPermitted {
            what: "a lease from this agent itself; ask the manager, or start the agent with `--direct`".into(),
        });
    }
    let bad = |what: &str| Err(Rejection::BadRequest { what: what.into() });
    if !(1..=WORKERS_MAX).contains(&request.workers) || !(1..=SLOTS_MAX).contains(&request.slots_per_worker) {
        return bad("the number of workers or slots is 0 or over the limit");
    }
    if request.ttl_ms != 0 && !TTL_MS.contains(&request.ttl_ms) {
        return bad("the time to live must be from 100 ms to 1 h");
    }
    if request.spread_least > 0 {
        return bad("one agent spreads nothing: ask the manager");
    }
    if request.label.len() > LABEL_BYTES_MAX || request.label.chars().any(char::is_control) {
        return bad("the label is too long or holds control characters");
    }
    Ok(AcquireRequest { tenant, ..request })
}

/// Refuses a lease that would take one tenant over its limit of direct leases.
pub(crate) fn admit(identity: &NodeSettings, tables: &NodeState, asked: &GrantRequest) -> Result<(), Rejection> {
    let most = identity.direct.unwrap_or(0);
    let own = tables
        .leases
        .values()
        .filter(|lease| lease.terms.direct && lease.terms.tenant == asked.tenant);
    let held = own.filter_map(|lease| tables.book.active(lease.id).ok());
    let (held, held_gpus) = held.fold((0, 0), |(cores, gpus), lease| {
        (cores + lease.cores().len(), gpus + lease.gpus().len())
    });
    let wanted = asked.workers.saturating_mul(asked.slots_per_worker) as usize;
    let too_many = |what: &str, limit: u32| {
        Err(Rejection::TooMany {
            what: format!("{what} of one agent that a tenant holds without the manager"),
            limit: limit.into(),
        })
    };
    if held + wanted > most as usize {
        return too_many("cores", most);
    }
    let wanted_gpus = asked.workers.saturating_mul(asked.gpus) as usize;
    if wanted_gpus > 0 && held_gpus + wanted_gpus > identity.direct_gpus as usize {
        return too_many("GPUs", identity.direct_gpus);
    }
    Ok(())
}
