//! Rendezvous: where members of a communicator meet.
//!
//! A member says which communicator it belongs to and where it listens. When all members have come, each is told the
//! addresses of all others, and those that NATs give them. A [`Server`] is a thread of any program, for as many
//! communicators as come. It takes no part in what members do afterwards, except for two members that cannot reach each
//! other: it relays what these send each other.

pub(crate) mod client;
mod matchmaker;
mod pairs;
mod peer;
mod ports;
mod relay;
mod server;

pub use server::{Limits, Refusals, Server};
