//! Requests that are spread over several agents, and grants for refused requests.

use crate::scenario::ClientPlan;
use hotlease_lease::manager::{AskId, RequestId};
use hotlease_lease::{CoreUse, LeaseRequest, LeaseSpec, PlacementSpread};
use hotlease_wire::ids::LeaseId;
use rand::RngExt;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time for which cores may stay granted for a refused request, once there are no faults. The requests to end
/// the lease are sent together with the refusal, and a message takes much less time. Without these requests, a lease
/// without a session would last longer than this limit, so the check would notice that they are missing.
pub const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// Leases that were granted for requests without an answer yet.
#[derive(Default)]
pub struct PendingGrants {
    requests: BTreeMap<AskId, RequestId>,
    leases: BTreeMap<RequestId, Vec<LeaseId>>,
}

impl PendingGrants {
    pub fn add_request(&mut self, ask: AskId, request: RequestId) {
        self.requests.insert(ask, request);
    }

    pub fn add_lease(&mut self, ask: AskId, lease: LeaseId) {
        if let Some(request) = self.requests.remove(&ask) {
            self.leases.entry(request).or_default().push(lease);
        }
    }

    /// Removes an answered request. Returns the leases that were granted for it.
    pub fn take_leases(&mut self, request: RequestId) -> Vec<LeaseId> {
        self.leases.remove(&request).unwrap_or_default()
    }
}

/// Lease that a client requests. A lease over several agents is sometimes requested as all or nothing, but never twice
/// in a row; `whole` says whether the last request was. Other requests accept any number of workers from one on. So
/// once there are no faults, a patient client gets a lease.
pub fn lease_request(
    plan: &ClientPlan,
    tenant: String,
    managed: bool,
    whole: &mut bool,
    random: &mut SmallRng,
) -> LeaseRequest {
    if managed {
        *whole = !*whole && random.random_bool(0.5);
    }
    let spread = managed && plan.spread_workers > 0 && !plan.shared;
    let exclusive = LeaseSpec::exclusive(if spread { plan.spread_workers } else { 1 }, plan.cores);
    let spec = LeaseSpec {
        gpus: plan.gpus * plan.cores,
        sharing: if plan.shared {
            CoreUse::Shared
        } else {
            exclusive.sharing
        },
        ..exclusive
    };
    LeaseRequest {
        spread: match spread {
            true if *whole => PlacementSpread::Several {
                least: plan.spread_workers,
            },
            true => PlacementSpread::Several { least: 1 },
            false => PlacementSpread::OneAgent,
        },
        ..LeaseRequest::new(tenant, spec, plan.ttl)
    }
}
