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
//! The communicator of the ranks is made in the first call that asks for it, and the workers keep it: later calls find
//! it as it was left. It ends when a function fails at a rank or a worker dies, which the other ranks learn within two
//! seconds; the next call has a new one.

#![forbid(unsafe_code)]

mod communicator;
mod error;
mod gang;
mod results;

pub use communicator::{communicator, communicator_in};
pub use error::Error;
pub use gang::{Gang, GangCall, Inputs};
pub use hotlease_worker::{FunctionContext, SeatValue};
