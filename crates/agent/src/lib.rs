//! Level 3 of hotlease: the node daemon. It owns the node's offered cores, starts workers on them for the holders of
//! leases, and introduces clients to these workers; after that, invocations do not pass through it.
//!
//! ```text
//!  manager --gRPC: grant, end, status--> service --.
//!  client --session socket--> listener -> session --+--> node: the book's steps --> incarnation -> worker
//!  manager <--register, heartbeat-- membership      |        |                          (process)
//!                     watchdog, journalling ---'        `-> outbox -> session
//! ```
//!
//! Clients and managers on other hosts come through `network`, and then take the same path.
//!
//! The book ([`hotlease_lease::agent`]) makes all decisions about cores, leases and epochs; this crate carries them
//! out. [`Agent::start`] runs one agent within the current tokio runtime:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hotlease_agent::{Agent, AgentConfig};
//! use hotlease_fabric::runtime_dir::RuntimeDir;
//! let agent = Agent::start(AgentConfig::new(RuntimeDir::resolve()?.path())).await?;
//! agent.registered().await;
//! agent.shutdown().await;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod active_lease;
mod agent;
mod attribution;
mod borrowing;
mod caller;
mod cause;
mod code;
mod config;
mod cores;
mod direct;
mod drain;
mod error;
mod failures;
mod forecast;
mod idle_memory;
mod image_transfer;
mod images;
mod incarnation;
mod journalling;
mod listener;
mod listing;
mod lock;
mod membership;
mod network;
mod node;
mod outbox;
mod pool;
mod python;
mod reach;
mod sandboxes;
mod service;
mod session;
mod sharing;
mod socket;
mod spares;
mod start;
mod start_records;
mod storage;
mod swap;
mod usage;
mod watchdog;
mod worker;
mod zygotes;

pub use agent::Agent;
pub use config::{
    AGENT_ID, AGENT_LOCK, AGENT_SOCKET, AgentConfig, BadCoreChoice, CoreChoice, Environments, Network, SESSION_SOCKET,
};
pub use error::AgentError;
pub use reach::{BadDirectoryGrant, DirectoryGrant};
pub use swap::SwapOptions;
pub use swap::listing::{SavedState, list_states as saved_states, remove as remove_state};
