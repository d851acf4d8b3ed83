//! Level 2 of hotlease: links of communicators through a store that all members can reach: Redis, S3, or DynamoDB. They
//! are for members that cannot reach each other.
//!
//! A program passes the openers of these links when it joins. The cargo features `redis`, `s3` and `dynamodb` (default:
//! all) select the stores:
//!
//! ```no_run
//! use hotlease_comm::{Communicator, Options};
//!
//! let mut options = Options::from_env()?;
//! options.link = "redis://cache.example:6379".parse()?;
//! options.stores = hotlease_stores::openers();
//! let all = Communicator::join(&options)?;
//! # Ok::<(), hotlease_comm::Error>(())
//! ```
//!
//! A message is one object (`object.rs`), which is written when the message is sent, and read when a member asks for
//! the message; the reader removes it. An object that a collective publishes for several members is removed by its
//! writer, once all members have finished that collective. Each member has a board (`board.rs`), which shows that the
//! member is alive and contains its reports to the others.
//!
//! ```text
//!   any thread, under the engine's lock          the courier: tasks of a runtime, driven by the waiting thread
//!   Link::store, Link::send  ─── requests ─────► many requests to the store at a time
//!   Link::poll               ◄── events ──────── wakes a sleeping thread
//! ```
//!
//! `driver.rs` chooses the thread that drives the runtime, also while no thread waits.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "redis", feature = "s3", feature = "dynamodb")),
    allow(dead_code, reason = "each store uses a part of it")
)]

mod backoff;
mod board;
mod boards;
mod courier;
mod driver;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod link;
mod lock;
mod object;
#[cfg(feature = "redis")]
mod redis;
mod request;
#[cfg(feature = "s3")]
mod s3;
mod store;

use hotlease_comm::link::StoreOpener;

/// Returns the openers of all stores that this crate was built with, for
/// [`Options::stores`](hotlease_comm::Options::stores).
// The compiler would inline a function this small. Then each crate that calls it would compile the clients of the
// stores again, which takes half a minute of processor time.
#[inline(never)]
pub fn openers() -> &'static [StoreOpener] {
    &[
        #[cfg(feature = "redis")]
        redis::OPENER,
        #[cfg(feature = "s3")]
        s3::OPENER,
        #[cfg(feature = "dynamodb")]
        dynamodb::OPENER,
    ]
}
