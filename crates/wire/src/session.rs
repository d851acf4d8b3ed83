//! Client ↔ agent, over the agent's session socket (Unix, `SOCK_SEQPACKET`).
//!
//! The agent checks the peer's credentials on accept. The first message must be
//! [`SessionRequest::Attach`]. Replies come in the order of the requests; [`SessionReply::WorkerDied`]
//! and [`SessionReply::LeaseEnded`] are events that may come between them. When the last session of a
//! lease closes without [`SessionRequest::Release`], the lease ends with `ClientGone`.

use crate::frame::InvocationId;
use crate::ids::{CodeHash, Epoch, LeaseId, SlotIndex, WorkerIndex};
use crate::refusal::{Cause, EndReason, Refusal};
use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Bind this session to a lease. Answer: [`SessionReply::Attached`].
    Attach {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// From the grant.
        token: Vec<u8>,
    },
    /// Load a library into every worker of the lease, present and future. Without a descriptor: only
    /// if the node has it ([`Refusal::NeedCode`] otherwise). With one (a sealed memfd): these bytes.
    /// Answer: [`SessionReply::Loaded`].
    Load {
        /// Its address.
        hash: CodeHash,
        /// Its size.
        size_bytes: u64,
    },
    /// Introduce this client to a worker, started again if it died. Answer: [`SessionReply::Connected`].
    Connect {
        /// Which.
        worker: WorkerIndex,
    },
    /// Push the expiry. Answer: [`SessionReply::Renewed`].
    Renew,
    /// End the lease. Answer: [`SessionReply::LeaseEnded`], after the workers are gone.
    Release,
    /// Lend slots to peers. Answer: [`SessionReply::Delegated`].
    Delegate {
        /// Which; at least one.
        places: Vec<Place>,
        /// For how long at most; 0: as long as the lease lasts.
        within_ms: u64,
    },
    /// Take them back. Answer: [`SessionReply::Revoked`], also where the delegation is over already.
    Revoke {
        /// Which.
        delegation: u32,
    },
}

/// A slot of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Of which worker.
    pub worker: WorkerIndex,
    /// Which of its slots.
    pub slot: SlotIndex,
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionReply {
    /// To `Attach`.
    Attached {
        /// The lease.
        lease: LeaseId,
        /// Time until it expires unless renewed.
        ttl_ms: u64,
        /// Cores of each worker: as many as it has slots.
        workers: Vec<Vec<u32>>,
        /// How the workers came to be.
        start: StartPhases,
        /// The slots that a peer may use; none: all, it is the holder's session.
        lent: Option<Vec<Place>>,
    },
    /// To `Load`.
    Loaded {
        /// Which.
        hash: CodeHash,
        /// Index of its first function; the n-th of [`crate::code::functions`] has `base + n`.
        base: u16,
        /// Time that the workers took, microseconds.
        load_us: u64,
    },
    /// To `Connect`, with one descriptor: a `SOCK_SEQPACKET` socket to the worker ([`crate::connection`]).
    Connected {
        /// Which.
        worker: WorkerIndex,
        /// To put into every request to this worker.
        epoch: Epoch,
    },
    /// To `Renew`.
    Renewed {
        /// Time until it expires unless renewed.
        ttl_ms: u64,
        /// Opens sessions of the lease until then, made with the agent's present key.
        token: Vec<u8>,
    },
    /// The request was refused; the session goes on unless it was the attach.
    Refused(Refusal),
    /// Event: a worker died. Its channels are dead; `Connect` starts another.
    WorkerDied {
        /// Which.
        worker: WorkerIndex,
        /// Its epoch: a later incarnation is not meant.
        epoch: Epoch,
        /// Why.
        cause: Cause,
        /// The end of its output.
        output: String,
        /// The last invocation of each slot that began any, at most [`crate::limits::SLOTS_MAX`]: what came later on the same
        /// channel did not run.
        begun: Vec<LastBegun>,
    },
    /// Event, and answer to `Release`: the lease is over and this session with it.
    LeaseEnded {
        /// Why.
        reason: EndReason,
        /// What it used in all.
        usage: UsageTotals,
    },
    /// To `Delegate`.
    Delegated {
        /// Its number, to take it back.
        delegation: u32,
        /// What peers attach with: whoever has it may invoke on these slots.
        token: Vec<u8>,
    },
    /// To `Revoke`.
    Revoked {
        /// Which.
        delegation: u32,
    },
    /// Event: the agent ends the lease, and is killing its workers. `LeaseEnded` follows when what it used is durable, which
    /// a slow disk may hold up for longer than a client wants to wait for the reason.
    LeaseEnding {
        /// Why.
        reason: EndReason,
    },
}

/// The last invocation that a slot of a dead worker began, as the worker wrote it down before it called the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBegun {
    /// Which.
    pub invocation: InvocationId,
    /// Whether it had ended, and its reply was on its way.
    pub ended: bool,
}

/// What a lease has used: monotonic totals.
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

/// Where a cold start's time went on the agent, microseconds; of several workers what the slowest one took.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartPhases {
    /// Workers that came from the warm pool, or were spare interpreters.
    pub pooled: u32,
    /// Workers that had to be started.
    pub started: u32,
    /// From the request's arrival until the lease was granted.
    pub grant_us: u64,
    /// Starting processes until they were ready: all the steps.
    pub start_us: u64,
    /// Of that, what each step took.
    pub steps: StartSteps,
    /// Assigning them to the lease.
    pub configure_us: u64,
    /// Why workers had to be started, in words; empty: none had to.
    pub cold: String,
}

/// The steps of a worker's start, one after the other, microseconds; none: it had no such step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartSteps {
    /// Fetching and mounting the image of its environment, before the lease was granted: neither in `grant_us` nor in `start_us`.
    pub image_us: Option<u64>,
    /// Making its sandbox, or taking one that was prepared, and starting its program in it.
    pub sandbox_us: Option<u64>,
    /// Booting a kernel of its own.
    pub boot_us: Option<u64>,
    /// From there until its program's first line: an interpreter's own start. Of a native worker, until it took orders.
    pub interpreter_us: Option<u64>,
    /// Imports, until it took orders.
    pub imports_us: Option<u64>,
}
