//! Support for the black-box tests: a platform of built binaries, and clients that misbehave.
//!
//! * [`nodes`] — a manager and several agents, each a process with a separate directory, on one machine.
//! * [`platform`] — `hotlease up` in a private runtime directory; checks at its end that nothing is left.
//! * [`library`] — function libraries compiled from `fixtures/`.
//! * [`process`] — facts from the kernel about a process: memory, descriptors, cores, whether it runs.
//! * [`manager`] — the manager's gRPC interface, blocking.
//! * [`session`], [`connection`], [`channel`] — the client's side of each socket and of the rings, without the client
//!   library, so that tests can break the protocol.
//! * [`fabric`] — the client's side of a channel over a fabric, without the client library.
//! * [`garbage`] — nearly valid messages.
//! * [`lease`] — all of these together; a bystander that notices any disturbance.
//! * [`faults`] — daemons that are broken one at a time, and work that is checked.
//! * [`http`] — HTTP, also in ways that no client uses.
//! * [`hosts`] — several hosts on one machine; a network that misbehaves; a cluster of Slurm.
//! * [`site`] — a manager and agents on hosts that identify each other by certificates, and their clients.
//! * [`swapping`] — agents that save the states of workers.
//! * [`versitygw`] — a store that speaks S3.
//! * [`wait`] — waiting for a condition, with a limit.
//!
//! The tests themselves are the modules of `platform/main.rs` and, across hosts, `hosts/main.rs`. They run the programs
//! that `make build` left beside the test program, and never build anything themselves.

pub mod channel;
pub mod connection;
pub mod fabric;
pub mod faults;
pub mod garbage;
pub mod hosts;
pub mod http;
pub mod lease;
pub mod library;
pub mod manager;
pub mod marks;
pub mod nodes;
pub mod platform;
pub mod process;
pub mod session;
pub mod site;
pub mod swapping;
pub mod versitygw;
pub mod wait;
