//! Placement of a lease: agents are asked one after the other.
//!
//! The registry only orders the candidates. Its figures are as old as the last report; only the agent has the present
//! number of free cores.
//!
//! A request may be spread over several agents, each of which grants a lease of its own, a *part*. The client sends one
//! request and gets one answer: no part is written down, and no answer is sent, before the last part is granted. If
//! there are too few parts, or a part cannot be written down, all parts are given back.
//!
//! A part is held only if the request can be served. If no agent alone has room enough, the manager first finds out how
//! much room each agent has: it asks the agent for more than the agent can grant, and the refusal names the number of
//! workers that fit. No cores are held for these questions. Parts are requested once the agents together have room
//! enough.
//!
//! An agent that is asked and has no room reports to the holders of idle leases that room is wanted. So if all agents
//! together could not serve a request even without any leases, the manager asks none of them.

use super::orders::WishRecord;
use super::rejections::Rejections;
use super::{Cluster, Continuation, Question, answer, refuse};
use crate::manager::{
    AskId, ClusterAction, ClusterAnswer, EndRequest, GrantedLease, LeaseNote, Need, RequestId, StateWrite,
};
use crate::request::{LeaseRequest, PlacementSpread};
use hotlease_wire::ids::{AgentId, LeaseId};
use hotlease_wire::rejection::objections::node_name;
use hotlease_wire::{EndReason, Rejection};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Largest number of agents over which one request is spread.
pub const PARTS_MAX: usize = 64;
/// Largest number of questions for one request that is spread.
const ASKS_MAX: usize = 2 * PARTS_MAX;
/// Longest time for which agents are asked for one request: the client that waits for the answer gives up after 10 s,
/// and the parts that were granted first hold their cores meanwhile.
const ASKING_MAX: Duration = Duration::from_secs(8);

/// A request for a lease while agents are asked.
#[derive(Debug)]
pub(super) struct Placement {
    wanted: LeaseRequest,
    /// For a request for one agent: the agents that are still to be asked, best first.
    candidates: VecDeque<AgentId>,
    /// Whether any agent is reachable.
    reachable: bool,
    /// Whether any agent grants leases at all.
    serving: bool,
    rejections: Rejections,
    /// For a spread request: the agents that were asked, each with the number of workers for which it has room, if its
    /// rejection named that number.
    asked: BTreeMap<AgentId, Option<u32>>,
    /// Number of questions to agents.
    asks: usize,
    /// Time after which no further agent is asked.
    until: Duration,
    /// The parts granted so far.
    parts: Vec<GrantedPart>,
}

/// A lease that one agent granted for the request.
#[derive(Debug)]
struct GrantedPart {
    ask: AskId,
    agent: AgentId,
    workers: u32,
    granted: GrantedLease,
}

/// A request whose parts are being written down.
#[derive(Debug)]
pub(super) struct PartWrites {
    tenant: String,
    parts: Vec<(AskId, AgentId, LeaseId)>,
    unwritten: usize,
    failed: Option<Rejection>,
}

impl Placement {
    /// Records the rejection of one agent. Returns an error if the request must end, because every agent would reject
    /// it for the same reason.
    fn add(&mut self, agent: AgentId, name: impl FnOnce() -> String, refusal: Rejection) -> Result<(), Rejection> {
        if let Rejection::BadRequest { .. } = refusal {
            return Err(refusal);
        }
        let each = match refusal {
            Rejection::NoGpus { .. } => self.wanted.spec.gpus,
            _ => self.wanted.spec.slots_per_worker,
        };
        // The agent may have room for fewer workers: it is asked once more, for that number.
        if let Some(free) = self.rejections.add(agent, name, refusal)
            && let Some(room @ None) = self.asked.get_mut(&agent)
        {
            *room = Some(free / each.max(1));
        }
        Ok(())
    }

    fn granted_workers(&self) -> u32 {
        self.parts.iter().map(|part| part.workers).sum()
    }

    /// Number of workers for which the agents that were asked have room, as they reported.
    fn offered_workers(&self) -> u32 {
        let rooms = self.asked.values().flatten();
        rooms.fold(0, |sum, room| sum.saturating_add(*room))
    }
}

