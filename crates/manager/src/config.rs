//! What a manager is told at its start.

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
/// Name of the file in the runtime directory that a running manager holds locked.
pub const MANAGER_LOCK: &str = "manager.lock";

/// Where a manager serves other hosts, beside its Unix socket.
#[derive(Debug, Clone)]
pub struct Network {
    /// Address of its TLS port; port 0 for any free one.
    pub listen: SocketAddr,
    /// Who it is; of role manager.
    pub identity: Arc<Identity>,
    /// How much of it strangers and peers may occupy.
    pub limits: Limits,
    /// Whether clients without a certificate come in, who bring a key, a token or a MUNGE credential.
    pub without_certificate: bool,
}

/// What a manager is told at its start. Change what [`ManagerConfig::new`] sets as needed.
pub struct ManagerConfig {
    /// Where its socket goes: a directory that is ours alone. No default.
    pub runtime_dir: PathBuf,
    /// Its durable state (default: an empty [`MemoryStore`]).
    pub store: Arc<dyn Store>,
    /// What usage costs (default: a unit for each hour of computing or polling).
    pub tariff: Tariff,
    /// How long an agent may take to answer a listing before it is left out (default: 1 s).
    pub listing_timeout: Duration,
    /// How long an agent may take to grant before the next one is asked (default: 3 s).
    pub grant_timeout: Duration,
    /// How long an agent may take to end a lease, workers reaped included (default: 5 s).
    pub end_timeout: Duration,
    /// How long an agent may take to take an order before the operator is told that it comes later (default:
    /// 3 s).
    pub order_timeout: Duration,
    /// Who may come whom no operator has named (default: open).
    pub tenants: TenantPolicy,
    /// Issuers whose tokens it takes (default: none).
    pub issuers: Option<Issuers>,
    /// The cluster's MUNGE (default: none).
    pub munge: Option<MungeConfig>,
    /// Where it serves other hosts (default: nowhere).
    pub network: Option<Network>,
    /// Where it serves the REST interface to other hosts, with or without a certificate (default: nowhere).
    pub rest: Option<Network>,
}

impl ManagerConfig {
    /// The defaults, with state in memory.
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
