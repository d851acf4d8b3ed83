//! Level 2 of hotlease: gangs. A gang is a set of workers that run a function at the same time, one rank each; their
//! functions send each other messages. Either all workers are leased, or none.
//!
//! The client's side is [`Gang`]:
//!
//! ```no_run
//! use hotlease_client::{Code, LeaseOptions};
//! use hotlease_gang::Gang;
//!
//! let code = Code::open("./libsums.so")?;
//! let gang = Gang::lease(&code, LeaseOptions { workers: 4, ..LeaseOptions::default() }, None)?;
//! for output in gang.call("total", &7f64.to_le_bytes())? {
//!     println!("{output:?}"); // of each rank, in their order
//! }
//! # Ok::<(), hotlease_gang::Error>(())
//! ```
//!
//! The function's side is [`communicator()`], which takes the context of a function ([`FunctionContext`]):
//!
//! ```
//! use hotlease_comm::Operator;
//! use hotlease_gang::{Error, FunctionContext, communicator};
//!
//! fn total(context: &FunctionContext, mine: f64) -> Result<f64, Error> {
//!     let all = communicator(context)?;
//!     let mut sum = [0.0];
//!     all.allreduce(&[mine], &mut sum, &Operator::Sum)?;
//!     Ok(sum[0])
//! }
//! ```
//!
//! The first call that asks for the communicator of the ranks makes it, and the workers keep it for later calls. The
//! communicator ends when a function fails at a rank or a worker dies. The other ranks learn of that within two
//! seconds, and the next call has a new communicator.

#![forbid(unsafe_code)]

mod communicator;
mod error;
mod gang;
mod results;

pub use communicator::{communicator, communicator_in};
pub use error::Error;
pub use gang::{Gang, GangCall, Inputs};
pub use hotlease_worker::{FunctionContext, SeatValue};