impl Cluster {
    pub(super) fn acquire(
        &mut self,
        request: RequestId,
        wanted: LeaseRequest,
        now: Duration,
        actions: &mut Vec<ClusterAction>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let takes = |agent: &AgentId| self.may_serve(*agent);
        let candidates = match wanted.spread {
            PlacementSpread::OneAgent => self.registry.candidates(wanted.spec),
            PlacementSpread::Several { .. } => Vec::new(),
        };
        let any = Need::Cores(0);
        let rejections = Rejections::new(wanted.without.clone());
        let could_serve = match wanted.spread {
            PlacementSpread::OneAgent => true,
            PlacementSpread::Several { least } => {
                let serves = |agent: &AgentId| takes(agent) && !rejections.is_never(agent);
                let each = wanted.spec.with_workers(1).into();
                self.registry.could_hold(least.max(1), each, serves)
            }
        };
        let candidates = candidates.into_iter().filter(takes);
        let placement = Placement {
            wanted,
            candidates: candidates.filter(|agent| !rejections.is_never(agent)).collect(),
            serving: self.registry.candidates(any).iter().any(takes),
            reachable: self.reachable().next().is_some(),
            rejections,
            asked: BTreeMap::new(),
            asks: 0,
            until: now + ASKING_MAX,
            parts: Vec::new(),
        };
        self.placements.insert(request, placement);
        match could_serve {
            true => self.ask_next(request, now, actions),
            false => self.settle(request, actions),
        }
    }

    /// Asks the next agent for workers that are missing. Settles the request if there is no agent to ask.
    fn ask_next(&mut self, request: RequestId, now: Duration, actions: &mut Vec<ClusterAction>) {
        let Some(placement) = self.placements.get_mut(&request) else {
            return;
        };
        // An operator may have drained a node since the list was made.
        let wishes = &self.wishes;
        let serves = |agent: &AgentId| wishes.get(agent).is_none_or(WishRecord::may_serve);
        let spec = placement.wanted.spec;
        let next = match placement.wanted.spread {
            PlacementSpread::OneAgent => {
                placement.candidates.retain(serves);
                placement.candidates.pop_front().map(|agent| (agent, spec.workers))
            }
            PlacementSpread::Several { least } => {
                let held = placement.granted_workers();
                let missing = spec.workers - held;
                let goes_on = missing > 0
                    && placement.parts.len() < PARTS_MAX
                    && placement.asks < ASKS_MAX
                    && now < placement.until;
                let Placement { asked, rejections, .. } = &*placement;
                let serves = |agent: &AgentId| serves(agent) && !rejections.is_never(agent);
                let share = |serves: &dyn Fn(&AgentId) -> bool| {
                    let each = spec.with_workers(1);
                    self.registry.share(missing, each, asked, serves)
                };
                let next = || match share(&serves) {
                    Some(next) if held > 0 || next.workers.max(placement.offered_workers()) >= least => {
                        Some((next.agent, next.workers))
                    }
                    _ => {
                        // Asks for more workers than the agent offers, so that its refusal names its room, but at most
                        // for the least number that the request accepts.
                        let next = share(&|agent: &AgentId| serves(agent) && !asked.contains_key(agent))?;
                        Some((next.agent, least.min(next.offered + 1)))
                    }
                };
                goes_on.then(next).flatten()
            }
        };
        let Some((agent, workers)) = next else {
            return self.settle(request, actions);
        };
        placement.asks += 1;
        // An agent that is asked for the second time is recorded as having no room, and gets no third question.
        let room = placement.asked.contains_key(&agent).then_some(0);
        placement.asked.insert(agent, room);
        let ask = self.ask(Question::Grant {
            request,
            agent,
            workers,
        });
        actions.push(ClusterAction::AskGrant {
            ask,
            agent,
            request,
            workers,
        });
    }

