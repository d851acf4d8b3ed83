//! Transfer of environments between agents over gRPC. The manager names the agent to read from; an agent passes an
//! environment on while it is still arriving.
//!
//! Threads that fetch or read a file block; they are separate threads, which do not delay the end of the process. Tasks
//! connect them to the network, over channels that hold a few pieces.

mod fetching;
mod sending;

pub(crate) use fetching::OtherAgents;
pub(crate) use sending::{ImagePieces, ImageSender};
