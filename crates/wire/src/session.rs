//! Client ↔ agent, over the agent's session socket (Unix, `SOCK_SEQPACKET`).
//!
//! The agent checks the peer's credentials on accept. The first message must be [`SessionRequest::Attach`]. Replies are
//! sent in the order of the requests; [`SessionReply::WorkerDied`] and [`SessionReply::LeaseEnded`] are events that may
//! be sent between them. When the last session of a lease closes without [`SessionRequest::Release`], the lease ends
//! with `ClientGone`.

use crate::frame::InvocationId;
use crate::ids::{CodeHash, Epoch, LeaseId, SlotIndex, WorkerIndex};
use crate::rejection::{Cause, EndReason, Rejection};
use serde::{Deserialize, Serialize};

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Binds this session to a lease. Answer: [`SessionReply::Attached`].
    Attach {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// Token from the grant.
        token: Vec<u8>,
    },
    /// Loads a library into every worker of the lease, present and future. With a descriptor (a sealed memfd), loads
    /// these bytes. Without a descriptor, loads the library only if the node has it ([`Rejection::NeedCode`]
    /// otherwise). Answer: [`SessionReply::Loaded`].
    Load {
        /// Hash of the library.
        hash: CodeHash,
        /// Size of the library.
        size_bytes: u64,
    },
    /// Introduces this client to a worker, which is started again if it died. Answer: [`SessionReply::Connected`].
    Connect {
        /// The worker.
        worker: WorkerIndex,
        /// Whether the client's channels will go over a fabric. If so, workers that wait for the next leases load the
        /// library for fabrics in advance.
        over_fabric: bool,
    },
    /// Postpones the expiry. Answer: [`SessionReply::Renewed`].
    Renew,
    /// Ends the lease. Answer: [`SessionReply::LeaseEnded`], after the workers are gone.
    Release,
    /// Lends slots to peers. Answer: [`SessionReply::Delegated`].
    Delegate {
        /// The slots; at least one.
        places: Vec<SlotPlace>,
        /// Time limit of the delegation; 0: as long as the lease lasts.
        within_ms: u64,
    },
    /// Takes lent slots back. Answer: [`SessionReply::Revoked`], also if the delegation is over already.
    Revoke {
        /// The delegation.
        delegation: u32,
    },
}

/// A slot of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotPlace {
    /// The worker.
    pub worker: WorkerIndex,
    /// Slot of that worker.
    pub slot: SlotIndex,
}

/// Answer or event from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionReply {
    /// Answer to `Attach`.
    Attached {
        /// The lease.
        lease: LeaseId,
        /// Time until the lease expires, unless it is renewed.
        ttl_ms: u64,
        /// Cores of each worker: as many as it has slots.
        workers: Vec<Vec<u32>>,
        /// Phases of the workers' start.
        start: StartPhases,
        /// The slots that a peer may use; `None` in the holder's session, which may use all slots.
        lent: Option<Vec<SlotPlace>>,
    },
    /// Answer to `Load`.
    Loaded {
        /// Hash of the library.
        hash: CodeHash,
        /// Index of its first function; the n-th of [`crate::code::functions`] has index `base + n`.
        base: u16,
        /// Time that the workers took, microseconds.
        load_us: u64,
    },
    /// Answer to `Connect`, with one descriptor: a `SOCK_SEQPACKET` socket to the worker ([`crate::connection`]).
    Connected {
        /// The worker.
        worker: WorkerIndex,
        /// Epoch for every request to this worker.
        epoch: Epoch,
    },
    /// Answer to `Renew`.
    Renewed {
        /// Time until the lease expires, unless it is renewed.
        ttl_ms: u64,
        /// Token that opens sessions of the lease until its new expiry, made with the agent's current key.
        token: Vec<u8>,
    },
    /// The request was rejected; the session goes on unless the request was `Attach`.
    Refused(Rejection),
    /// Event: a worker died. Its channels are dead; `Connect` starts another.
    WorkerDied {
        /// The worker.
        worker: WorkerIndex,
        /// Epoch of the dead worker, which distinguishes it from a later worker with this index.
        epoch: Epoch,
        /// Cause of the death.
        cause: Cause,
        /// End of the worker's printed output.
        output: String,
        /// Last invocation of each slot that began an invocation, at most [`crate::limits::SLOTS_MAX`]: later
        /// invocations on the same channel did not run.
        begun: Vec<LastInvocation>,
    },
    /// Event, and answer to `Release`: the lease is over and this session with it.
    LeaseEnded {
        /// Reason of the end.
        reason: EndReason,
        /// Total usage of the lease.
        usage: UsageTotals,
    },
    /// Answer to `Delegate`.
    Delegated {
        /// Number of the delegation, to revoke it.
        delegation: u32,
        /// Token with which peers attach: every bearer may invoke functions on these slots.
        token: Vec<u8>,
    },
    /// Answer to `Revoke`.
    Revoked {
        /// The delegation.
        delegation: u32,
    },
    /// Event: the agent ends the lease, and is killing its workers. `LeaseEnded` follows when its usage is durable,
    /// which a slow disk may delay for longer than a client wants to wait for the reason.
    LeaseEnding {
        /// Reason of the end.
        reason: EndReason,
    },
    /// Event for the holder: another request for a lease finds no room on the node. A holder that does not use its
    /// lease may release it. The event may be lost; it is sent again when a further request finds no room.
    RoomWanted,
}

