//! L3: the cluster daemon. It knows the agents, decides which of them to ask for cores, and keeps the ledger.
//!
//! The manager takes no part in invocations, and grants nothing itself: each agent alone writes its slots. So no
//! lease is lost when a manager dies, and a restarted manager knows everything half a second later, when the agents
//! have registered again.
//!
//! * [`Manager`] — the running daemon; [`ManagerConfig`] is its configuration.
//! * `listener` — the Unix sockets: one manager for each runtime directory, peers checked on accept.
//! * [`identity`] — authentication and authorisation: every request passes its gate.
//! * `service` — the gRPC service; `acquire`, `membership` and `listing` do its work.
//! * `people` — tenants and keys; `door` — sessions for clients with a credential.
//! * `billing` — bills at the prices of a `tariff`, and the comparison of the ledger with agents' journals.
//! * `links` — connections to the agents.
//! * `rest` — the same operations over HTTP, for operators and batch systems; [`openapi`] describes them.
//! * `metrics`, `observed`, `trace` — metrics, where requests are counted, and names of requests in the logs.
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
mod agent_connections;
mod billing;
mod commits;
mod config;
mod driver;
mod error;
pub mod identity;
mod identity_service;
mod images;
mod listener;
mod listing;
mod manager;
mod membership;
mod metrics;
mod nodes;
mod offers;
mod records;
mod request_metrics;
mod rest;
mod service;
mod state;
mod tariff;
mod tenants;
mod trace;

pub use config::{MANAGER_LOCK, MANAGER_SOCKET, ManagerConfig, Network, REST_SOCKET};
pub use error::ManagerError;
pub use hotlease_lease::manager::AgentRecord;
pub use manager::Manager;
pub use rest::openapi;
pub use tariff::load_tariff;
