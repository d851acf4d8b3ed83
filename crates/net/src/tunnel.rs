//! Sessions and worker connections over TLS: what a client does with an agent of its own machine, from
//! another.
//!
//! ```text
//!   client's host                                             agent's host
//!   client ── socket pair ── relay ══ TLS: session ══ relay ── socket pair ── session ── agent
//!   client ── socket pair ── relay ══ TLS: joined  ══ relay ── connection socket ─────── worker
//! ```
//!
//! Client, agent and worker speak their protocols over local sockets as ever; a relay at each end turns
//! messages into frames ([`hotlease_wire::tunnel`]) and back. The bytes of a function library travel and
//! become sealed memory again. A worker's connection socket stays on the agent's host under a ticket, and
//! the client's relay comes for it with a second TLS connection, so that a worker's end is the end of a
//! connection here as there. Rings and buffers are shared memory and cannot travel: the relay answers for
//! the worker that they are refused.
//!
//! When one end closes, the relay passes on what is under way and closes the other. Two hosts that lose each
//! other notice it by silence: both sides say something four times within the silence limit, which the client
//! derives from its lease's time to live.

mod agent;
mod client;
mod frames;
mod local;
mod memory;
mod relay;
mod tickets;

pub use agent::{Begun, Tunnels};
pub use client::{Tunnelled, session};

use std::time::Duration;

/// What is added to a lease's time to live: a session must not end before the lease does, and soon after.
const SILENCE_MARGIN: Duration = Duration::from_millis(500);

/// How long either end of a session may be silent, for a lease of this time to live.
pub fn silence_of(ttl: Duration) -> Duration {
    ttl.saturating_add(SILENCE_MARGIN)
}
