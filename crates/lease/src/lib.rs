//! L0: the pure state machines of hotlease. No clocks, no I/O: time is an argument, and what is to be
//! done comes back as a value, so the daemons and a simulator run the same code.
//!
//! * [`agent::LeaseBook`] — the only writer of a node's cores: leases, epochs, workers, sessions.
//! * [`manager::Registry`] — which agents there are, which of them are silent, and which to ask first.
//! * [`ledger`] — how usage merges, what an agent may bill at most, and what usage costs.
//!
//! Time is a [`std::time::Duration`] since some start that the caller chose once (its own, usually).

#![forbid(unsafe_code)]

pub mod agent;
pub mod ledger;
pub mod manager;
