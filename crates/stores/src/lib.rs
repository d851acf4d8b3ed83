//! L2: links of communicators through a store that all members can reach: Redis, S3, or DynamoDB. For members that
//! cannot reach each other.
//!
//! A program that has these links says so when it joins; the cargo features `redis`, `s3` and `dynamodb` (default: all)
//! say which of them it has:
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
//! A message is one object (`object.rs`), written when it is sent and read when a member asks for it; its reader removes
//! it. What a collective publishes for several members is removed by its writer, once all have done with that
//! collective. Each member has a board (`board.rs`), which shows that it is alive and what else it tells the others.
//!
//! ```text
//!   any thread, under the engine's lock          the courier: tasks of a runtime, driven by the waiting thread
//!   Link::store, Link::send  ─── requests ─────► many requests to the store at a time
//!   Link::poll               ◄── events ──────── wakes a sleeping thread
//! ```
//!
//! Choice of the thread that drives the runtime, also while no thread waits: `driver.rs`.

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
// A function this small is inlined by itself, and each crate that calls it then compiles all that is behind the openers again:
// the clients of the stores, half a minute of processor time.
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
