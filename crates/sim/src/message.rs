//! What travels between nodes: the content of the real messages, without their encoding.

use hotlease_lease::agent::OfferedCores;
use hotlease_lease::manager::{AgentRecord, Offering, Release, Report, Spread};
use hotlease_wire::Refusal;
use hotlease_wire::ids::{BootId, Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

/// One connection of a client to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// The client.
    pub client: usize,
    /// Which run of it.
    pub run: u32,
    /// Which of its connections.
    pub number: u32,
}

/// A lease as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub tenant: String,
    pub workers: u32,
    /// Of each.
    pub cores: u32,
    /// GPUs for each of the cores.
    pub gpus: u32,
    /// Places on shared cores instead.
    pub shared: bool,
    pub spread: Spread,
    pub ttl: Duration,
}

/// A lease as it is granted; stands for the token too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub agent: usize,
    pub boot: BootId,
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub ttl: Duration,
    pub cores: Vec<u32>,
    pub tenant: String,
    /// Until when it opens sessions, on the agent's clock.
    pub until: Duration,
}

/// A request that is answered once; `call` is numbered by its sender.
#[derive(Debug, Clone)]
pub enum Request {
    /// Agent to manager.
    /// With the last challenge.
    Register(AgentRecord, u64),
    /// Agent to manager.
    Heartbeat(Report),
    /// Client to manager.
    Acquire(Wanted),
    /// Client to manager.
    Release(LeaseId),
    /// Manager or client to agent.
    Grant(Wanted),
    /// Manager to agent.
    End(Release),
    /// Manager to agent.
    Order(Ordered),
}

/// What an operator wants of a node, as the agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    pub number: u64,
    /// Given back within so long.
    pub drained_within: Option<Duration>,
    /// What it offers, and the notice for leases that hold more.
    pub offer: Option<(OfferedCores, Duration)>,
}

/// The answer to a request.
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
    /// One, or the parts of what was spread.
    Granted(Vec<Grant>),
    Released(UsageTotals),
    Ordered(Offering),
    Refused(Refusal),
}

/// Client to agent, in a session.
#[derive(Debug, Clone)]
pub enum Ask {
    Attach(Grant),
    Connect(WorkerIndex),
    Renew,
    Release,
    /// The connection is closed by its client, or by its client's kernel.
    Close,
}

/// Agent to client, in a session.
#[derive(Debug, Clone)]
pub enum Tell {
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
    /// The connection is closed by the agent, or by its kernel.
    Closed,
}

/// An invocation on its way to a slot.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// The client that wants its answer.
    pub session: Session,
    /// The lease that it was sent under: not in the real frame, which has the epoch for this.
    pub lease: LeaseId,
    pub boot: BootId,
    pub core: u32,
    /// Whose slot it is: a shared core has several.
    pub worker: WorkerIndex,
    pub epoch: Epoch,
    pub task: usize,
    pub attempt: u32,
    /// How long the function takes.
    pub takes: Duration,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Ran,
    /// The slot refused it because of its epoch.
    Stale,
    /// The slot refused it because another one has the core.
    Busy,
}

/// The answer of a slot.
#[derive(Debug, Clone, Copy)]
pub struct Reply {
    pub session: Session,
    pub task: usize,
    pub attempt: u32,
    /// What became of it.
    pub answer: Answer,
}

/// Anything that travels.
#[derive(Debug, Clone)]
pub enum Message {
    Request { call: u64, run: u32, request: Request },
    Response { call: u64, run: u32, response: Response },
    Ask { session: Session, ask: Ask },
    Tell { session: Session, tell: Tell },
    Frame(Frame),
    Reply(Reply),
}
