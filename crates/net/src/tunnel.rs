//! Sessions and worker connections over TLS: a client has the same access to an agent on another host as to an agent on
//! its own node.
//!
//! ```text
//!   client's host                                             agent's host
//!   client ── socket pair ── relay ══ TLS: session ══ relay ── socket pair ── session ── agent
//!   client ── socket pair ── relay ══ TLS: joined  ══ relay ── connection socket ─────── worker
//! ```
//!
//! Client, agent and worker speak their usual protocols over local sockets. A relay at each end turns messages into
//! frames ([`hotlease_wire::tunnel`]) and back. The bytes of a function library are sent, and become sealed memory
//! again at the other end. A worker's connection socket stays on the agent's host, where a ticket names it. The
//! client's relay shows the ticket on a second TLS connection, and the agent's relay joins this connection to the
//! socket. So each worker has a connection of its own on both hosts, which closes when the worker ends. Rings and
//! buffers are shared memory and cannot be sent: the relay refuses requests for them in the worker's place.
//!
//! When one end closes, the relay passes on the data under way and closes the other end. Two hosts that lose each other
//! notice it by silence: both sides send something at least four times within the silence limit, which the client
//! derives from its lease's time to live.

mod agent;
mod arrivals;
mod client;
mod frames;
mod local;
mod memory;
mod relay;
mod tickets;

pub use agent::{NewSession, Tunnels};
pub use client::{TunnelSession, session};

use std::time::Duration;

/// Time added to a lease's time to live: a session must not end before its lease, but soon after it.
const SILENCE_MARGIN: Duration = Duration::from_millis(500);

/// Silence limit of both ends of a session, for a lease with this time to live.
pub fn silence_of(ttl: Duration) -> Duration {
    ttl.saturating_add(SILENCE_MARGIN)
}
