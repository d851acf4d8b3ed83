//! Errors of starting a manager.

use hotlease_store::StoreError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Error of starting a manager. Nothing of the manager is left running.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Another manager runs in the runtime directory.
    #[error("a manager runs already in {dir}; stop it with `hotlease down`, or set HOTLEASE_RUNTIME_DIR")]
    AlreadyRunning {
        /// The runtime directory.
        dir: PathBuf,
    },
    /// The runtime directory cannot be used.
    #[error("manager cannot {what} {path}: {source}")]
    Runtime {
        /// Operation that failed.
        what: &'static str,
        /// Path on which the operation failed.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The manager cannot listen on the address for other hosts.
    #[error("manager cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The prices cannot be used.
    #[error("the prices in {path} cannot be used: {why}")]
    Tariff {
        /// File with the prices.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// The durable state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Reading the durable state panicked. A start without it would forget leases, usage and orders.
    #[error(
        "manager cannot read its ledger: the reading panicked, which is a bug of hotlease; the log says where. Nothing was \
         changed; report it, and start the manager again, or the ledger's last backup (`hotlease admin restore`)"
    )]
    ReadingPanicked,
    /// The path of the socket is longer than the system allows.
    #[error("{path} is too long for a socket: at most 107 bytes; set HOTLEASE_RUNTIME_DIR to a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
}
