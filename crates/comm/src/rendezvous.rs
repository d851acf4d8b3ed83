//! Rendezvous: where members of a communicator meet.
//!
//! A member tells the rendezvous which communicator it belongs to and where it listens. When all members have arrived,
//! each is told the addresses of all others, also the addresses that NATs have assigned to them. A [`Server`] is a
//! thread of any program, and serves any number of communicators. Afterwards it takes no part in what members do,
//! unless two members cannot reach each other: then it relays what the two send each other.

pub(crate) mod client;
mod matchmaker;
mod pairs;
mod peer;
mod ports;
mod relay;
mod server;

pub use server::{Limits, Refusals, Server};
