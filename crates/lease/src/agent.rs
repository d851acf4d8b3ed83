//! The agent's side: the holder of each core of a node, with its expiry and its epoch.
//!
//! ```text
//!            Grant                    every worker is up or gone
//!   (free) --------->  Starting  ------------------------------->  Serving
//!      ^                   \    End, expiry, last session closed     /
//!      |                    `------------------>  Ending  <---------'
//!      |    every worker is gone                    |
//!      `----------------------------  Ended  <------'
//! ```
//!
//! The cores of a lease become free at the step from `Ending` to `Ended` and not before: a core never runs workers
//! of two leases. An ended lease is remembered for a while, for listings and so that the agent can answer a late
//! token with the reason.
//!
//! ```
//! use hotlease_lease::agent::{Action, Event, GrantRequest, LeaseBook};
//! use hotlease_wire::ids::{LeaseId, WorkerIndex};
//! use std::time::Duration;
//!
//! let mut book = LeaseBook::new([0, 1], 8 << 30);
//! let step = book.step(Event::Grant(GrantRequest {
//!     id: LeaseId([1; 8]), tenant: "uid:1000".into(), label: String::new(),
//!     workers: 2, slots_per_worker: 1, memory_bytes: 0, gpus: 0, sharing: Default::default(),
//!     ttl: Duration::from_secs(5),
//! }), Duration::ZERO);
//! assert!(step.refusal.is_none());
//! assert!(matches!(step.actions[..], [
//!     Action::StartWorker { worker: WorkerIndex(0), .. },
//!     Action::StartWorker { worker: WorkerIndex(1), .. },
//! ]));
//! assert_eq!(book.free_cores(), 0);
//! ```

mod book;
mod event;
mod fairness;
mod membership;
mod owed;
mod record;

pub use book::LeaseBook;
pub use event::{BookAction, BookEvent, BookStep, GrantRequest, NodeOffer, OfferedCores, SessionId};
pub use membership::{
    ANSWER_LIMIT, BACKOFF_MAX, GOODBYE_LIMIT, HEARTBEAT, Membership, MembershipAction, MembershipEvent, QuestionId,
};
pub use owed::{FUNCTIONS_AT_ONCE_MAX, FinalTotal, OwedTotals, REPORTED_AT_ONCE_MAX};
pub use record::{Availability, CoreLease, CoreUse, Delegation, EndedLease, LeasePhase, WorkerRecord, WorkerState};

pub use fairness::{CorePermission, Fairness, LOOK_PERIOD, WorkerSample};

use std::time::Duration;

/// Shortest time to live that a lease may ask for.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// Longest time to live that a lease may ask for.
pub const TTL_MAX: Duration = Duration::from_secs(3600);
/// How long a lease with a longer time to live waits for its first session: its client may have died before it
/// learnt of the grant, and nothing else would notice that.
pub const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// Number of ended leases that are remembered.
pub const ENDED_MAX: usize = 1024;
