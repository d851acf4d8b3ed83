//! What a manager is told, and what it wants done.

use super::{AgentRecord, Allowance, NodeOrder, NodeWish, Offering, Wanted};
use crate::ledger::FunctionTotals;
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Refusal};
use std::collections::BTreeSet;

/// A request of a client or an agent that waits for an answer; numbered by the caller, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A question to an agent; numbered by the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// Writes that become durable together; numbered by the machine in the order in which it wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// A lease as an agent reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReport {
    /// Which.
    pub lease: LeaseId,
    /// The run of the agent that granted it: the reporting one, or an earlier one whose totals it found.
    pub boot: BootId,
    /// Who holds it.
    pub tenant: String,
    /// Its holder's word for it.
    pub label: String,
    /// At the grant.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// GPUs granted.
    pub gpus: u32,
    /// Used so far: cumulative.
    pub usage: UsageTotals,
    /// What its functions used of that: cumulative too, and not in every report.
    pub functions: FunctionTotals,
    /// Why it is over, in words; none while it goes on.
    pub over: Option<String>,
}

/// An agent's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Who.
    pub agent: AgentId,
    /// Which run of it.
    pub boot: BootId,
    /// It names every active lease; else only totals that the agent owes.
    pub whole: bool,
    /// The last epoch it had given when it wrote this: a whole one names every lease up to that one.
    pub epoch: Epoch,
    /// Cores that no lease holds.
    pub free_cores: u32,
    /// Places for warm slots that are left.
    pub free_places: u32,
    /// GPUs that no lease holds.
    pub free_gpus: u32,
    /// Workers waiting in its warm pool.
    pub pool: u32,
    /// What it offers.
    pub offering: Offering,
    /// It is a goodbye.
    pub leaving: bool,
    /// Its active leases if it is whole, and the totals that it owes.
    pub leases: Vec<LeaseReport>,
}

/// What an agent granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The lease.
    pub lease: LeaseId,
    /// The run of the agent that granted it.
    pub boot: BootId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its cores.
    pub cores: Vec<u32>,
}

/// Who shall end a lease, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which.
    pub lease: LeaseId,
    /// Who asks.
    pub tenant: String,
    /// Given back by its holder, or taken.
    pub reason: EndReason,
}

/// Where a lease was granted, and for whom: what the durable state knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseNote {
    /// Who granted it.
    pub agent: AgentId,
    /// In which run.
    pub boot: BootId,
    /// Who holds it.
    pub tenant: String,
    /// Its holder's word for it.
    pub label: String,
    /// At the grant.
    pub epoch: Epoch,
    /// Cores granted.
    pub cores: Vec<u32>,
    /// Memory of all its workers, bytes; 0: no bound was asked for.
    pub memory_bytes: u64,
    /// GPUs of all its workers.
    pub gpus: u32,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An agent introduces itself.
    Register {
        /// To be answered.
        request: RequestId,
        /// What it says.
        record: AgentRecord,
        /// The challenge that this run was answered last; 0: none.
        proof: u64,
    },
    /// An agent reports.
    Heartbeat {
        /// To be answered.
        request: RequestId,
        /// What it says.
        report: Report,
    },
    /// A client wants a lease.
    Acquire {
        /// To be answered.
        request: RequestId,
        /// Who.
        tenant: String,
        /// Its word for it.
        label: String,
        /// What.
        wanted: Wanted,
        /// Of none of these agents, which the client has tried in vain.
        without: BTreeSet<AgentId>,
        /// What the tenant may hold.
        allowance: Allowance,
    },
    /// A lease shall end.
    Release {
        /// To be answered.
        request: RequestId,
        /// Which, for whom, why.
        release: Release,
        /// What the durable state knows of it.
        known: Option<LeaseNote>,
    },
    /// An operator has an order for a node.
    Order {
        /// To be answered.
        request: RequestId,
        /// Whose.
        agent: AgentId,
        /// What.
        order: NodeOrder,
        /// Now, milliseconds since 1970.
        at_ms: u64,
    },
    /// The holder of a lease that its agent granted directly says so.
    Vouch {
        /// To be answered.
        request: RequestId,
        /// Which.
        lease: LeaseId,
        /// What it is; the tenant is who says so.
        note: LeaseNote,
    },
    /// An agent granted. Exactly one of this, `LeaseOver`, `Ordered` and `Refused` follows each question.
    Granted {
        /// The question.
        ask: AskId,
        /// What.
        granted: Granted,
    },
    /// An agent ended a lease; its cores are free.
    LeaseOver {
        /// The question.
        ask: AskId,
        /// What it used in all.
        usage: UsageTotals,
    },
    /// An agent has carried out what its operator wants of it.
    Ordered {
        /// The question.
        ask: AskId,
        /// What it offers now.
        offering: Offering,
    },
    /// An agent refused, or did not answer in time.
    Refused {
        /// The question.
        ask: AskId,
        /// Why.
        refusal: Refusal,
    },
    /// Writes are durable.
    Committed {
        /// Which.
        commit: CommitId,
    },
    /// Writes were not made.
    NotCommitted {
        /// Which.
        commit: CommitId,
        /// Why.
        refusal: Refusal,
    },
    /// Time passed.
    Tick,
}

