//! Environments from agent to agent: where to read one, says the manager; it comes over gRPC, and goes on to others while it comes.
//!
//! Who fetches and who reads a file blocks, on threads of their own, which do not keep a process that ends; what is between them and
//! the network are tasks, and channels that hold a few pieces.

mod fetching;
mod sending;

pub(crate) use fetching::Others;
pub(crate) use sending::{Pieces, Sending};
