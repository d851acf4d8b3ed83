//! Where members of a communicator find each other.
//!
//! A member says which communicator it belongs to and where it listens; when all have come, each is told where all the others are.
//! A [`Server`] is a thread of any program, for as many communicators as come; it takes no part in what members then do.

mod book;
pub(crate) mod client;
mod server;

pub use server::{Limits, Refusals, Server};
