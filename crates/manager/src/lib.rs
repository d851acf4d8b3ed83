//! L3: the cluster daemon. It registers agents, decides which of them to ask for cores, and keeps the ledger.
//!
//! The manager takes no part in invocations, and grants nothing itself: only the agent assigns its cores. So no lease
//! is lost when a manager dies. A restarted manager has its whole state again half a second later, when the agents have
//! registered.
//!
//! * [`Manager`] — the running daemon; [`ManagerConfig`] is its configuration.
//! * `listener` — the Unix sockets: one manager for each runtime directory, peers checked on accept.
//! * [`identity`] — authentication and authorisation: every request passes its gate.
//! * `state` — what all requests share: the state machine and its driver, writes on their way to the store, and
//!   connections to the agents.
//! * `service` — the gRPC service; `leases` and `agents` do its work.
//! * `tenants` — tenants and keys; `identity_service` — sessions for clients with a credential.
//! * `billing` — bills at the prices of a tariff, and the comparison of the ledger with agents' journals.
//! * `rest` — the same operations over HTTP, for operators and batch systems; [`openapi`] describes them.
//! * `metrics`, `request_metrics`, `trace` — metrics, counts of requests, and trace ids of requests in the logs.
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

mod agents;
mod billing;
mod config;
mod error;
pub mod identity;
mod identity_service;
mod leases;
mod listener;
mod manager;
mod metrics;
mod records;
mod refusal_kind;
mod request_metrics;
mod rest;
mod service;
mod state;
mod tenants;
mod trace;

pub use billing::load_tariff;
pub use config::{MANAGER_LOCK, MANAGER_SOCKET, ManagerConfig, ManagerNetwork, REST_SOCKET};
pub use error::ManagerError;
pub use hotlease_lease::manager::AgentProfile;
pub use manager::Manager;
pub use rest::openapi;
