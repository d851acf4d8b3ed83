//! Manager, agents and clients on different hosts.
//!
//! * [`remote`] — leases and sessions over TLS, on this machine's loopback.
//! * [`authority`] — what is issued, and read.
//! * [`identities`] — who is refused, and what that says.
//! * [`strangers`] — what anybody can send to a TLS port.
//! * [`broken`] — what a worker makes of clients that break off, or lie, on its fabric.
//! * [`calls`] — invocations from one host to another, over every provider that there is.
//! * [`doors`] — clients without a certificate: keys, tokens, MUNGE, and tokens of leases.
//! * [`environments`] — from agent to agent.
//! * [`failover`] — several managers on one PostgreSQL database, killed and stopped.
//! * [`faults`] — hosts, workers, providers and networks that fail while such calls are made.
//! * [`nat`] — members of a communicator behind NATs and firewalls.
//! * [`sharing`] — tenants that share a core.
//! * [`several`] — on hosts of their own: both address families, links that lose, delay and break.

mod authority;
mod broken;
mod calls;
mod doors;
mod environments;
mod failover;
mod faults;
mod identities;
#[path = "../../crates/manager/tests/manager/munged.rs"]
mod munged;
mod nat;
mod remote;
#[path = "../../crates/store/tests/postgres/server.rs"]
mod server;
mod several;
mod sharing;
mod strangers;
mod trees;
