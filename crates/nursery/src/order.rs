//! What agent and nursery say to each other.
//!
//! Each order that has an answer brings the socket that it is to be sent to as its first descriptor, so that any number can
//! be under way. What a program is goes in a memory file, because its environment may be longer than a message; the nursery
//! reads of it what is to be mounted, and pid 1 of the sandbox the rest.

use crate::container::Containers;
use crate::declared::Declared;
use crate::policy::{Mount, Policy};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// Bytes of a [`Described`].
pub const DESCRIBED_BYTES_MAX: u64 = 1 << 20;
/// The port of a sandbox's own loopback at which its program reaches object storage, where its order opens one.
pub const STORAGE_PORT: u16 = 9000;
/// Name of the worker's program in a sandbox, where an order names none.
pub const WORKER_INSIDE: &str = "/hotlease-worker";

/// To the nursery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The first one; descriptors: where to answer, with a [`Reply::Ready`].
    Serve(Policy),
    /// Descriptors: where to answer, the program's standard input, its output, where to write its [`Ended`], a
    /// [`Described`].
    Start {
        /// A name of this sandbox, never used before.
        id: u64,
        /// Whether it shares the host's network; only where the policy lets it.
        network: bool,
        /// Whether its own loopback, which is then all of its network, has a listener at [`STORAGE_PORT`], for the agent to accept at.
        storage: bool,
    },
    /// Descriptors: where to answer, with [`Reply::Done`].
    Limit {
        /// Which.
        id: u64,
        /// Memory of all its processes; 0: as the policy says.
        memory_bytes: u64,
        /// Processors that it may use; none: all.
        cores: Vec<u32>,
    },
    /// A worker forked from a zygote, into namespaces of its own. Descriptors as with [`Order::Start`], without a [`Described`].
    Fork {
        /// A name of its sandbox, never used before.
        id: u64,
        /// The sandbox of the zygote.
        of: u64,
    },
    /// As [`Order::Serve`], with containers in place of sandboxes of pieces of the host's.
    Contain(Policy, Containers),
}

/// The nursery's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Such sandboxes can be made here: one is prepared.
    Ready {
        /// What of the policy this machine cannot enforce, and why.
        lacking: Vec<String>,
    },
    /// The program runs. Descriptors: pidfds of what is to be killed, and of the program: pid 1, with which all of the sandbox ends, or
    /// of a zygote the program itself, because what was forked from it goes on. And the listener, if one was ordered.
    Started,
    /// Carried out.
    Done,
    /// Not carried out, and nothing is left of it.
    Failed {
        /// Which step, and why.
        what: String,
    },
}

/// A program, and what it needs to see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Absolute, in the sandbox.
    pub path: OsString,
    /// With its name in front.
    pub arguments: Vec<OsString>,
    /// All of it.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it runs; `/` if that is no folder in the sandbox.
    pub directory: OsString,
    /// Beyond the policy's.
    pub mounts: Vec<Mount>,
    /// What its lease has declared; counts as mounts.
    pub declared: Vec<Declared>,
    /// Whether workers are to be forked from it: it finds its [`zygote`](crate::zygote) orders at descriptor 3.
    pub zygote: bool,
}

/// The end of a sandbox: everything of it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The program's exit status, or else the signal that killed it, negative.
    pub status: i32,
    /// Whether the kernel killed something in it for want of memory; none: it has no group that counts such kills.
    pub out_of_memory: Option<bool>,
}
