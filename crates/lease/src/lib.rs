//! L0: the pure state machines of hotlease. They have no clocks and no I/O: time is an argument, and the actions to
//! carry out are returned as values, so the daemons and a simulator run the same code.
//!
//! - [`LeaseRequest`] — a request for a lease, in the form that all parties pass to each other.
//! - [`agent`] — the only writer of a node's cores ([`agent::LeaseBook`]), its membership of a manager
//!   ([`agent::Membership`]), and the totals that no ledger has acknowledged ([`agent::OwedTotals`]).
//! - [`manager`] — the registered agents, the choice of agents for a request, and the time at which each change may be
//!   acknowledged ([`manager::Cluster`]).
//! - [`ledger`] — merging of usage, limits of what an agent may bill, and the price of usage.
//! - [`client`] — acquisition of a lease, its renewal, and repeated attempts.
//!
//! Time is a [`std::time::Duration`] since a moment that the caller chose once (usually its own start).

#![forbid(unsafe_code)]

pub mod agent;
pub mod client;
pub mod ledger;
pub mod manager;
mod request;

pub use request::{CoreUse, EXCLUDED_MAX, LeaseBounds, LeaseRequest, LeaseSpec, PlacementSpread, TTL_MAX, TTL_MIN};
