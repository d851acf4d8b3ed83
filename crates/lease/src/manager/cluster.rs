//! The manager as a state machine: one step for each event.
//!
//! ```text
//! request ──► decide ──► AskGrant / AskEnd ──► agent's answer ──┐
//!                │                                              ▼
//!                └──────────────► Commit ──► Committed ──► Answer
//! ```
//!
//! No change is acknowledged before it is durable: an answer that acknowledges a change is returned by the step of the
//! change's [`ClusterEvent::Committed`]. Agents are added and removed in the order of their commits. Leases may be
//! written in any order, because a lease that is over stays over.
//!
//! *Which leases are still active.* Each whole report of an agent names all its active leases, and the last epoch that
//! the agent had assigned. A lease that is active in the durable state is over if its epoch is not later than that
//! epoch, and the report does not name it. A lease of a later epoch was granted while the report was on its way, so it
//! may be missing in the report.

mod direct_leases;
mod order_tokens;
mod orders;
mod placement;
mod rejections;
mod release;
mod reports;

use super::quota::Holdings;
use super::registry::{AgentState, RegistrationError, Registry};
use super::{
    AgentProfile, Amount, AskId, ClusterAction, ClusterAnswer, ClusterEvent, CommitId, LeaseNote, RequestId, StateWrite,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use order_tokens::KnownOrders;
pub use order_tokens::{ORDER_KNOWN_MS, ORDERS_KNOWN_MAX};
use orders::{GivenUpOrder, PendingOrder, RejectedOrder, WishRecord};
pub use placement::PARTS_MAX;
use placement::{PartWrites, Placement};
use release::PendingRelease;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest number of requests that wait for an answer at a time.
pub const REQUESTS_MAX: usize = 16 * 1024;
/// Time between two totals of running leases, over all leases: 2000 totals a second. A disk and a core can write ten
/// times as many, and at small sites every report still names every lease.
pub const RUNNING_TOTAL_EVERY: Duration = Duration::from_micros(500);
/// Largest number of leases that a tenant may have announced while no report of an agent has named them yet.
pub const UNSEEN_MAX: usize = 1024;

/// Purpose of a question to an agent.
#[derive(Debug)]
enum Question {
    Grant {
        request: RequestId,
        agent: AgentId,
        workers: u32,
    },
    End {
        request: RequestId,
    },
    Order(PendingOrder),
    /// Ask to end a lease that no client will use.
    GiveBack,
}

/// Continuation of a commit: the work that follows when its writes are durable.
#[derive(Debug)]
enum Continuation {
    Registered {
        request: RequestId,
        record: Box<AgentProfile>,
    },
    Heard {
        request: RequestId,
        noted: reports::LeaseChange,
    },
    Granted {
        request: RequestId,
        noted: reports::LeaseChange,
    },
    Released {
        request: RequestId,
        answer: ClusterAnswer,
        noted: reports::LeaseChange,
    },
    Wished(PendingOrder),
    OrderGivenUp(Box<GivenUpOrder>),
    Vouched {
        request: RequestId,
        noted: reports::LeaseChange,
        /// The vouched lease's entry in `Cluster::unseen`.
        unseen: (String, LeaseId),
    },
    /// No party waits for the write.
    NoReply,
}

/// The leases of one agent that are active in the durable state.
#[derive(Debug)]
struct AgentLeases {
    boot: BootId,
    leases: BTreeMap<LeaseId, Epoch>,
}

/// The manager of a cluster. Only the state that its commits wrote is durable: a new manager starts from the durable
/// state, and the agents' next reports supply the rest.
#[derive(Debug, Default)]
pub struct Cluster {
    registry: Registry,
    noted: BTreeMap<AgentId, AgentLeases>,
    holdings: Holdings,
    /// Leases that their holders have announced and that no report of an agent has named yet, by tenant.
    unseen: BTreeSet<(String, LeaseId)>,
    /// Agents of the durable state that have not registered again since the start, and when they are forgotten.
    awaited: BTreeMap<AgentId, Duration>,
    placements: BTreeMap<RequestId, Placement>,
    part_writes: BTreeMap<RequestId, PartWrites>,
    releases: BTreeMap<RequestId, PendingRelease>,
    /// Operators' wishes for nodes.
    wishes: BTreeMap<AgentId, WishRecord>,
    /// The latest order that each node has rejected.
    rejected_orders: BTreeMap<AgentId, RejectedOrder>,
    /// Requests that wait for an order, by the order's agent and number.
    order_requests: BTreeMap<(AgentId, u64), Vec<RequestId>>,
    known_orders: KnownOrders,
    /// Number of questions under way that send an operator's wish to a node.
    orders_asked: usize,
    asks: BTreeMap<AskId, Question>,
    commits: BTreeMap<CommitId, Continuation>,
    /// Agents whose registration is being written, and the run that registers. Meanwhile the manager accepts no report
    /// of another run, because the writes for that report would follow the registration.
    registering: BTreeMap<AgentId, BootId>,
    /// Number of leases that were active in the durable state at the last tick.
    active: usize,
    last_ask: u64,
    last_commit: u64,
}

impl Cluster {
    /// Makes a manager that starts at `now` with this durable state: agents, and active leases.
    pub fn new(
        agents: impl IntoIterator<Item = AgentId>,
        leases: impl IntoIterator<Item = (LeaseId, LeaseNote)>,
        now: Duration,
    ) -> Self {
        let mut cluster = Self::default();
        for agent in agents {
            cluster.awaited.insert(agent, now + super::FORGOTTEN_AFTER);
        }
        for (lease, note) in leases {
            cluster.note(lease, &note);
        }
        cluster
    }

    /// The registered agents, and whether each still reports.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Leases that are active in the durable state.
    pub fn active_leases(&self) -> impl Iterator<Item = LeaseId> {
        self.noted.values().flat_map(|noted| noted.leases.keys().copied())
    }

    /// How often agents are to report the usage of active leases. The period grows with the number of these leases, so
    /// that the number of totals written each second stays the same. A lease that ends is reported at once.
    pub fn totals_every(&self) -> Duration {
        RUNNING_TOTAL_EVERY * u32::try_from(self.active).unwrap_or(u32::MAX)
    }

    /// Leases and amounts that a tenant holds, including requests under way.
    pub fn holdings_of(&self, tenant: &str) -> (u64, Amount) {
        self.holdings.of(tenant)
    }

    /// Tenant that holds an active lease.
    pub fn holder(&self, lease: LeaseId) -> Option<&str> {
        self.holdings.holder(lease)
    }

    /// Starts the numbers of challenges after this number, which no earlier manager must have reached.
    #[must_use]
    pub fn with_challenges_after(mut self, number: u64) -> Self {
        self.registry = self.registry.with_challenges_after(number);
        self
    }

    /// Number of requests that wait for an answer.
    pub fn requests(&self) -> usize {
        self.placements.len() + self.releases.len() + self.commits.len() + self.orders_asked
    }

    /// Applies an event that happened at `now`, and returns the actions to carry out. `now` must never decrease.
    pub fn step(&mut self, event: ClusterEvent, now: Duration) -> Vec<ClusterAction> {
        let mut actions = Vec::new();
        match event {
            ClusterEvent::Register { request, record, proof } => self.register(request, record, proof, &mut actions),
            ClusterEvent::Heartbeat { request, report } => self.hear(request, report, now, &mut actions),
            ClusterEvent::Acquire {
                request,
                wanted,
                allowance,
            } => {
                self.tick(now, &mut actions);
                let amount = wanted.spec.into();
                match self.holdings.reserve(request, &wanted.tenant, amount, &allowance) {
                    Ok(()) => self.acquire(request, wanted, now, &mut actions),
                    Err(refusal) => refuse(request, refusal, &mut actions),
                }
                if !self.placements.contains_key(&request) {
                    self.holdings.unreserve(request);
                }
            }
            ClusterEvent::Release {
                request,
                release,
                known,
            } => {
                self.tick(now, &mut actions);
                self.release(request, release, known, &mut actions);
            }
            ClusterEvent::Order { request, order } => {
                self.tick(now, &mut actions);
                self.order(request, order, &mut actions);
            }
            ClusterEvent::Ordered { ask, offering } => self.on_ordered(ask, offering, &mut actions),
            ClusterEvent::Vouch { request, lease, note } => self.vouch(request, lease, note, &mut actions),
            ClusterEvent::Granted { ask, granted } => self.on_granted(ask, granted, now, &mut actions),
            ClusterEvent::LeaseOver { ask, usage } => self.on_lease_over(ask, usage, &mut actions),
            ClusterEvent::Refused { ask, refusal } => match self.asks.remove(&ask) {
                Some(Question::Grant { request, agent, .. }) => {
                    self.on_not_granted((request, agent), refusal, now, &mut actions);
                }
                Some(Question::End { request }) => self.on_not_ended(request, refusal, &mut actions),
                Some(Question::Order(ordering)) => self.on_not_ordered(ask, ordering, refusal, &mut actions),
                // The lease will expire.
                Some(Question::GiveBack) | None => {}
            },
            ClusterEvent::Committed { commit } => {
                if let Some(then) = self.commits.remove(&commit) {
                    self.on_committed(then, now, &mut actions);
                }
            }
            ClusterEvent::NotCommitted { commit, refusal } => {
                if let Some(then) = self.commits.remove(&commit) {
                    self.on_not_committed(then, refusal, &mut actions);
                }
            }
            ClusterEvent::Tick => {
                self.tick(now, &mut actions);
                self.active = self.noted.values().map(|noted| noted.leases.len()).sum();
            }
        }
        actions
    }

    fn commit(
        &mut self,
        agent: AgentId,
        writes: Vec<StateWrite>,
        then: Continuation,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.last_commit += 1;
        let commit = CommitId(self.last_commit);
        self.commits.insert(commit, then);
        actions.push(ClusterAction::Commit { commit, agent, writes });
    }

    fn ask(&mut self, asked: Question) -> AskId {
        self.last_ask += 1;
        let ask = AskId(self.last_ask);
        self.asks.insert(ask, asked);
        ask
    }

    fn admit(&self) -> Result<(), Rejection> {
        if self.requests() < REQUESTS_MAX {
            return Ok(());
        }
        Err(Rejection::TooMany {
            what: "requests to the manager at a time".into(),
            limit: REQUESTS_MAX as u64,
        })
    }

    fn register(&mut self, request: RequestId, record: AgentProfile, proof: u64, actions: &mut Vec<ClusterAction>) {
        let (id, boot) = (record.id, record.boot);
        let admitted = self.admit().and_then(|()| {
            let doubtful = self.registry.is_over(boot) || self.has_other_run(id, boot);
            if doubtful && !self.registry.prove(id, boot, proof) {
                return Ok(Some(self.registry.challenge(id, boot)));
            }
            let admitted = self.registry.check_admission(id, boot);
            admitted.map(|()| None).map_err(not_registered)
        });
        match admitted {
            Ok(None) => {}
            Ok(Some(challenge)) => return answer(request, ClusterAnswer::Challenged { challenge }, actions),
            Err(refusal) => return refuse(request, refusal, actions),
        }
        self.registering.insert(record.id, record.boot);
        let writes = vec![StateWrite::PutAgent(record.clone())];
        let (agent, record) = (record.id, Box::new(record));
        self.commit(agent, writes, Continuation::Registered { request, record }, actions);
    }

    fn on_registered(
        &mut self,
        request: RequestId,
        record: AgentProfile,
        now: Duration,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.registering.remove(&record.id);
        let (id, boot) = (record.id, record.boot);
        if let Err(refusal) = self.registry.register(record.clone(), now) {
            // A later run of the agent was quicker. The report of that run overwrites what was written for this run.
            // Until then it does no harm: a new manager reads only the agent's id.
            return refuse(request, not_registered(refusal), actions);
        }
        self.awaited.remove(&id);
        let noted = self.noted.entry(id).or_insert_with(|| AgentLeases {
            boot,
            leases: BTreeMap::new(),
        });
        if noted.boot != boot {
            noted.boot = boot;
            for lease in std::mem::take(&mut noted.leases).into_keys() {
                self.free(lease);
            }
        }
        actions.push(ClusterAction::AgentJoined(record));
        self.check_wish(id, actions);
        answer(request, ClusterAnswer::Registered, actions);
    }

    /// Whether another run of this agent is known. The other run's leases end when this run registers, so a late
    /// registration of a dead run must not be accepted.
    fn has_other_run(&self, agent: AgentId, boot: BootId) -> bool {
        let registered = self.registry.agent(agent).map(|(record, ..)| record.boot);
        let registering = self.registering.get(&agent).copied();
        let noted = self.noted.get(&agent).map(|noted| noted.boot);
        [registered, registering, noted]
            .into_iter()
            .flatten()
            .any(|known| known != boot)
    }

    /// Whether this run of an agent is over, or will be over as soon as a registration is written.
    fn is_replaced(&self, agent: AgentId, boot: BootId) -> bool {
        self.registry.is_over(boot) || self.registering.get(&agent).is_some_and(|present| *present != boot)
    }

    fn on_committed(&mut self, then: Continuation, now: Duration, actions: &mut Vec<ClusterAction>) {
        match then {
            Continuation::Registered { request, record } => self.on_registered(request, *record, now, actions),
            Continuation::Heard { request, noted } => {
                self.see(&noted);
                self.apply(noted);
                answer(request, ClusterAnswer::HeartbeatAnswered { known: true }, actions);
            }
            Continuation::Granted { request, noted } => {
                self.apply(noted);
                self.on_part_written(request, None, actions);
            }
            Continuation::Vouched { request, noted, .. } => {
                self.apply(noted);
                answer(request, ClusterAnswer::Vouched, actions);
            }
            Continuation::Released {
                request,
                answer: reply,
                noted,
            } => {
                self.apply(noted);
                answer(request, reply, actions);
            }
            Continuation::Wished(ordering) => self.on_wish_durable(ordering, actions),
            Continuation::OrderGivenUp(given_up) => self.on_given_up(*given_up, actions),
            Continuation::NoReply => {}
        }
    }

    fn on_not_committed(&mut self, then: Continuation, refusal: Rejection, actions: &mut Vec<ClusterAction>) {
        match then {
            Continuation::Registered { request, record } => {
                self.registering.remove(&record.id);
                refuse(request, refusal, actions);
            }
            Continuation::Heard { request, .. } | Continuation::Released { request, .. } => {
                refuse(request, refusal, actions);
            }
            Continuation::Vouched { request, unseen, .. } => {
                self.unseen.remove(&unseen);
                refuse(request, refusal, actions);
            }
            Continuation::Wished(ordering) => self.on_wish_not_durable(ordering, refusal, actions),
            Continuation::OrderGivenUp(given_up) => self.on_not_given_up(*given_up, refusal, actions),
            Continuation::Granted { request, .. } => self.on_part_written(request, Some(refusal), actions),
            Continuation::NoReply => {}
        }
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<ClusterAction>) {
        let mut forgotten = self.registry.tick(now);
        let over: Vec<_> = self.awaited.iter().filter(|(_, until)| **until <= now).collect();
        forgotten.extend(over.into_iter().map(|(agent, _)| *agent));
        for agent in forgotten {
            self.awaited.remove(&agent);
            // An agent that is registering again is not forgotten.
            if !self.registering.contains_key(&agent) {
                self.remove(agent, actions);
            }
        }
    }

    /// Forgets an agent everywhere.
    fn remove(&mut self, agent: AgentId, actions: &mut Vec<ClusterAction>) {
        self.rejected_orders.remove(&agent);
        self.forget_leases(agent);
        actions.push(ClusterAction::AgentGone(agent));
        self.commit(
            agent,
            vec![StateWrite::RemoveAgent(agent)],
            Continuation::NoReply,
            actions,
        );
    }

    /// Forgets the leases of an agent: all of them are over.
    fn forget_leases(&mut self, agent: AgentId) {
        let noted = self.noted.remove(&agent);
        for lease in noted.into_iter().flat_map(|noted| noted.leases.into_keys()) {
            self.free(lease);
        }
    }

    /// Forgets a lease that is over.
    fn free(&mut self, lease: LeaseId) {
        self.mark_seen(lease);
        self.holdings.free(lease);
    }

    fn mark_seen(&mut self, lease: LeaseId) {
        if let Some(tenant) = self.holdings.holder(lease) {
            self.unseen.remove(&(tenant.to_owned(), lease));
        }
    }

    /// Agents that are not gone, and so can be asked.
    fn reachable(&self) -> impl Iterator<Item = AgentId> {
        let agents = self.registry.agents();
        agents
            .filter(|(_, state, _)| *state != AgentState::Gone)
            .map(|(record, ..)| record.id)
    }
}

fn not_registered(refusal: RegistrationError) -> Rejection {
    Rejection::Unavailable {
        what: refusal.to_string(),
    }
}

fn answer(request: RequestId, answer: ClusterAnswer, actions: &mut Vec<ClusterAction>) {
    actions.push(ClusterAction::Answer { request, answer });
}

fn refuse(request: RequestId, refusal: Rejection, actions: &mut Vec<ClusterAction>) {
    answer(request, ClusterAnswer::Refused(refusal), actions);
}

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod order_token_tests;
#[cfg(test)]
mod quota_tests;
#[cfg(test)]
mod rejections_tests;
#[cfg(test)]
mod tests;

#[cfg(test)]
mod spread_tests;
