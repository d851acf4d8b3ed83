//! Messages between nodes: the contents of the real messages, without their encoding.

use hotlease_lease::LeaseRequest;
use hotlease_lease::agent::OfferedCores;
use hotlease_lease::manager::{AgentOffer, AgentProfile, AgentReport, EndRequest};
use hotlease_wire::Rejection;
use hotlease_wire::ids::{BootId, Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

/// A client's connection to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Number of the client.
    pub client: usize,
    /// Run of the client.
    pub run: u32,
    /// Number of the connection in this run.
    pub number: u32,
}

/// A granted lease; also stands for its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub agent: usize,
    pub boot: BootId,
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub ttl: Duration,
    pub cores: Vec<u32>,
    pub tenant: String,
    /// Latest time for opening sessions, on the agent's clock.
    pub until: Duration,
}

/// A request, which gets one response. The sender numbers its requests with `call`.
#[derive(Debug, Clone)]
pub enum Request {
    /// From agent to manager, with the answer to the last challenge.
    Register(AgentProfile, u64),
    /// From agent to manager.
    Heartbeat(AgentReport),
    /// From client to manager.
    Acquire(LeaseRequest),
    /// From client to manager.
    Release(LeaseId),
    /// From manager or client to agent.
    Grant(LeaseRequest),
    /// From manager to agent.
    End(EndRequest),
    /// From manager to agent.
    Order(AgentOrder),
}

/// An operator's order, as it is sent to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOrder {
    pub number: u64,
    /// Time within which the node is given back.
    pub drained_within: Option<Duration>,
    /// Offered cores, and the notice for leases that hold more.
    pub offer: Option<(OfferedCores, Duration)>,
}

/// Response to a request.
#[derive(Debug, Clone)]
pub enum Response {
    Challenged(u64),
    Registered {
        ledger: u64,
    },
    Heard {
        known: bool,
        totals_every: Duration,
    },
    /// One grant, or one for each part of a spread lease.
    Granted(Vec<Grant>),
    Released(UsageTotals),
    Ordered(AgentOffer),
    Refused(Rejection),
}

/// Message from client to agent, in a session.
#[derive(Debug, Clone)]
pub enum ClientMessage {
    Attach(Grant),
    Connect(WorkerIndex),
    Renew,
    Release,
    /// The client, or its kernel, closed the connection.
    Close,
}

/// Message from agent to client, in a session.
#[derive(Debug, Clone)]
pub enum AgentMessage {
    Attached {
        ttl: Duration,
    },
    Connected {
        worker: WorkerIndex,
        epoch: Epoch,
    },
    NotConnected {
        worker: WorkerIndex,
    },
    Renewed {
        ttl: Duration,
    },
    NotRenewed,
    WorkerDied {
        worker: WorkerIndex,
        epoch: Epoch,
    },
    LeaseEnded,
    /// The agent, or its kernel, closed the connection.
    Closed,
}

/// An invocation on its way to a slot.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// Session of the client that waits for the reply.
    pub session: Session,
    /// Lease under which the frame was sent. The real frame does not contain the lease, because the epoch serves this
    /// purpose.
    pub lease: LeaseId,
    pub boot: BootId,
    pub core: u32,
    /// Worker of the slot, because a shared core has several slots.
    pub worker: WorkerIndex,
    pub epoch: Epoch,
    pub task: usize,
    pub attempt: u32,
    /// Running time of the function.
    pub takes: Duration,
}

/// Result of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotResult {
    Ran,
    /// The slot refused the frame because of the frame's epoch.
    Stale,
    /// The slot refused the frame because another slot has the core.
    Busy,
}

/// Reply of a slot.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    pub session: Session,
    pub task: usize,
    pub attempt: u32,
    /// Result of the frame.
    pub answer: SlotResult,
}

/// Any message between nodes.
#[derive(Debug, Clone)]
pub enum Message {
    Request { call: u64, run: u32, request: Request },
    Response { call: u64, run: u32, response: Response },
    Ask { session: Session, ask: ClientMessage },
    Tell { session: Session, tell: AgentMessage },
    Frame(Frame),
    Reply(Reply),
}
