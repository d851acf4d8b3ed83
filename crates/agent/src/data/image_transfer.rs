//! Transfer of environments between agents over gRPC. The manager names the agent to read from; an agent passes an
//! environment on while it is still arriving.
//!
//! Fetches, and reads of files, block their thread. So each of them has its own thread, which does not delay the end of
//! the process. Channels, which contain at most a few pieces, connect these threads to tasks that use the network.

mod fetching;
mod sending;

pub(crate) use fetching::OtherAgents;
pub(crate) use sending::{ImagePieces, ImageSender};