    pub(super) fn on_not_granted(
        &mut self,
        (request, agent): (RequestId, AgentId),
        refusal: Rejection,
        now: Duration,
        actions: &mut Vec<ClusterAction>,
    ) {
        match refusal {
            Rejection::NoCapacity { free, .. } => self.registry.note_full(agent, Need::Cores(free)),
            Rejection::NoPlaces { free, .. } => self.registry.note_full(agent, Need::Places(free)),
            Rejection::NoGpus { free, .. } => self.registry.note_no_gpus(agent, free),
            _ => {}
        }
        let Some(placement) = self.placements.get_mut(&request) else {
            return;
        };
        let registry = &self.registry;
        let host = || registry.agent(agent).map_or("", |(record, ..)| record.host.as_str());
        match placement.add(agent, || node_name(host(), agent), refusal) {
            Ok(()) => self.ask_next(request, now, actions),
            Err(refusal) => self.refuse_all(request, refusal, actions),
        }
    }

    pub(super) fn on_granted(
        &mut self,
        ask: AskId,
        granted: GrantedLease,
        now: Duration,
        actions: &mut Vec<ClusterAction>,
    ) {
        let Some(Question::Grant {
            request,
            agent,
            workers,
        }) = self.asks.remove(&ask)
        else {
            return;
        };
        // A grant of an earlier run of the agent is void, because the leases of a run end with the run. A grant of a
        // run that has not registered is given back: the manager cannot decide whether that run is the present run.
        // Even if it is, a late message of the registered run would end the leases of the granting run.
        let registered = self.registry.agent(agent).map(|(record, ..)| record.boot);
        let is_over = self.is_replaced(agent, granted.boot);
        if is_over || registered != Some(granted.boot) {
            if let Some(placement) = self.placements.get(&request).filter(|_| !is_over) {
                let tenant = placement.wanted.tenant.clone();
                self.give_back(agent, granted.lease, tenant, actions);
            }
            return self.on_not_granted((request, agent), replaced(agent), now, actions);
        }
        let Some(placement) = self.placements.get_mut(&request) else {
            return;
        };
        let part = placement.wanted.spec.with_workers(workers);
        self.registry.note_granted(agent, part);
        placement.parts.push(GrantedPart {
            ask,
            agent,
            workers,
            granted,
        });
        if placement.granted_workers() < placement.wanted.spec.workers {
            return self.ask_next(request, now, actions);
        }
        self.settle(request, actions);
    }

    /// Ends the questions to agents. Hands out the granted parts, or gives them back if they are too few.
    fn settle(&mut self, request: RequestId, actions: &mut Vec<ClusterAction>) {
        let Some(placement) = self.placements.get(&request) else {
            return;
        };
        let least = match placement.wanted.spread {
            PlacementSpread::OneAgent => placement.wanted.spec.workers,
            PlacementSpread::Several { least } => least,
        };
        // While the last agents were asked, the first agents may have been restarted.
        let lost = placement
            .parts
            .iter()
            .find(|part| self.is_replaced(part.agent, part.granted.boot));
        if let Some(lost) = lost {
            let refusal = replaced(lost.agent);
            return self.refuse_all(request, refusal, actions);
        }
        if placement.granted_workers() < least.max(1) {
            let refusal = self.sum_up(placement);
            return self.refuse_all(request, refusal, actions);
        }
        let Some(placement) = self.placements.remove(&request) else {
            return;
        };
        self.hand_out(request, placement, actions);
    }

    /// Returns the reason why there is no lease.
    fn sum_up(&self, placement: &Placement) -> Rejection {
        match placement {
            Placement { reachable: false, .. } => Rejection::NoAgent,
            Placement { serving: false, .. } => Rejection::Unavailable {
                what: "every node is being given back, or offers no cores; see `hotlease agents`".into(),
            },
            placement => {
                let serves = |agent: &AgentId| self.may_serve(*agent);
                let found = match placement.asks {
                    0 => self
                        .registry
                        .free_workers(placement.wanted.spec.with_workers(1).into(), serves),
                    _ => placement.granted_workers() + placement.offered_workers(),
                };
                let asked = (&placement.wanted, found);
                placement.rejections.sum_up(asked, &self.registry, serves)
            }
        }
    }

