//! Manager, agents and clients on different hosts.
//!
//! * [`remote`] — leases and sessions over TLS, on this machine's loopback.
//! * [`authority`] — certificates that are issued, and read.
//! * [`identities`] — identities that are refused, and the words of the refusals.
//! * [`strangers`] — bytes that any stranger can send to a TLS port.
//! * [`broken`] — clients that break off, or lie, on a worker's fabric.
//! * [`calls`] — invocations from one host to another, over every available provider.
//! * [`credentials`] — clients without a certificate: keys, tokens, MUNGE, and tokens of leases.
//! * [`environments`] — environments that go from agent to agent.
//! * [`failover`] — several managers on one PostgreSQL database, killed and stopped.
//! * [`faults`] — hosts, workers, providers and networks that fail while such calls are made.
//! * [`nat`] — members of a communicator behind NATs and firewalls.
//! * [`sharing`] — tenants that share a core.
//! * [`several`] — manager, agents and client on hosts of their own: both address families, links that lose packets,
//!   delay and break.

mod authority;
mod broken;
mod calls;
mod credentials;
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
