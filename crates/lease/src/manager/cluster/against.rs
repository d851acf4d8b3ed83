//! What agents have said against a request for a lease, and which of it the client is told.
//!
//! Clients with patience ask again after what may pass ([`Refusal::may_pass`]), and give up at once after what does not. So one agent
//! that may serve the request later is enough for the former, in whatever order they were asked.

use super::{Spread, Wanted};
use crate::manager::registry::Registry;
use crate::manager::{Capacity, Demand, Need};
use hotlease_wire::Refusal;
use hotlease_wire::ids::AgentId;
use hotlease_wire::objections::Objections;
use std::collections::BTreeSet;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Against {
    /// The largest figures of agents that have no room; they know better than the registry.
    full: Option<Capacity>,
    /// The same of agents that have no GPUs.
    no_gpus: Option<Capacity>,
    /// Another reason that may pass, of the agent asked last.
    passing: Option<Refusal>,
    /// Agents that never serve it: the client says so, or they.
    never: BTreeSet<AgentId>,
    objections: Objections,
}

impl Against {
    /// Before anybody was asked. `without`: what the client has tried.
    pub fn new(without: BTreeSet<AgentId>) -> Self {
        Self {
            never: without,
            ..Self::default()
        }
    }

    /// Whether it is known never to serve this.
    pub fn is_never(&self, agent: &AgentId) -> bool {
        self.never.contains(agent)
    }

    /// An agent of this name says so; how many cores, places or GPUs it has free, if that is what is missing.
    pub fn add(&mut self, agent: AgentId, name: impl FnOnce() -> String, refusal: Refusal) -> Option<u32> {
        let most = match refusal {
            Refusal::NoGpus { .. } => &mut self.no_gpus,
            _ => &mut self.full,
        };
        match refusal {
            Refusal::NoCapacity { free, offered, .. }
            | Refusal::NoPlaces { free, offered, .. }
            | Refusal::NoGpus { free, offered, .. } => {
                let most = most.get_or_insert_default();
                most.free = most.free.max(free);
                most.offered = most.offered.max(offered);
                return Some(free);
            }
            refusal if refusal.may_pass() => self.passing = Some(refusal),
            refusal => {
                self.never.insert(agent);
                self.objections.add(&name(), refusal);
            }
        }
        None
    }

    /// No agent that could serve it now or later is left.
    fn is_for_ever(&self, wanted: &Wanted, registry: &Registry, serves: impl Fn(&AgentId) -> bool) -> bool {
        let may_later = self.full.is_some() || self.no_gpus.is_some() || self.passing.is_some();
        if self.never.is_empty() || (may_later && matches!(wanted.spread, Spread::OneAgent)) {
            return false;
        }
        // Not only those that were asked: on a large site that is a part of them.
        let could = |agent: &AgentId| serves(agent) && !self.is_never(agent);
        let (workers, each) = match wanted.spread {
            Spread::OneAgent => (1, wanted.need(wanted.workers)),
            Spread::Several { least } => (least.max(1), wanted.need(1)),
        };
        !registry.could_hold(workers, each, could)
    }

    /// Of a request of which `found` workers were granted, where agents take leases.
    pub fn sum_up(
        &self,
        (wanted, found): (&Wanted, u32),
        registry: &Registry,
        serves: impl Fn(&AgentId) -> bool,
    ) -> Refusal {
        let Demand { room, gpus } = wanted.need(wanted.workers);
        let (registered, registered_gpus) = (registry.capacity(room), registry.gpu_capacity(room));
        if self.is_for_ever(wanted, registry, serves) {
            return self.objections.sum();
        }
        match (&self.full, &self.passing, wanted.spread) {
            (None, Some(passing), _) => passing.clone(),
            (.., Spread::Several { least }) => Refusal::NotTogether { asked: least, found },
            // Cores are what is short if some agent that has the GPUs says so.
            (full, ..) if gpus > 0 && (full.is_none() || registered_gpus.free < gpus) => {
                let capacity = self.no_gpus.unwrap_or(registered_gpus);
                Refusal::NoGpus {
                    asked: gpus,
                    free: capacity.free,
                    offered: capacity.offered.max(registered_gpus.offered),
                }
            }
            (full, ..) => {
                let capacity = full.unwrap_or(registered);
                let (free, offered) = (capacity.free, capacity.offered.max(registered.offered));
                match room {
                    Need::Cores(asked) => Refusal::NoCapacity { asked, free, offered },
                    Need::Places(asked) => Refusal::NoPlaces { asked, free, offered },
                }
            }
        }
    }
}
