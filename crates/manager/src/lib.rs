//! L3: the cluster daemon: it knows the agents, decides whom to ask for cores, and keeps the ledger.
//!
//! It takes no part in invocations, and grants nothing itself: the agent alone writes its slots, so a
//! manager that dies loses no lease, and one that starts again knows everything half a second later,
//! when the agents register again.
//!
//! * [`Manager`] — the running daemon; [`ManagerConfig`] says where.
//! * `listener` — the Unix socket: one manager to a runtime directory, peers checked on accept.
//! * [`identity`] — who asks, and what that lets them do: every request goes through its gate.
//! * `service` — the gRPC service; `acquire`, `membership` and `listing` do its work.
//! * `people` — tenants and keys; `door` — sessions for those who bring a credential.
//! * `billing` — bills at the prices of a `tariff`, and holding the ledger against agents' journals.
//! * `links` — connections to the agents.
//! * `rest` — the same over HTTP, for operators and batch systems; [`openapi`] describes it.
//! * `metrics`, `observed`, `trace` — what is counted, where, and what a request is called in the logs.
//!
//! ```no_run
//! # async fn example() -> Result<(), hotlease_manager::ManagerError> {
//! use hotlease_manager::{Manager, ManagerConfig};
//! let manager = Manager::start(ManagerConfig::new("/run/user/1000/hotlease")).await?;
//! manager.shutdown_requested().await; // a client sent Shutdown
//! manager.shutdown().await;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod acquire;
mod billing;
mod commits;
mod config;
mod door;
mod error;
pub mod identity;
mod images;
mod links;
mod listener;
mod listing;
mod machine;
mod manager;
mod membership;
mod metrics;
mod nodes;
mod observed;
mod offers;
mod people;
mod records;
mod rest;
mod service;
mod state;
mod tariff;
mod trace;

pub use config::{MANAGER_LOCK, MANAGER_SOCKET, ManagerConfig, Network, REST_SOCKET};
pub use error::ManagerError;
pub use hotlease_lease::manager::AgentRecord;
pub use manager::Manager;
pub use rest::openapi;
pub use tariff::load_tariff;
