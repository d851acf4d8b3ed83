//! Events of the manager, the actions that it orders, and its answers.

use super::{AgentOffer, AgentProfile, Allowance, Amount, NodeOrder, NodeWish};
use crate::ledger::FunctionTotals;
use crate::request::LeaseRequest;
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Rejection};

/// A request of a client or an agent that waits for an answer; numbered by the caller, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A question to an agent; numbered by the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// Writes that become durable together; numbered by the state machine in the order of its [`ClusterAction::Commit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// A lease as an agent reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReport {
    /// The lease's name.
    pub lease: LeaseId,
    /// The run of the agent that granted the lease: the reporting run, or an earlier run whose totals were found.
    pub boot: BootId,
    /// Tenant that holds the lease.
    pub tenant: String,
    /// The holder's label of the lease.
    pub label: String,
    /// Epoch at the grant.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// GPUs granted.
    pub gpus: u32,
    /// Usage so far, cumulative.
    pub usage: UsageTotals,
    /// The part of the usage that each function has: cumulative too, and not in every report.
    pub functions: FunctionTotals,
    /// Reason why the lease is over, in words; `None` while the lease is active.
    pub end_reason: Option<String>,
}

/// An agent's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReport {
    /// The reporting agent.
    pub agent: AgentId,
    /// The run of the agent.
    pub boot: BootId,
    /// Whether the report names every active lease; if not, it contains only totals that the agent owes.
    pub whole: bool,
    /// The last epoch that the agent had assigned when it wrote the report. A whole report names every active lease up
    /// to that epoch.
    pub epoch: Epoch,
    /// Cores that no lease holds.
    pub free_cores: u32,
    /// Free places for warm slots.
    pub free_places: u32,
    /// GPUs that no lease holds.
    pub free_gpus: u32,
    /// Spare workers in the agent's pool.
    pub pool: u32,
    /// Present offer of the agent.
    pub offering: AgentOffer,
    /// Whether the agent says goodbye.
    pub leaving: bool,
    /// All active leases if the report is whole, and the totals that the agent owes.
    pub leases: Vec<LeaseReport>,
}

/// A lease that an agent granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// The lease.
    pub lease: LeaseId,
    /// The run of the agent that granted it.
    pub boot: BootId,
    /// The lease's epoch.
    pub epoch: Epoch,
    /// The lease's cores.
    pub cores: Vec<u32>,
    /// Memory of all workers of the lease as the agent reports it, bytes: the requested memory, or their share of the
    /// node.
    pub memory_bytes: u64,
    /// Time of the question to the agent, milliseconds since 1970. The agent bills no time before it.
    pub granted_ms: u64,
}

/// A request to end a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndRequest {
    /// The lease.
    pub lease: LeaseId,
    /// Tenant that asks.
    pub tenant: String,
    /// Why the lease ends: released by its holder, or revoked.
    pub reason: EndReason,
    /// Whether the lease was never handed out. If so, no tenant pays for the lease, and no usage of it is reported.
    pub unused: bool,
}

/// A caller's name for an order. The order is carried out once, however often it is sent with this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderToken {
    /// Name of the caller; each caller has tokens of its own.
    pub caller: String,
    /// The token, of the caller's choice.
    pub token: String,
    /// Hash of the order, as text. A different order with the same token is refused.
    pub content: String,
}

impl OrderToken {
    /// Caller and token, which together name the order.
    pub fn name(&self) -> (&str, &str) {
        (&self.caller, &self.token)
    }
}

/// An operator's order for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRequest {
    /// Agent of the node.
    pub agent: AgentId,
    /// The order.
    pub order: NodeOrder,
    /// The caller's name for the order.
    pub token: Option<OrderToken>,
    /// Present time, milliseconds since 1970.
    pub at_ms: u64,
}

/// An order that is remembered by its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRecord {
    /// The token.
    pub token: OrderToken,
    /// Agent of the node.
    pub agent: AgentId,
    /// Number of the wish after the order.
    pub number: u64,
    /// Time of the order, milliseconds since 1970.
    pub at_ms: u64,
}

