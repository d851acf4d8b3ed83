//! Messages between agent and nursery.
//!
//! Each order that has a reply carries, as its first descriptor, the socket for that reply, so any number of orders can
//! be under way. The description of a program is sent in a memory file, because its environment may be longer than a
//! message. The nursery reads the mounts from this file, and pid 1 of the sandbox reads the other parts.

use crate::container::ContainerConfig;
use crate::policy::Policy;
use serde::{Deserialize, Serialize};

/// Port of a sandbox's loopback at which its program reaches object storage, if its order asks for storage.
pub const STORAGE_PORT: u16 = 9000;
/// Path of the worker's program in a sandbox, if an order names none.
pub const WORKER_INSIDE: &str = "/hotlease-worker";

/// Message from the agent to the nursery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NurseryOrder {
    /// Serve with this policy; the first order. Descriptor: the socket for the reply, [`Reply::Ready`].
    Serve(Policy),
    /// Start a program. Descriptors: the socket for the reply, the program's standard input, its output, the pipe for
    /// its [`EndReport`], a
    /// [`ProgramDescription`](crate::program::ProgramDescription).
    Start {
        /// Number of this sandbox, never used before.
        id: u64,
        /// Whether the sandbox shares the host's network, which the policy must allow.
        network: bool,
        /// Whether the sandbox's loopback has a listener at [`STORAGE_PORT`] from which the agent accepts. The loopback
        /// is then the sandbox's whole network.
        storage: bool,
    },
    /// Limit a sandbox. Descriptor: the socket for the reply, [`Reply::Limited`].
    Limit {
        /// Number of the sandbox.
        id: u64,
        /// Memory of all its processes, bytes; 0 for the policy's limit.
        memory_bytes: u64,
        /// Processors that it may use; empty for all.
        cores: Vec<u32>,
    },
    /// Fork a worker from a zygote, into namespaces of its own. Descriptors as with [`NurseryOrder::Start`], without a
    /// [`ProgramDescription`](crate::program::ProgramDescription).
    Fork {
        /// Number of the worker's sandbox, never used before.
        id: u64,
        /// Number of the zygote's sandbox.
        zygote: u64,
    },
    /// Like [`NurseryOrder::Serve`], but with containers instead of sandboxes that are made of pieces of the host.
    Contain(Policy, ContainerConfig),
}

/// The nursery's reply to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Sandboxes can be made here: the first sandbox is prepared.
    Ready {
        /// Parts of the policy that this host cannot enforce, and why.
        lacking: Vec<String>,
    },
    /// The program runs. Descriptors: a pidfd of the process to kill, a pidfd of the program, and the listener if one
    /// was ordered. The process to kill is pid 1, with which the whole sandbox ends. For a zygote it is the program
    /// itself, because workers that were forked from the zygote continue to run.
    Started,
    /// The sandbox is limited.
    Limited {
        /// Whether the kernel limits the memory of all its processes together.
        memory: bool,
    },
    /// The order failed, and nothing is left of it.
    Failed {
        /// The step that failed, and why.
        what: String,
    },
}

/// Report of a sandbox's end: all its processes are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    /// The program's exit status, or the negative signal that killed it.
    pub status: i32,
    /// Whether the kernel killed a process in it for lack of memory; `None` if no group records such kills.
    pub out_of_memory: Option<bool>,
}
