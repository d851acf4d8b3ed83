//! Level 0 of hotlease: everything that crosses a process boundary, as pure codecs.
//!
//! * [`frame`] — request and reply headers, one cache line each: the data plane.
//! * [`fabric`] — prefixes of frames over libfabric, and the addresses that its two ends exchange.
//! * [`session`] — client ↔ agent: attach with a token, load code, connect to workers, renew, release.
//! * [`control`] — agent ↔ worker.
//! * [`connection`] — client ↔ worker: open channels, register memory.
//! * [`tunnel`] — sessions and connections, carried from host to host.
//! * [`token`] — the MAC'd capability for a lease.
//! * [`munge`] — payload of a cluster user's credential.
//! * [`comm`] — message passing between functions: members, their rendezvous, their messages.
//! * [`control::batch`] — batch system → agent: jobs that begin and end on the node.
//! * [`state`] — head of the file that keeps a worker's state between two leases.
//! * [`task`] — tasks of Python workers and their results, inside the payloads of invocations.
//! * [`storage`] — object storage that a lease asks for.
//! * [`code`] — the functions of a shared library, read from its bytes.
//! * [`grpc`] — client ↔ manager ↔ agent (feature `grpc`).
//! * [`mirror!`] — macro that defines a struct with the fields of a message, for output in another format.
//!
//! Every decoder here is total: any bytes give a value or a [`DecodeError`], never a panic, and never an allocation
//! larger than the message (except lists of lengths, which have bounds of their own). Each decoder has a fuzz target
//! under `fuzz/`.
//!
//! ```
//! use hotlease_wire::frame::{ReplyHeader, Seq};
//! let reply = ReplyHeader::ok(Seq::new(7, 42), 3);
//! assert_eq!(ReplyHeader::decode(&reply.encode()).unwrap(), reply);
//! ```

#![forbid(unsafe_code)]

pub mod code;
pub mod comm;
pub mod connection;
pub mod control;
pub mod fabric;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod machine;
mod message;
pub mod munge;
pub mod python;
pub mod rejection;
pub mod session;
pub mod state;
pub mod storage;
pub mod task;
pub mod token;
pub mod tunnel;

/// gRPC messages and service stubs, generated from the files of `proto`.
#[cfg(feature = "grpc")]
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod grpc {
    tonic::include_proto!("hotlease.v1");

    /// The protocol's `FileDescriptorSet`: its routes and messages.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hotlease.bin"));
}

pub use control::batch;
pub use message::{DecodeError, decode, encode};
pub use rejection::{Cause, EndReason, Rejection, RunCertainty};
