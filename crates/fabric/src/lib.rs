//! Level 1 of hotlease: transports of bytes between a client and a slot.
//!
//! * [`channel`] — both ends of a channel: rings of requests and replies with in-band completion.
//! * [`ring`] — the line protocol underneath, checked with loom, and the [`ring::FarRing`] seam that a
//!   transport implements.
//! * [`shm`] — the transport between processes of one node: sealed shared memory.
//! * [`ofi`] — the transport between nodes: libfabric, loaded at run time.
//! * [`transport`] — the choice between the two for a channel.
//! * [`doorbell`] — sleeping and waking, checked with loom.
//! * [`memory`], [`buffer`] — memory that can be handed to a peer.
//! * [`memory::block`] — memory of a node that a client reads and writes, and that can be taken back.
//! * [`lane`] — a stream of messages from one process of a node to another.
//! * [`loan`] — memory of a caller that an engine uses while a closure runs.
//! * [`socket`] — descriptor passing between processes of one node.
//! * [`foreign`] — descriptors that another process chose, whose close may wait.
//! * [`fence`] — a fence that costs one of its two sides nothing.
//! * [`forks`] — values that the child of a fork makes anew.
//! * [`usage`] — the counters that a worker shares with its agent.
//! * [`contention`] — whether other threads want the core of a thread that polls.
//! * [`claim`] — claims of a core that several slots share.
//! * [`clock`], [`runtime_dir`] — the node's ticks, and medians of times; the directory of the sockets.
//!
//! A transport moves bytes into the peer's ring and wakes the peer. Everything else (sequence words, credits, bounds)
//! belongs to the channel and is the same for all transports. Nothing in [`channel`] assumes that memory is shared.

#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod claim;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod contention;
pub mod doorbell;
#[cfg(not(loom))]
pub mod fence;
#[cfg(not(loom))]
pub mod foreign;
#[cfg(not(loom))]
pub mod forks;
pub mod lane;
#[cfg(not(loom))]
pub mod loan;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod ofi;
pub mod ring;
#[cfg(not(loom))]
pub mod runtime_dir;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod transport;
#[cfg(not(loom))]
pub mod usage;

mod atomics {
    //! The atomics of the lock-free parts: loom's under `--cfg loom`, the standard library's otherwise.
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
