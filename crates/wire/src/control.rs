//! Agent ↔ worker, over the worker's standard input (a `SOCK_SEQPACKET` socket pair).
//!
//! A worker is started with nothing but this socket; end of file on it means that the agent is gone and
//! the worker exits. Orders are answered in turn, one answer each.

use crate::ids::{CodeHash, Epoch, LeaseId, SlotIndex};
use serde::{Deserialize, Serialize};

/// How a slot waits for its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Polling {
    /// Poll as long as recent arrivals make it worth while, at most the budget, then sleep.
    Adaptive,
    /// Poll for the whole budget after each invocation, then sleep.
    Hot,
    /// Sleep at once.
    Warm,
}

/// What slots are told whose core is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedCore {
    /// No invocation lasts longer, whatever it asks for, milliseconds.
    pub call_limit_ms: u32,
}

/// What a peer of the holder's may use of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// Of which delegation.
    pub delegation: u32,
    /// Which slots.
    pub slots: Vec<SlotIndex>,
}

/// What the agent orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Assign this worker to a lease; once in its life. Descriptors: the usage block and, where the core is
    /// shared, the file that says whose turn it is.
    Configure {
        /// The lease.
        lease: LeaseId,
        /// Frames of any other are refused.
        epoch: Epoch,
        /// One slot for each, pinned to it.
        cores: Vec<u32>,
        /// How slots wait.
        polling: Polling,
        /// Polling budget in real time, nanoseconds; `u64::MAX`: unlimited.
        hot_budget_ns: u64,
        /// Ticks per second of the node's time-stamp counter, measured by the agent.
        tick_hz: u64,
        /// Limit on private memory beyond what the worker itself needs, bytes; 0: none.
        memory_bytes: u64,
        /// Who holds the lease; given to functions.
        tenant: String,
        /// Set if the core is shared with other workers: each invocation has to claim it.
        shared: Option<SharedCore>,
        /// Numbers of its GPUs on the node; none: the node counts no GPUs, and nothing is said about them.
        gpus: Option<Vec<u32>>,
    },
    /// Load a library. One descriptor: a sealed memfd with its bytes.
    Load {
        /// Its address, already checked by the agent.
        hash: CodeHash,
        /// Its size.
        size_bytes: u64,
        /// Index of its first function.
        base: u16,
    },
    /// Serve a client. One descriptor: its connection socket.
    Introduce {
        /// Set for a peer of the holder's.
        lent: Option<Lent>,
    },
    /// Drop all connections of a delegation. What runs for them runs to its end.
    Dismiss {
        /// Which.
        delegation: u32,
    },
    /// Give the state of the functions' to who restores it: a function of the program's own, or of the library that is loaded. One
    /// descriptor: a pipe to read it from. Before any client is introduced.
    Restore {
        /// So many bytes; none: there is nothing yet, but there has to be a function that could have saved it.
        size_bytes: Option<u64>,
    },
    /// Have the same give the state of the functions', and serve nobody any more. One descriptor: a pipe to write it to, in pieces: the
    /// length of each (64 bits, little endian) and its bytes; a length of 0 ends it. After a refusal it serves as before.
    Save,
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Unasked, once: started and waiting.
    Ready {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// Of the time since its process was started, what it has spent on imports, microseconds; 0: it imports nothing.
        imports_us: u64,
        /// How long a machine of its own took to boot before that, microseconds; 0: it has none.
        boot_us: u64,
    },
    /// The order was carried out.
    Done,
    /// It was not; nothing changed.
    Failed {
        /// Why, in words for the user.
        why: String,
    },
}
