//! Transport `ofi`: channels over libfabric, which is loaded at run time.
//!
//! # How a frame travels
//!
//! The peer's ring is memory of the peer, polled there as on `shm`; only the path into it differs.
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
//! entry, length), copies payload and line into the ring and posts the buffer again. The rest of a channel (sequence
//! words, credits, bounds) does not depend on the transport. No remote completion data, RMA events or atomics are used:
//! several providers lack them.
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
//! Because of the staging entry `payload` may wait: the reply to a frame may be seen before the completion of its send.
//! A count of operations for each entry tells when it is free.
//!
//! # Why the line never comes before its payload
//!
//! In one message both come together, and `progress` writes the line last, with release. If the payload is written
//! ahead, the RMA write must be visible at the peer before the message that follows it is received. Providers with
//! FI_ORDER_SAW in both directions keep that order themselves; with other providers the write asks for
//! FI_DELIVERY_COMPLETE and the message is sent after its completion. [`providers::Provider::keeps_write_order`] decides, from
//! the provider's attributes and the table of providers.
//! Frames of different entries may overtake each other: a reader looks for one sequence word in one entry.
//!
//! # Credits
//!
//! A channel has at most its depth (and the express entry) in flight in each direction, so a port receives at most
//! that, summed over its channels. Receive buffers are posted for 16 (sockets) or 256 (adapters) of these frames, see
//! [`providers::Quirks::receives`]; further frames wait in the provider (FI_RM_ENABLED) until buffers are posted again.
//! A fixed table bounds the sends under way; when it is full, or the provider returns FI_EAGAIN, the sender makes
//! progress until there is room or its deadline passes, which breaks the link. Nothing is queued.
//!
//! # Loss
//!
//! A failed operation breaks its link: every ring over it reports that ([`OfiRing::break_reason`]) and drops frames
//! published later. A peer that closes sends a goodbye. A silent peer is noticed by a send that does not leave, or by
//! [`Port::probe`]; a provider cannot tell a dead peer from an idle one.
//!
//! # Messages
//!
//! Beside channels, whose rings lie in polled memory, there are plain messages ([`Messenger`]): many peers send to one
//! endpoint, in order, without memory of their own there. Members of a communicator use them.
//!
//! # Threads and sleep
//!
//! One mutex guards a port's state; uncontended it costs nothing beside a fabric round trip. `progress` does not wait
//! for it. Providers make progress only inside calls: a process whose memory a peer is to read or write must meanwhile
//! call `progress`, or sleep in [`Port::sleep`].
//!
//! # Trust
//!
//! A port receives from any sender that reaches it. Frames need the channel's random key, which only the control plane
//! hands out; where the provider reports senders, the sender must be the channel's peer. Keys of registered memory are
//! addresses, not secrets: software providers do not check them well. So a slot's port must not register memory that
//! its clients may not see.

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
pub use ring::{NearEnd, OfiRing};
pub use transfer::{Registration, TransferSpans};

/// Largest number of channels of one port; a power of two.
pub const CHANNELS_MAX: usize = 1024;
/// Largest number of peers of one port.
pub const PEERS_MAX: usize = 1024;
/// Largest number of registrations of one port.
pub const REGISTRATIONS_MAX: usize = 8192;
