//! A channel: a client's private connection to one slot.
//!
//! A request ring in the worker's memory and a reply ring in the client's, `depth` entries each.
//! Invocation `id` (counting from 0, wrapping) uses entry `id % depth` of both. Who owns entry `e`, when:
//!
//! ```text
//!                 request entry e                    reply entry e
//!  client owns    from the reply to id being         from harvesting the reply to id
//!                 seen until publish(id + depth)     until publish(id + depth)
//!  worker owns    from publish(id) until it          from publish(id) until it
//!                 publishes the reply to id          publishes the reply to id
//! ```
//!
//! So a credit is a harvested reply entry, and needs no message of its own: the client publishes `id` only
//! when the reply to `id - depth` was harvested. The worker takes requests of a channel strictly in order,
//! so only the oldest unanswered one can have started when the worker dies.

mod client;
mod worker;

pub use client::{Call, ClientChannel, ReplyRing, TooLong};
pub use worker::{Input, Request, RequestRing, WorkerChannel};

#[cfg(test)]
mod tests;