impl SessionReply {
    /// Whether this message answers a request; each request has one answer. Other messages are events, or the end of
    /// the session.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Attached { .. }
            | Self::Loaded { .. }
            | Self::Connected { .. }
            | Self::Renewed { .. }
            | Self::Refused(_)
            | Self::Delegated { .. }
            | Self::Revoked { .. } => true,
            Self::WorkerDied { .. } | Self::LeaseEnded { .. } | Self::LeaseEnding { .. } | Self::RoomWanted => false,
        }
    }
}

/// The last invocation that a slot of a dead worker began, from the record that the worker wrote before it called the
/// function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastInvocation {
    /// The invocation.
    pub invocation: InvocationId,
    /// Whether its function had returned, and its reply was published.
    pub ended: bool,
}

/// Total usage of a lease; the numbers never fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Slots times the time they were held, nanoseconds.
    pub allocated_ns: u64,
    /// Time spent polling, nanoseconds.
    pub hot_ns: u64,
    /// Time spent in functions, nanoseconds.
    pub compute_ns: u64,
    /// Functions run.
    pub invocations: u64,
}

#[cfg(feature = "grpc")]
impl From<UsageTotals> for crate::grpc::Usage {
    fn from(totals: UsageTotals) -> Self {
        Self {
            allocated_ns: totals.allocated_ns,
            hot_ns: totals.hot_ns,
            compute_ns: totals.compute_ns,
            invocations: totals.invocations,
        }
    }
}

/// All zero if no usage was reported.
#[cfg(feature = "grpc")]
impl From<Option<crate::grpc::Usage>> for UsageTotals {
    fn from(usage: Option<crate::grpc::Usage>) -> Self {
        let usage = usage.unwrap_or_default();
        Self {
            allocated_ns: usage.allocated_ns,
            hot_ns: usage.hot_ns,
            compute_ns: usage.compute_ns,
            invocations: usage.invocations,
        }
    }
}

/// Phases of a cold start on the agent, microseconds; for several workers the time of the slowest worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartPhases {
    /// Number of workers that came from the warm pool, or were spare interpreters.
    pub pooled: u32,
    /// Number of workers that had to be started.
    pub started: u32,
    /// Time from the request's arrival until the lease was granted.
    pub grant_us: u64,
    /// Time from the start of processes until they were ready: all the steps.
    pub start_us: u64,
    /// Time of each step in `start_us`.
    pub steps: StartSteps,
    /// Time of the assignment to the lease.
    pub configure_us: u64,
    /// Reason why workers had to be started, in words; empty if no worker had to be started.
    pub cold: String,
}

/// Steps of a worker's start, one after the other, microseconds; `None` if there was no such step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartSteps {
    /// Fetching and mounting the image of its environment, before the lease was granted: this time is neither in
    /// `grant_us` nor in `start_us`.
    pub image_us: Option<u64>,
    /// Making its sandbox, or taking one that was prepared, and starting its program in it.
    pub sandbox_us: Option<u64>,
    /// Booting its own kernel.
    pub boot_us: Option<u64>,
    /// Start of its interpreter, from the end of the steps above until the program's first line. For a native worker,
    /// the time until it accepted orders.
    pub interpreter_us: Option<u64>,
    /// Imports, until the worker accepted orders.
    pub imports_us: Option<u64>,
}
