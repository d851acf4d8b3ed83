//! Level 2 of hotlease: leases, channels, invocations, retries, buffers. The C ABI, the C++ header and the command
//! line are built on this crate.
//!
//! ```no_run
//! use hotlease_client::{Code, Error, Invoker, LeaseOptions};
//!
//! fn main() -> Result<(), Error> {
//!     let code = Code::open("./libhello.so")?; // any shared library of C functions
//!     let invoker = Invoker::allocate(&code, LeaseOptions::default())?; // a leased, separate process
//!     let hello = invoker.function("hello")?;
//!     let output = hello.call(b"world")?; // one write, one write back
//!     println!("{}", String::from_utf8_lossy(&output));
//!     Ok(())
//! }
//! ```
//!
//! - [`Code`] — a library and its functions.
//! - [`Invoker`] — a lease with code on it, kept usable; [`LeaseOptions`] say what is leased.
//! - [`Function`] — calls: [`Function::invoke`] at once, [`Function::submit`] later, [`Function::submit_then`] with
//!   a callback, [`Function::map`] over all slots, [`Function::pipeline`] at the highest rate,
//!   [`Function::invoke_buffer`] without copying.
//! - [`Invocation`] — a call in flight: wait for it or `.await` it.
//! - [`Buffer`] — registered memory for large data.
//! - [`RemoteMemory`] — memory of other nodes, read and written without a core there.
//! - [`Model`] — cost of calls, and how many tasks to send so that the caller never waits.
//! - [`Error`] — what went wrong, whether the function ran, and what to do next.
//!
//! All types are `Send + Sync` unless their documentation says otherwise. The library runs one background thread in
//! a process for leases and the news of dead workers (`hotlease-control`), and one for each invoker whose futures
//! are polled or that has callbacks (`hotlease-completion`). No invocation passes through these threads.
//!
//! An invoker's channels are its own. If a process were to offer its own slots to peers (the private executors of the
//! rFaaS paper, section 3.5), a channel would only need an introduction, which today only agents make; see
//! [`hotlease_wire::connection`].

#![forbid(unsafe_code)]

mod buffer;
mod calls;
mod channel;
mod code;
mod control;
mod error;
#[cfg(test)]
mod fake_platform;
mod invocation;
mod invoker;
mod lease;
mod model;
mod offer;
mod options;
mod remote_memory;
mod retry;
mod seats;
mod session;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, BufferSlice, BufferSliceMut, Input, Output};
pub use calls::batch::Map;
pub use calls::future::{BufferInvocation, Invocation};
pub use code::Code;
pub use error::Error;
pub use invocation::function::Function;
pub use invocation::pipeline::{AwaitedCall, Pipeline};
pub use invoker::Invoker;
pub use lease::ColdPhases;
pub use lease::manager::job_managers;
pub use model::call_cost::CallCost;
pub use model::{Measurements, Model, Work, WorkPlan};
pub use offer::{Invitation, Offer};
pub use options::python::Python;
pub use options::reach::{Directory, Reach};
pub use options::{Completion, LeaseOptions, Placement, Polling, Sharing, Spread};
pub use remote_memory::{MemoryOptions, MemoryTransfer, RemoteMemory};
pub use seats::SeatedWorkers;

pub use hotlease_net::{Credential, IdentityError, NetError};
pub use hotlease_wire::code::Interface;
pub use hotlease_wire::comm::seat::{Seat, SeatSecret};
pub use hotlease_wire::ids::{CodeHash, LeaseId};
pub use hotlease_wire::limits::PARTS_MAX;
pub use hotlease_wire::session::{StartPhases, StartSteps, UsageTotals};
pub use hotlease_wire::storage::{StoragePlace, StoragePlaceError};
pub use hotlease_wire::{Cause, EndReason, Rejection, RunCertainty};

/// Compiles the programs in docs/rust.md, like examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
mod rust_page {}
