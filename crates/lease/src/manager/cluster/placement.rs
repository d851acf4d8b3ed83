//! Getting a lease: the agents are asked one after the other.
//!
//! The registry only orders the candidates. Its figures are as old as the last report; whether cores are
//! free, the agent alone knows.

use super::orders::Wished;
use super::{Asked, Cluster, Then, refuse};
use crate::manager::{Action, AskId, Capacity, Granted, LeaseNote, Need, Release, RequestId, Write};
use hotlease_wire::ids::{AgentId, LeaseId};
use hotlease_wire::{EndReason, Refusal};
use std::collections::VecDeque;

/// A request for a lease.
#[derive(Debug)]
pub(super) struct Placement {
    tenant: String,
    label: String,
    need: Need,
    candidates: VecDeque<AgentId>,
    anybody: bool,
    /// Some agent takes leases at all.
    serving: bool,
    /// The largest figures of agents that have no room; they know better than the registry.
    full: Option<Capacity>,
    /// Another reason, of the agent asked last.
    other: Option<Refusal>,
}

impl Placement {
    /// Goes on to the next agent, except where that one would say the same.
    fn add(&mut self, refusal: Refusal) -> Result<(), Refusal> {
        match refusal {
            Refusal::NoCapacity { free, offered, .. } | Refusal::NoPlaces { free, offered, .. } => {
                let most = self.full.get_or_insert_default();
                most.free = most.free.max(free);
                most.offered = most.offered.max(offered);
            }
            Refusal::BadRequest { .. } => return Err(refusal),
            refusal => self.other = Some(refusal),
        }
        Ok(())
    }

    fn sum_up(self, registered: Capacity) -> Refusal {
        match (self.full, self.other) {
            _ if !self.anybody => Refusal::NoAgent,
            _ if !self.serving => Refusal::Unavailable {
                what: "every node is being given back, or offers no cores; see `hotlease agents`".into(),
            },
            (None, Some(other)) => other,
            (full, _) => {
                let capacity = full.unwrap_or(registered);
                let (free, offered) = (capacity.free, capacity.offered.max(registered.offered));
                match self.need {
                    Need::Cores(asked) => Refusal::NoCapacity { asked, free, offered },
                    Need::Places(asked) => Refusal::NoPlaces { asked, free, offered },
                }
            }
        }
    }
}

impl Cluster {
    pub(super) fn acquire(
        &mut self,
        request: RequestId,
        tenant: String,
        label: String,
        need: Need,
        actions: &mut Vec<Action>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let takes = |agent: &AgentId| self.may_serve(*agent);
        let candidates = self.registry.candidates(need).into_iter().filter(takes);
        let any = Need::Cores(0);
        let placement = Placement {
            tenant,
            label,
            need,
            candidates: candidates.collect(),
            serving: self.registry.candidates(any).iter().any(takes),
            anybody: self.reachable().next().is_some(),
            full: None,
            other: None,
        };
        self.placements.insert(request, placement);
        self.ask_next(request, actions);
    }

    fn ask_next(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(placement) = self.placements.get_mut(&request) else {
            return;
        };
        // Somebody may have ordered a node back since the list was made.
        let wishes = &self.wishes;
        let serves = |agent: &AgentId| wishes.get(agent).is_none_or(Wished::may_serve);
        placement.candidates.retain(serves);
        if let Some(agent) = placement.candidates.pop_front() {
            let ask = self.ask(Asked::Grant { request, agent });
            actions.push(Action::AskGrant { ask, agent, request });
        } else if let Some(placement) = self.placements.remove(&request) {
            self.holdings.unreserve(request);
            let registered = self.registry.capacity(placement.need);
            refuse(request, placement.sum_up(registered), actions);
        }
    }

    pub(super) fn not_granted(
        &mut self,
        request: RequestId,
        agent: AgentId,
        refusal: Refusal,
        actions: &mut Vec<Action>,
    ) {
        let left = match refusal {
            Refusal::NoCapacity { free, .. } => Some(Need::Cores(free)),
            Refusal::NoPlaces { free, .. } => Some(Need::Places(free)),
            _ => None,
        };
        if let Some(left) = left {
            self.registry.full(agent, left);
        }
        let Some(placement) = self.placements.get_mut(&request) else {
            return;
        };
        match placement.add(refusal) {
            Ok(()) => self.ask_next(request, actions),
            Err(refusal) => {
                self.placements.remove(&request);
                self.holdings.unreserve(request);
                refuse(request, refusal, actions);
            }
        }
    }

    /// Writes the new lease down, so that it is listed and can be released before the first report that
    /// names it.
    pub(super) fn granted(&mut self, ask: AskId, granted: Granted, actions: &mut Vec<Action>) {
        let Some(Asked::Grant { request, agent }) = self.asks.remove(&ask) else {
            return;
        };
        // A run that is over cannot keep what it granted.
        if self.is_replaced(agent, granted.boot) {
            let what = format!("agent {agent} was started again just now");
            return self.not_granted(request, agent, Refusal::Unavailable { what }, actions);
        }
        let Some(placement) = self.placements.remove(&request) else {
            return;
        };
        let Granted {
            lease,
            boot,
            epoch,
            cores,
        } = granted;
        self.registry.granted(agent, placement.need);
        let tenant = placement.tenant.clone();
        let amount = self.holdings.reserved(request);
        let note = LeaseNote {
            agent,
            boot,
            tenant: placement.tenant,
            label: placement.label,
            epoch,
            cores,
            memory_bytes: amount.memory_bytes,
        };
        let noted = super::reports::Noted {
            agent,
            boot,
            active: vec![super::reports::Active {
                lease,
                epoch,
                tenant: tenant.clone(),
                amount,
            }],
            over: Vec::new(),
        };
        let then = Then::Granted {
            request,
            ask,
            noted,
            lease,
            tenant,
        };
        self.commit(agent, vec![Write::PutLease { lease, note }], then, actions);
    }

    /// A lease that cannot be handed out: if this does not reach the agent, it expires.
    pub(super) fn give_back(
        &mut self,
        agent: AgentId,
        lease: LeaseId,
        tenant: String,
        actions: &mut Vec<Action>,
    ) {
        let ask = self.ask(Asked::GiveBack);
        let release = Release {
            lease,
            tenant,
            reason: EndReason::Released,
        };
        actions.push(Action::AskEnd { ask, agent, release });
    }
}
