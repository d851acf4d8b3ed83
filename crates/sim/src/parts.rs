//! Requests that are spread over several agents, and what is left of those that are refused.

use crate::message::Wanted;
use crate::scenario::ClientPlan;
use hotlease_lease::manager::{AskId, RequestId, Spread};
use hotlease_wire::ids::LeaseId;
use rand::RngExt;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::time::Duration;

/// Once nothing fails, how long what was granted for a refused request may hold its cores: the questions to end it
/// leave with the refusal, and a message takes much less. Never attached to, it would be held for longer.
pub const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// What was granted for which request that is not answered yet.
#[derive(Default)]
pub struct Grants {
    requests: BTreeMap<AskId, RequestId>,
    leases: BTreeMap<RequestId, Vec<LeaseId>>,
}

impl Grants {
    pub fn asked(&mut self, ask: AskId, request: RequestId) {
        self.requests.insert(ask, request);
    }

    pub fn granted(&mut self, ask: AskId, lease: LeaseId) {
        if let Some(request) = self.requests.remove(&ask) {
            self.leases.entry(request).or_default().push(lease);
        }
    }

    /// The request is answered; what was granted for it.
    pub fn answered(&mut self, request: RequestId) -> Vec<LeaseId> {
        self.leases.remove(&request).unwrap_or_default()
    }
}

/// What a client asks a manager for. Over several agents it is all or nothing some times, but never twice in a row
/// (`whole`: whether it was the last time), and otherwise whatever there is: once nothing fails, patience gets a lease.
pub fn wanted(
    plan: &ClientPlan,
    tenant: String,
    managed: bool,
    whole: &mut bool,
    random: &mut SmallRng,
) -> Wanted {
    if managed {
        *whole = !*whole && random.random_bool(0.5);
    }
    let spread = managed && plan.spread_workers > 0 && !plan.shared;
    Wanted {
        tenant,
        workers: if spread { plan.spread_workers } else { 1 },
        cores: plan.cores,
        gpus: plan.gpus,
        shared: plan.shared,
        spread: match spread {
            true if *whole => Spread::Several {
                least: plan.spread_workers,
            },
            true => Spread::Several { least: 1 },
            false => Spread::OneAgent,
        },
        ttl: plan.ttl,
    }
}
