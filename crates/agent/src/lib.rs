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
//! Clients and managers on other hosts connect through `network`. From there their requests take the same path.
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

mod batch;
mod config;
mod control;
mod data;
mod error;
mod isolation;
mod leases;
mod node;
mod socket;
mod workers;

pub use batch::hours::{WeekHours, WeekMinute};
pub use batch::policy::{KeptBack, SitePolicy};
pub use config::{
    AGENT_ID, AGENT_LOCK, AGENT_SOCKET, AgentConfig, AgentNetwork, NODE_SOCKET, SESSION_SOCKET, SharedByTenants,
};
pub use control::agent::Agent;
pub use control::cores::allowed as allowed_cores;
pub use data::images::Environments;
pub use data::swap::SwapOptions;
pub use data::swap::listing::{SavedState, list_states as saved_states, remove as remove_state};
pub use error::AgentError;
pub use hotlease_lease::LeaseBounds;
pub use hotlease_lease::agent::{BadCoreChoice, CoreChoice};
pub use isolation::reach::{BadDirectoryGrant, DirectoryGrant};
