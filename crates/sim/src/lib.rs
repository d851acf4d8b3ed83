//! Dev only: a whole site in one process, with virtual time and seeded faults.
//!
//! The daemons' and the client library's state machines ([`hotlease_lease`]) run here as they run in the daemons. The
//! simulator has its own ledger and journal, which can lose data wherever the real ones may lose data. The simulated
//! network loses, delays, duplicates and reorders messages. Disks lose unsynced writes and fill up, clocks drift, and
//! processes pause and die between any two actions. All choices are drawn from one seed: the same seed gives the same
//! run, to the last event.
//!
//! After each step, the promises are checked against what really happened ([`truth`]): no slot serves two epochs, no
//! lease outlives its expiry, every future resolves and reports correctly whether its function ran, no tenant is billed
//! for more than was used, and acknowledged data is durable. After the end of the faults, everything comes to rest
//! within a time limit.
//!
//! ```
//! let run = hotlease_sim::run(1, false);
//! assert_eq!(run.violation, None);
//! ```
//!
//! Another model in this crate, [`replay`], computes how much of the time of a site's idle nodes can be used.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // the modules need none: a program for developers of hotlease

mod agent;
mod client;
mod durable;
mod hold;
mod journal;
mod manager;
mod message;
mod node;
pub mod replay;
pub mod scenario;
mod shared_state;
mod spread;
pub mod truth;
mod workers;
mod world;

pub use scenario::Scenario;
pub use world::{RunResult, World};

/// The run of a seed.
pub fn run(seed: u64, tracing: bool) -> RunResult {
    World::new(Scenario::new(seed), tracing).run()
}
