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
//! The cores of a lease become free only at the step from `Ending` to `Ended`, so the core of an exclusive lease never
//! runs workers of two leases. The book remembers an ended lease for a while, for listings, and so that the agent can
//! reject a late token with the reason of the end.
//!
//! ```
//! use hotlease_lease::agent::{BookAction, BookEvent, LeaseBook};
//! use hotlease_lease::{LeaseRequest, LeaseSpec};
//! use hotlease_wire::ids::{LeaseId, WorkerIndex};
//! use std::time::Duration;
//!
//! let mut book = LeaseBook::new([0, 1], 8 << 30);
//! let request = LeaseRequest::new("uid:1000", LeaseSpec::exclusive(2, 1), Duration::from_secs(5));
//! let grant = BookEvent::Grant { lease: LeaseId([1; 8]), request: request.into() };
//! let step = book.step(grant, Duration::ZERO);
//! assert!(step.refusal.is_none());
//! assert!(matches!(step.actions[..], [
//!     BookAction::StartWorker { worker: WorkerIndex(0), .. },
//!     BookAction::StartWorker { worker: WorkerIndex(1), .. },
//! ]));
//! assert_eq!(book.free_cores(), 0);
//! ```

mod balance;
mod book;
mod core_choice;
mod event;
mod fairness;
mod membership;
mod node_limits;
mod owed;
mod record;

pub use balance::{Balance, CoreMove, LoadSample};
pub use book::LeaseBook;
pub use core_choice::{BadCoreChoice, CoreChoice};
pub use event::{BookAction, BookEvent, BookStep, NodeOffer, OfferedCores, OfferedGpus, SessionId};
pub use membership::{
    ANSWER_LIMIT, BACKOFF_MAX, GOODBYE_LIMIT, HEARTBEAT, Membership, MembershipAction, MembershipEvent, QuestionId,
};
pub use node_limits::NodeLimits;
pub use owed::{FUNCTIONS_AT_ONCE_MAX, FinalTotal, OwedTotals, REPORTED_AT_ONCE_MAX};
pub use record::{Availability, CoreLease, Delegation, EndedLease, LeasePhase, WorkerRecord, WorkerState};

pub use fairness::{CorePermission, Fairness, LOOK_PERIOD, WorkerSample};

use std::time::Duration;

/// Longest time that a lease waits for its first session, even if its time to live is longer. A client that died before
/// it learned of the grant would not be noticed in another way.
pub const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// Number of ended leases that are remembered.
pub const ENDED_MAX: usize = 1024;