/// A lease in the durable state: where it was granted, and for which tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseNote {
    /// Agent that granted the lease.
    pub agent: AgentId,
    /// Run of the agent that granted the lease.
    pub boot: BootId,
    /// Tenant that holds the lease.
    pub tenant: String,
    /// The holder's label of the lease.
    pub label: String,
    /// Batch job that pays; empty if there is none.
    pub job: String,
    /// Epoch at the grant.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// Largest number of cores that the agent may bill, from the request and not from the agent.
    pub billable_cores: u32,
    /// Largest number of cores on which the agent may let the lease compute at the same time.
    pub busy_cores: u32,
    /// Memory of all workers, bytes; 0 if no limit was requested.
    pub memory_bytes: u64,
    /// GPUs of all workers.
    pub gpus: u32,
    /// Earliest time that the agent may bill, milliseconds since 1970.
    pub granted_ms: u64,
}

impl LeaseNote {
    /// Resources that are counted as held by the lease's tenant.
    pub(super) fn amount(&self) -> Amount {
        Amount {
            cores: self.cores.len() as u64,
            memory_bytes: self.memory_bytes,
            gpus: self.gpus.into(),
        }
    }
}

/// Event that is reported to the manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// An agent registers.
    Register {
        /// The request to answer.
        request: RequestId,
        /// The agent's description of itself.
        record: AgentProfile,
        /// The last challenge that was sent to this run; 0 if there was none.
        proof: u64,
    },
    /// An agent reports.
    Heartbeat {
        /// The request to answer.
        request: RequestId,
        /// The agent's report.
        report: AgentReport,
    },
    /// A client wants a lease.
    Acquire {
        /// The request to answer.
        request: RequestId,
        /// The requested lease.
        wanted: LeaseRequest,
        /// Resources that the tenant may hold.
        allowance: Allowance,
    },
    /// A lease is to end.
    Release {
        /// The request to answer.
        request: RequestId,
        /// The lease, the tenant that asks, and the reason.
        release: EndRequest,
        /// The lease in the durable state, if it is there.
        known: Option<LeaseNote>,
    },
    /// An operator has an order for a node.
    Order {
        /// The request to answer.
        request: RequestId,
        /// The order.
        order: OrderRequest,
    },
    /// A holder reports a lease that its agent granted directly.
    Vouch {
        /// The request to answer.
        request: RequestId,
        /// The lease.
        lease: LeaseId,
        /// Description of the lease; its tenant is the caller.
        note: LeaseNote,
    },
    /// An agent granted a lease. Exactly one of `Granted`, `LeaseOver`, `Ordered` and `Refused` follows each question.
    Granted {
        /// The question.
        ask: AskId,
        /// The granted lease.
        granted: GrantedLease,
    },
    /// An agent ended a lease; its cores are free.
    LeaseOver {
        /// The question.
        ask: AskId,
        /// Total usage of the lease.
        usage: UsageTotals,
    },
    /// An agent has carried out its operator's wish.
    Ordered {
        /// The question.
        ask: AskId,
        /// Present offer of the agent.
        offering: AgentOffer,
    },
    /// An agent refused, or did not answer in time.
    Refused {
        /// The question.
        ask: AskId,
        /// Reason of the refusal.
        refusal: Rejection,
    },
    /// Writes are durable.
    Committed {
        /// The commit.
        commit: CommitId,
    },
    /// Writes were not made.
    NotCommitted {
        /// The commit.
        commit: CommitId,
        /// Reason of the failure.
        refusal: Rejection,
    },
    /// Time passed.
    Tick,
}