/// A change of the durable state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// An agent is there in this run: whatever it had in others is over and settled.
    PutAgent(AgentRecord),
    /// An agent is gone for good: its leases are over, its totals are settled.
    RemoveAgent(AgentId),
    /// A lease was granted by this agent. A lease that is over stays over.
    PutLease {
        /// The lease.
        lease: LeaseId,
        /// What is known of it.
        note: LeaseNote,
    },
    /// A lease was reported: merge its total by maximum, then note its state. A lease that is over stays so.
    Report {
        /// By whom.
        agent: AgentId,
        /// What.
        leases: Vec<LeaseReport>,
    },
    /// A lease is over, without anybody having said so.
    EndLease {
        /// Which.
        lease: LeaseId,
        /// How that is known.
        why: &'static str,
    },
    /// What an operator wants of a node. In the order of the commits.
    PutWish {
        /// Of which.
        agent: AgentId,
        /// What.
        wish: NodeWish,
    },
    /// Nobody wants anything of it any more.
    RemoveWish(AgentId),
}

impl Write {
    /// Whether it changes what an agent is or shall be, and so keeps its place among the agent's writes.
    pub fn changes_agent(&self) -> bool {
        matches!(
            self,
            Self::PutAgent(_) | Self::RemoveAgent(_) | Self::PutWish { .. } | Self::RemoveWish(_)
        )
    }
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make these writes durable. Those that change what an agent is ([`Write::changes_agent`]) after all earlier ones of that agent and before all later ones.
    Commit {
        /// Its number.
        commit: CommitId,
        /// Whose they are.
        agent: AgentId,
        /// In this order.
        writes: Vec<Write>,
    },
    /// Ask an agent for the lease that this request wants.
    AskGrant {
        /// The question's number.
        ask: AskId,
        /// Whom.
        agent: AgentId,
        /// For which request.
        request: RequestId,
        /// How many of its workers.
        workers: u32,
    },
    /// Ask an agent to end a lease.
    AskEnd {
        /// The question's number.
        ask: AskId,
        /// Whom.
        agent: AgentId,
        /// Which, for whom, why.
        release: Release,
    },
    /// Have an agent do what its operator wants.
    AskOrder {
        /// The question's number.
        ask: AskId,
        /// Whom.
        agent: AgentId,
        /// What.
        wish: NodeWish,
    },
    /// Answer a request; nothing more will be said to it.
    Answer {
        /// Which.
        request: RequestId,
        /// What.
        answer: Answer,
    },
    /// This agent is there now, in this run.
    AgentJoined(AgentRecord),
    /// This agent left, or was forgotten.
    AgentGone(AgentId),
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To `Register`.
    Registered,
    /// To `Register`: this run seems to be over, or would replace another one. If it lives, it asks again with this as proof.
    Challenged {
        /// Never 0.
        challenge: u64,
    },
    /// To `Heartbeat`: what it carried is durable; or the agent is to register first.
    Heard {
        /// Whether the agent is known in this run.
        known: bool,
    },
    /// To `Acquire`: what the agents answered to these questions.
    Granted {
        /// One for each part.
        asks: Vec<AskId>,
    },
    /// To `Vouch`: it is written down.
    Vouched,
    /// To `Release`: over, and what it used in all.
    Released {
        /// The total.
        usage: UsageTotals,
    },
    /// To `Order`: it is durable.
    Ordered {
        /// And the node does it; false: it is away, and will be told when it comes.
        done: bool,
    },
    /// To any: no.
    Refused(Refusal),
}
