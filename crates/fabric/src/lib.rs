//! Level 1 of hotlease: how bytes move between a client and a slot.
//!
//! * [`channel`] — both ends of a channel: rings of requests and replies with in-band completion.
//! * [`ring`] — the line protocol underneath, checked with loom, and the [`ring::FarRing`] seam that a
//!   transport implements.
//! * [`shm`] — the transport between processes of one node: sealed shared memory.
//! * [`ofi`] — the transport between nodes: libfabric, loaded at run time.
//! * [`transport`] — which of the two a channel uses.
//! * [`doorbell`] — sleeping and waking, checked with loom.
//! * [`memory`], [`buffer`] — memory that can be handed to a peer.
//! * [`lane`] — a stream of messages from one process of a node to another.
//! * [`lent`] — memory of a caller that an engine uses while a closure runs.
//! * [`socket`] — descriptor passing between processes of one node.
//! * [`fence`] — a fence that costs one of its two sides nothing.
//! * [`usage`] — the counters that a worker shares with its agent.
//! * [`claim`] — which of the slots that share a core has it.
//! * [`clock`], [`runtime_dir`] — the node's ticks; where sockets live.
//!
//! A transport moves bytes into the peer's ring and wakes the peer; everything else (sequence words,
//! credits, bounds) is the channel's and the same for all transports. Nothing in [`channel`] assumes that
//! memory is shared.

#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod claim;
#[cfg(not(loom))]
pub mod clock;
pub mod doorbell;
#[cfg(not(loom))]
pub mod fence;
pub mod lane;
#[cfg(not(loom))]
pub mod lent;
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
    //! The atomics of the lock-free parts: loom's under `--cfg loom`, the standard ones otherwise.
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
