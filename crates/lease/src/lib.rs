//! L0: the pure state machines of hotlease. No clocks, no I/O: time is an argument, and what is to be
//! done comes back as a value, so the daemons and a simulator run the same code.
//!
//! * [`agent`] — the only writer of a node's cores ([`agent::LeaseBook`]), its membership of a manager
//!   ([`agent::Membership`]), and the totals that no ledger has acknowledged ([`agent::Outstanding`]).
//! * [`manager`] — which agents there are and whom to ask, and what may be acknowledged when
//!   ([`manager::Cluster`]).
//! * [`ledger`] — how usage merges, what an agent may bill at most, and what usage costs.
//! * [`client`] — getting a lease, keeping it, and trying again.
//!
//! Time is a [`std::time::Duration`] since some start that the caller chose once (its own, usually).

#![forbid(unsafe_code)]

pub mod agent;
pub mod client;
pub mod ledger;
pub mod manager;
