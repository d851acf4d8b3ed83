//! Transport `ofi`: channels over libfabric, which is loaded at run time.
//!
//! # Path of a frame
//!
//! The peer's ring is memory of the peer, which polls it as on `shm`; only the path into the ring differs.
//!
//! ```text
//!  staging entry                                                       ring entry of the peer
//!  | prefix | line | payload |  ── one message ──►  receive buffer ──►  payload, then line (release)
//!
//!  longer than a message:       ── RMA write ────────────────────────►  payload
//!  | prefix | line |            ── message ──────►  receive buffer ──►  line (release)
//!
//!  in buffers:  the worker reads and writes spans of registered memory ([`Port::read`], [`Port::write`])
//! ```
//!
//! The receiver's [`Port::progress`] takes messages from the completion queue, checks the prefix (channel, key, source,
//! entry, length), copies payload and line into the ring and posts the buffer again. The other parts of a channel
//! (sequence words, credits, bounds) do not depend on the transport. The transport uses no remote completion data, RMA
//! events or atomics, because several providers lack them.
//!
//! # Buffers and their owners
//!
//! | buffer | is written by | until |
//! |---|---|---|
//! | staging entry | its ring's user, between [`crate::ring::FarRing::payload`] and `publish` | |
//! | | no code (the provider reads it) | every operation posted by `publish` has completed |
//! | receive buffer | the provider | its completion; then `progress` reads it, and posts it again |
//! | near ring entry | the peer: by message through `progress`, by RMA through the provider | see [`crate::channel`] |
//! | registered memory | its owner by the channel's protocol | the last operation ends: each holds the registration |
//!
//! The reply to a frame may be seen before the completion of the frame's send. So `payload` may have to wait until the
//! staging entry is free, which a count of operations for each entry shows.
//!
//! # Why the line never comes before its payload
//!
//! If line and payload are in one message, `progress` writes the line last, with release. If the payload is written
//! ahead, the RMA write must be visible at the peer before the message that follows it is received. Providers with
//! FI_ORDER_SAW in both directions keep that order themselves. With other providers the write asks for
//! FI_DELIVERY_COMPLETE, and the message is sent after the completion of the write.
//! [`providers::Provider::keeps_write_order`] decides between the two, from the provider's attributes and the table of
//! providers.
//! Frames of different entries may overtake each other: a reader looks for one sequence word in one entry.
//!
//! # Credits
//!
//! In each direction, a channel has at most as many frames in flight as its depth, and one more in the express entry.
//! So a port receives at most the sum of these over its channels. Receive buffers are posted for 16 (sockets) or 256
//! (adapters) of these frames, see [`providers::Quirks::receives`]. Further frames wait in the provider (FI_RM_ENABLED)
//! until buffers are posted again. A fixed table bounds the sends under way; when it is full, or the provider returns
//! FI_EAGAIN, the sender makes progress until there is room. If its deadline passes first, the link breaks. Nothing is
//! queued.
//!
//! # Loss
//!
//! A failed operation breaks its link: every ring over the link reports the break ([`OfiRing::break_reason`]) and drops
//! frames published later. A peer that closes sends a goodbye. A silent peer is noticed when a send does not leave, or
//! by [`Port::probe`]; a provider cannot distinguish a dead peer from an idle peer.
//!
//! # Messages
//!
//! Beside channels, whose rings lie in polled memory, there are plain messages ([`Messenger`]): many peers send to one
//! endpoint, in order, without memory of their own at the receiver. Members of a communicator use them.
//!
//! # Threads and sleep
//!
//! One mutex guards a port's state; uncontended it costs nothing beside a fabric round trip. `progress` does not wait
//! for the mutex. Providers make progress only inside calls: while a peer reads or writes a process's memory, that
//! process must call `progress`, or sleep in [`Port::sleep`].
//!
//! # Trust
//!
//! A port receives from any sender that reaches it. Frames need the channel's random key, which only the control plane
//! hands out; if the provider reports senders, the sender must also be the channel's peer. Keys of registered memory
//! are addresses, not secrets: software providers do not check them well. So a slot's port must not register memory
//! that the slot's clients are not allowed to see.

mod address;
mod counters;
mod dispatch;
pub mod endpoint;
mod error;
pub mod ffi;
mod library;
mod messenger;
mod operation;
mod peer_state;
mod port;
mod port_state;
pub mod providers;
mod remote_block;
mod ring;
mod signal_handlers;
mod sleep;
mod staging;
mod transfer;

pub use counters::Counters;
pub use error::OfiError;
pub use library::Libfabric;
pub use messenger::Messenger;
pub use port::{Access, Port, PortOptions, PortPeer, PortResources};
pub use providers::{Provider, providers};
pub use remote_block::RemoteBlock;
pub use ring::{NearEnd, OfiRing};
pub use transfer::{Registration, TransferSpans};

/// Largest number of channels of one port; a power of two.
pub const CHANNELS_MAX: usize = 1024;
/// Largest number of peers of one port.
pub const PEERS_MAX: usize = 1024;
/// Largest number of registrations of one port.
pub const REGISTRATIONS_MAX: usize = 8192;
