//! Configuration of a manager.

use crate::identity::{Issuers, MungeConfig, TenantPolicy};
use hotlease_lease::ledger::Tariff;
use hotlease_net::{Identity, Limits};
use hotlease_store::{MemoryStore, Store};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Name of the manager's socket in the runtime directory.
pub const MANAGER_SOCKET: &str = "manager.sock";
/// Name of the REST interface's socket in the runtime directory.
pub const REST_SOCKET: &str = "rest.sock";
/// Name of the file in the runtime directory that a running manager keeps locked.
pub const MANAGER_LOCK: &str = "manager.lock";

/// Network endpoint on which a manager serves other hosts, beside its Unix socket.
#[derive(Debug, Clone)]
pub struct ManagerNetwork {
    /// Address of the TLS port; port 0 chooses a free port.
    pub listen: SocketAddr,
    /// Identity of the manager, of role manager.
    pub identity: Arc<Identity>,
    /// Limits on connections and handshakes of strangers and peers.
    pub limits: Limits,
    /// Whether clients without a certificate are admitted; they need a key, a token or a MUNGE credential.
    pub without_certificate: bool,
}

/// Configuration of a manager. Start from [`ManagerConfig::new`] and change fields as needed.
pub struct ManagerConfig {
    /// Directory of the manager's sockets; only its owner may have access to it. No default.
    pub runtime_dir: PathBuf,
    /// Durable state (default: an empty [`MemoryStore`]).
    pub store: Arc<dyn Store>,
    /// Prices of usage (default: a unit for each hour of computing or polling).
    pub tariff: Tariff,
    /// Time limit for an agent's answer to a listing; after it the agent is left out (default: 1 s).
    pub listing_timeout: Duration,
    /// Time limit for an agent's grant; after it the next agent is asked (default: 3 s).
    pub grant_timeout: Duration,
    /// Time limit for an agent to end a lease, including the reaping of its workers (default: 5 s).
    pub end_timeout: Duration,
    /// Time limit for an agent to accept an order; after it the operator is told that the agent gets the order later
    /// (default: 3 s).
    pub order_timeout: Duration,
    /// Admission of callers that no operator has named (default: open).
    pub tenants: TenantPolicy,
    /// Issuers whose tokens are accepted (default: none).
    pub issuers: Option<Issuers>,
    /// Access to the cluster's MUNGE (default: none).
    pub munge: Option<MungeConfig>,
    /// Endpoint for other hosts (default: none).
    pub network: Option<ManagerNetwork>,
    /// REST endpoint for other hosts, with or without a certificate (default: none).
    pub rest: Option<ManagerNetwork>,
}

impl ManagerConfig {
    /// Default configuration, with its state in memory.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        Self {
            runtime_dir: runtime_dir.into(),
            store: Arc::new(MemoryStore::default()),
            tariff: Tariff::default(),
            listing_timeout: Duration::from_secs(1),
            grant_timeout: Duration::from_secs(3),
            end_timeout: Duration::from_secs(5),
            order_timeout: Duration::from_secs(3),
            tenants: TenantPolicy::default(),
            issuers: None,
            munge: None,
            network: None,
            rest: None,
        }
    }
}