    /// Refuses a request, and gives back the parts that were granted for it.
    fn refuse_all(&mut self, request: RequestId, refusal: Rejection, actions: &mut Vec<ClusterAction>) {
        let Some(placement) = self.placements.remove(&request) else {
            return;
        };
        self.holdings.unreserve(request);
        for part in placement.parts {
            let tenant = placement.wanted.tenant.clone();
            self.give_back(part.agent, part.granted.lease, tenant, actions);
        }
        refuse(request, refusal, actions);
    }

    /// Writes the new leases down, so that they are listed and can be released before a report names them.
    fn hand_out(&mut self, request: RequestId, placement: Placement, actions: &mut Vec<ClusterAction>) {
        let parts = placement.parts.iter();
        let handing = PartWrites {
            tenant: placement.wanted.tenant.clone(),
            parts: parts.map(|part| (part.ask, part.agent, part.granted.lease)).collect(),
            unwritten: placement.parts.len(),
            failed: None,
        };
        self.part_writes.insert(request, handing);
        let wanted = placement.wanted;
        for GrantedPart {
            agent,
            granted,
            workers,
            ..
        } in placement.parts
        {
            let part = wanted.spec.with_workers(workers);
            let GrantedLease {
                lease,
                boot,
                epoch,
                cores,
                memory_bytes,
                granted_ms,
            } = granted;
            // The agent's memory figure is used, but at most the memory that it offers, and at least the requested
            // memory.
            let offered = self.registry.agent(agent).map_or(0, |(record, ..)| record.memory_bytes);
            let note = LeaseNote {
                agent,
                boot,
                tenant: wanted.tenant.clone(),
                label: wanted.label.clone(),
                job: wanted.job.clone(),
                epoch,
                billable_cores: part.billable_cores(&cores),
                busy_cores: part.busy_cores(),
                cores,
                memory_bytes: memory_bytes.min(offered).max(part.all_memory_bytes()),
                gpus: part.all_gpus(),
                granted_ms,
            };
            let noted = super::reports::LeaseChange {
                agent,
                boot,
                active: vec![super::reports::ActiveLease {
                    lease,
                    epoch,
                    tenant: wanted.tenant.clone(),
                    amount: note.amount(),
                }],
                ended: Vec::new(),
            };
            let then = Continuation::Granted { request, noted };
            self.commit(agent, vec![StateWrite::PutLease { lease, note }], then, actions);
        }
    }

    /// Notes that a part was written down, or could not be.
    pub(super) fn on_part_written(
        &mut self,
        request: RequestId,
        failed: Option<Rejection>,
        actions: &mut Vec<ClusterAction>,
    ) {
        let Some(handing) = self.part_writes.get_mut(&request) else {
            return;
        };
        handing.unwritten -= 1;
        if failed.is_some() {
            handing.failed = failed;
        }
        if handing.unwritten > 0 {
            return;
        }
        let Some(handing) = self.part_writes.remove(&request) else {
            return;
        };
        self.holdings.unreserve(request);
        let Some(refusal) = handing.failed else {
            let asks = handing.parts.into_iter().map(|(ask, ..)| ask).collect();
            return answer(request, ClusterAnswer::Granted { asks }, actions);
        };
        for (_, agent, lease) in handing.parts {
            self.give_back(agent, lease, handing.tenant.clone(), actions);
        }
        refuse(request, refusal, actions);
    }

    /// Asks the agent to end a lease that cannot be handed out. If the question does not reach the agent, the lease
    /// expires.
    fn give_back(&mut self, agent: AgentId, lease: LeaseId, tenant: String, actions: &mut Vec<ClusterAction>) {
        let ask = self.ask(Question::GiveBack);
        let release = EndRequest {
            lease,
            tenant,
            reason: EndReason::Released,
            unused: true,
        };
        actions.push(ClusterAction::AskEnd { ask, agent, release });
    }
}

pub(super) fn replaced(agent: AgentId) -> Rejection {
    Rejection::Unavailable {
        what: format!("agent {agent} was started again just now"),
    }
}
