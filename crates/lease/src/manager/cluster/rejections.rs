//! Rejections by agents of one request for a lease, and the refusal that the client gets.
//!
//! Clients with patience ask again after a refusal that may pass ([`Rejection::may_pass`]), and give up at once after
//! any other refusal. So if at least one agent may serve the request later, the client gets a refusal that may pass.
//! The order of the questions to agents makes no difference.

use crate::manager::registry::Registry;
use crate::manager::{Capacity, Demand, Need};
use crate::request::{LeaseRequest, LeaseSpec, PlacementSpread};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use hotlease_wire::rejection::objections::Objections;
use std::collections::BTreeSet;

/// Rejections of one request, collected from its agents.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// The largest figures of agents without room. These are newer than the registry's figures.
    full: Option<Capacity>,
    /// The largest figures of agents without GPUs.
    no_gpus: Option<Capacity>,
    /// Another reason that may pass, from the agent that was asked last.
    passing: Option<Rejection>,
    /// Agents that never serve the request, according to the client or to their own rejections.
    never: BTreeSet<AgentId>,
    objections: Objections,
}

impl Rejections {
    /// Makes the rejections of a request before any agent was asked. `without` are agents that the client has tried.
    pub fn new(without: BTreeSet<AgentId>) -> Self {
        Self {
            never: without,
            ..Self::default()
        }
    }

    /// Whether it is known that this agent never serves the request.
    pub fn is_never(&self, agent: &AgentId) -> bool {
        self.never.contains(agent)
    }

    /// Records an agent's rejection. Returns the agent's free cores, places or GPUs, if a lack of them is the reason.
    pub fn add(&mut self, agent: AgentId, name: impl FnOnce() -> String, refusal: Rejection) -> Option<u32> {
        let most = match refusal {
            Rejection::NoGpus { .. } => &mut self.no_gpus,
            _ => &mut self.full,
        };
        match refusal {
            Rejection::NoCapacity { free, offered, .. }
            | Rejection::NoPlaces { free, offered, .. }
            | Rejection::NoGpus { free, offered, .. } => {
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

    /// Whether no agent could serve the request, now or later.
    fn is_for_ever(&self, wanted: &LeaseRequest, registry: &Registry, serves: impl Fn(&AgentId) -> bool) -> bool {
        let may_later = self.full.is_some() || self.no_gpus.is_some() || self.passing.is_some();
        if self.never.is_empty() || (may_later && matches!(wanted.spread, PlacementSpread::OneAgent)) {
            return false;
        }
        // Considers all agents, because on a large site only some agents are asked.
        let could = |agent: &AgentId| serves(agent) && !self.is_never(agent);
        let (workers, each) = match wanted.spread {
            PlacementSpread::OneAgent => (1, wanted.spec),
            PlacementSpread::Several { least } => (least.max(1), wanted.spec.with_workers(1)),
        };
        !registry.could_hold(workers, each.into(), could)
    }

    /// Whether agents would have room for `least` workers if these needed no GPUs.
    fn lacks_gpus(&self, spec: LeaseSpec, least: u32, registry: &Registry, serves: impl Fn(&AgentId) -> bool) -> bool {
        let each = LeaseSpec {
            gpus: 0,
            ..spec.with_workers(1)
        };
        spec.gpus > 0 && registry.could_hold(least.max(1), each.into(), serves)
    }

    /// Sums up the rejections of a request. `found` is the number of workers that agents granted, or for which they
    /// reported room. If no agent was asked, it is the number that fit according to the registry. `serves` returns
    /// whether the operator lets an agent grant leases.
    pub fn sum_up(
        &self,
        (wanted, found): (&LeaseRequest, u32),
        registry: &Registry,
        serves: impl Fn(&AgentId) -> bool,
    ) -> Rejection {
        let Demand { room, gpus } = wanted.spec.into();
        let (registered, registered_gpus) = (registry.capacity(room), registry.gpu_capacity(room));
        if self.is_for_ever(wanted, registry, &serves) {
            return self.objections.sum();
        }
        match (&self.full, &self.passing, wanted.spread) {
            (None, Some(passing), _) => passing.clone(),
            // No agent has rejected the request for lack of cores, so what every agent lacks for one more worker is
            // GPUs.
            (None, _, PlacementSpread::Several { least }) if self.lacks_gpus(wanted.spec, least, registry, &serves) => {
                let offered = self.no_gpus.unwrap_or(registered_gpus).offered;
                Rejection::NoGpus {
                    asked: wanted.spec.gpus,
                    free: 0,
                    offered: offered.max(registered_gpus.offered),
                }
            }
            (.., PlacementSpread::Several { least }) => Rejection::NotTogether {
                asked: least,
                // Agents may have reported room for more workers, and other leases may have taken that room since. So
                // the number is limited to less than the client asked for.
                found: found.min(least.saturating_sub(1)),
            },
            // The request lacks GPUs, unless an agent that has the GPUs has reported that it lacks cores.
            (full, ..) if gpus > 0 && (full.is_none() || registered_gpus.free < gpus) => {
                let capacity = self.no_gpus.unwrap_or(registered_gpus);
                Rejection::NoGpus {
                    asked: gpus,
                    free: capacity.free,
                    offered: capacity.offered.max(registered_gpus.offered),
                }
            }
            (full, ..) => {
                let capacity = full.unwrap_or(registered);
                let (free, offered) = (capacity.free, capacity.offered.max(registered.offered));
                match room {
                    Need::Cores(asked) => Rejection::NoCapacity { asked, free, offered },
                    Need::Places(asked) => Rejection::NoPlaces { asked, free, offered },
                }
            }
        }
    }
}
