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
//! Beside the ring stands one *express entry*, numbered [`hotlease_wire::frame::EXPRESS_ENTRY`]: a ring of depth
//! 1 that counts its own invocations, for a client that has one in flight and waits for it. The same lines
//! are used over and over and stay in both caches (measured: 60 ns less than going round the ring for 8
//! bytes, a third of the time for 4 KiB). The worker takes from ring and express entry in turn.
//!
//! So a credit is a harvested reply entry, and needs no message of its own: the client publishes `id` only
//! when the reply to `id - depth` was harvested. The worker takes requests of a ring strictly in order, so
//! only the oldest unanswered one, or that of the express entry, can have started when the worker dies.

mod client;
mod worker;

pub use client::{Call, ClientChannel, ExpressEntry, ReplyRing, TooLong};
pub use worker::{Input, Request, RequestRing, WorkerChannel};

#[cfg(test)]
mod tests;
