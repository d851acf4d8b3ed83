//! Agent ↔ worker, over the worker's standard input (a `SOCK_SEQPACKET` socket pair).
//!
//! A worker is started with nothing but this socket; end of file on it means that the agent is gone and the worker
//! exits. Orders are answered in turn, one answer each.

pub mod batch;

use crate::ids::{CodeHash, Epoch, LeaseId, SlotIndex};
use serde::{Deserialize, Serialize};

/// Waiting policy of a slot. On a core that another thread wants, the slot sleeps at once instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PollingPolicy {
    /// Poll as long as recent arrivals make it worthwhile, at most for the budget, then sleep.
    Adaptive,
    /// Poll for the whole budget after each invocation, then sleep.
    Hot,
    /// Sleep at once.
    Warm,
}

/// Rules for slots whose core is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSharing {
    /// Longest invocation, milliseconds; a longer timeout of the request does not extend it.
    pub call_limit_ms: u32,
}

/// Slots of a worker that are lent to a peer of the holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentSlots {
    /// Number of the delegation.
    pub delegation: u32,
    /// The slots.
    pub slots: Vec<SlotIndex>,
}

/// Order of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerOrder {
    /// Assigns the worker to a lease; once in its life. Descriptors: the usage block and, if the core is shared, the
    /// file of claims. A memory server has no cores; its second descriptor is the memory block.
    Configure {
        /// The lease.
        lease: LeaseId,
        /// Epoch of the worker; frames of any other epoch are refused.
        epoch: Epoch,
        /// Cores: one slot for each, pinned to it. Empty for a memory server.
        cores: Vec<u32>,
        /// Waiting policy of the slots.
        polling: PollingPolicy,
        /// Polling budget in real time, nanoseconds; `u64::MAX`: unlimited.
        hot_budget_ns: u64,
        /// Ticks per second of the node's time-stamp counter, measured by the agent.
        tick_hz: u64,
        /// Limit on private memory beyond the worker's own needs, bytes; 0: none. For a memory server: size of the
        /// memory block.
        memory_bytes: u64,
        /// Tenant that holds the lease; passed to functions.
        tenant: String,
        /// Set if the core is shared with other workers: each invocation has to claim the core.
        shared: Option<CoreSharing>,
        /// Numbers of the worker's GPUs on the node; `None` if the node counts no GPUs: functions then get no such
        /// numbers.
        gpus: Option<Vec<u32>>,
    },
    /// Loads a library. One descriptor: a sealed memfd with its bytes.
    Load {
        /// Hash of the library, already checked by the agent.
        hash: CodeHash,
        /// Size of the library.
        size_bytes: u64,
        /// Index of its first function.
        base: u16,
    },
    /// Serves a client. One descriptor: its connection socket.
    Introduce {
        /// Delegation, for a peer of the holder.
        lent: Option<LentSlots>,
    },
    /// Drops all connections of a delegation. Running invocations of these connections continue to their end.
    Dismiss {
        /// The delegation.
        delegation: u32,
    },
    /// Restores the functions' state, by a function of the program or of the loaded library. One descriptor: a pipe to
    /// read the state from. Sent before any client is introduced.
    Restore {
        /// Size of the state; `None` if there is no state yet. Even then a function that can save the state must exist.
        size_bytes: Option<u64>,
    },
    /// Saves the functions' state, by a function of the program or of the loaded library, and stops serving. One
    /// descriptor: a pipe to write the state to, in pieces. Each piece is a length (64 bits, little endian) and that
    /// many bytes; a length of 0 ends the state. After a failure the worker serves as before.
    Save,
    /// Moves the worker to another shared core, with all threads that are pinned to the present core. One descriptor:
    /// the file of claims of the new core. Fails, and changes nothing, while a slot runs a function.
    Move {
        /// The new core.
        core: u32,
    },
    /// Begins to load the library for fabrics, because a client will probably reach the worker over a fabric. The order
    /// may be sent before [`WorkerOrder::Configure`].
    PrepareFabric,
}

/// Answer of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerAnswer {
    /// The worker has started and waits; sent once, without an order.
    Ready {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// Time that the worker's program has spent on imports since the worker's process was started, microseconds; 0:
        /// no imports.
        imports_us: u64,
        /// Time that the worker's own machine took to boot before that, microseconds; 0 if it has none.
        boot_us: u64,
    },
    /// The order was carried out.
    Done,
    /// The order failed; nothing changed.
    Failed {
        /// Reason, in words for the user.
        why: String,
    },
}
