//! Where members of a communicator find each other.
//!
//! A member says which communicator it belongs to and where it listens; when all have come, each is told where all the others are,
//! and what NATs make of that. A [`Server`] is a thread of any program, for as many communicators as come; it takes no part in
//! what members then do, but where two of them cannot reach each other: what these send each other it relays.

mod book;
pub(crate) mod client;
mod desk;
mod pairs;
mod relay;
mod server;
mod visitor;

pub use server::{Limits, Refusals, Server};
