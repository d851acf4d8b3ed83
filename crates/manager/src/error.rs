//! Why a manager did not start.

use hotlease_store::StoreError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a manager did not start. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The runtime directory has one.
    #[error("a manager runs already in {dir}; stop it with `hotlease down`, or set HOTLEASE_RUNTIME_DIR")]
    AlreadyRunning {
        /// The runtime directory.
        dir: PathBuf,
    },
    /// The runtime directory cannot be used.
    #[error("manager cannot {what} {path}: {source}")]
    Runtime {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The address for other hosts cannot be listened on.
    #[error("manager cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The prices make no sense.
    #[error("the prices in {path} cannot be used: {why}")]
    Tariff {
        /// Where they are.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Its durable state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Reading its durable state panicked: starting without it would forget leases, usage and orders.
    #[error(
        "manager cannot read its ledger: the reading panicked, which is a bug of hotlease; the log says where. Nothing was \
         changed; report it, and start the manager again, or the ledger's last backup (`hotlease admin restore`)"
    )]
    ReadingPanicked,
    /// The socket's path is longer than the system takes.
    #[error("{path} is too long for a socket: at most 107 bytes; set HOTLEASE_RUNTIME_DIR to a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
}