/// A change of the durable state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateWrite {
    /// An agent is registered in this run: all leases that it had in other runs are over and settled.
    PutAgent(AgentProfile),
    /// An agent is gone for good: its leases are over, and its totals are settled.
    RemoveAgent(AgentId),
    /// A lease was granted by this agent. A lease that is over stays over.
    PutLease {
        /// The lease.
        lease: LeaseId,
        /// Description of the lease.
        note: LeaseNote,
    },
    /// Leases were reported. Each total is merged by maximum, then the lease's state is noted. A lease that is over
    /// stays over.
    Report {
        /// The reporting agent.
        agent: AgentId,
        /// The reported leases.
        leases: Vec<LeaseReport>,
    },
    /// A lease is over, although no agent reported its end.
    EndLease {
        /// The lease.
        lease: LeaseId,
        /// The reason why the lease is known to be over.
        why: &'static str,
    },
    /// An operator's wish for a node. Written in the order of the commits.
    PutWish {
        /// Agent of the node.
        agent: AgentId,
        /// The wish.
        wish: NodeWish,
        /// The order that led to the wish, if it has a token. Written with the wish or not at all.
        order: Option<OrderRecord>,
    },
    /// The node has no wish any more.
    RemoveWish(AgentId),
    /// An order was not carried out: its token is forgotten.
    ForgetOrder {
        /// Agent of the node.
        agent: AgentId,
        /// Number of the order.
        number: u64,
    },
}

impl StateWrite {
    /// Whether the write changes the agent's record or its wish. Such a write is not reordered with other writes of the
    /// agent.
    pub fn changes_agent(&self) -> bool {
        matches!(
            self,
            Self::PutAgent(_)
                | Self::RemoveAgent(_)
                | Self::PutWish { .. }
                | Self::RemoveWish(_)
                | Self::ForgetOrder { .. }
        )
    }
}

/// Action to carry out, in the order returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAction {
    /// Make these writes durable. A write that changes an agent ([`StateWrite::changes_agent`]) must be made after all
    /// earlier writes for that agent and before all later writes for it.
    Commit {
        /// The commit's number.
        commit: CommitId,
        /// Agent whose state the writes change.
        agent: AgentId,
        /// The writes, in this order.
        writes: Vec<StateWrite>,
    },
    /// Ask an agent for this request's lease, or for a part.
    AskGrant {
        /// The question's number.
        ask: AskId,
        /// The agent to ask.
        agent: AgentId,
        /// The request that is served.
        request: RequestId,
        /// Number of the request's workers to ask for.
        workers: u32,
    },
    /// Ask an agent to end a lease.
    AskEnd {
        /// The question's number.
        ask: AskId,
        /// The agent to ask.
        agent: AgentId,
        /// The lease, the tenant that asks, and the reason.
        release: EndRequest,
    },
    /// Send an agent its operator's wish.
    AskOrder {
        /// The question's number.
        ask: AskId,
        /// The agent that gets the wish.
        agent: AgentId,
        /// The wish.
        wish: NodeWish,
    },
    /// Answer a request, which is then finished.
    Answer {
        /// The request.
        request: RequestId,
        /// The answer.
        answer: ClusterAnswer,
    },
    /// This agent is registered now, in this run.
    AgentJoined(AgentProfile),
    /// This agent left, or was forgotten.
    AgentGone(AgentId),
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAnswer {
    /// To `Register`: the agent is registered.
    Registered,
    /// To `Register`: this run of the agent seems to be over, or would replace another run. If the run is alive, it
    /// registers again with this number as proof.
    Challenged {
        /// The number to repeat, never 0.
        challenge: u64,
    },
    /// To `Heartbeat`: the reported totals are durable, or the agent must register first.
    HeartbeatAnswered {
        /// Whether this run of the agent is known; if not, the agent must register first.
        known: bool,
    },
    /// To `Acquire`: the client gets the leases that the agents granted to these questions.
    Granted {
        /// One question for each part.
        asks: Vec<AskId>,
    },
    /// To `Vouch`: the lease is durable.
    Vouched,
    /// To `EndRequest`: the lease is over.
    Released {
        /// Total usage of the lease.
        usage: UsageTotals,
    },
    /// To `Order`: the order is durable.
    Ordered {
        /// Whether the node has carried out the order. If `false`, the node is away, and gets the order when it
        /// registers again.
        done: bool,
    },
    /// To `Order`: the caller has used the token for a different order.
    OtherOrder,
    /// To any request: the refusal.
    Refused(Rejection),
}
