//! Errors of starting an agent.

use hotlease_journal::DirectoryError;
use hotlease_sandbox::SandboxError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reason why an agent did not start. No part of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another agent runs in the runtime directory.
    #[error("an agent runs already in {dir}; stop it with `hotlease down`, or set HOTLEASE_RUNTIME_DIR")]
    AlreadyRunning {
        /// The runtime directory.
        dir: PathBuf,
    },
    /// The runtime directory cannot be used.
    #[error("agent cannot {what} {path}: {source}")]
    Runtime {
        /// Operation that failed.
        what: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The socket's path is longer than the system allows.
    #[error("{path} is too long for a socket: at most 107 bytes; set HOTLEASE_RUNTIME_DIR to a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The agent cannot listen on the address for other hosts.
    #[error("agent cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The requested cores are not available.
    #[error("cannot offer {asked}: this process may run on {allowed}; see `taskset -p $$`")]
    Cores {
        /// Cores that were requested.
        asked: String,
        /// Cores that are available.
        allowed: String,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] DirectoryError),
    /// No worker can be started.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The site's policy cannot be used.
    #[error("the policy {path} cannot be used: {why}; `hotlease node policy check {path}` tries it")]
    Policy {
        /// The file.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// A setting is invalid.
    #[error("agent: {what}")]
    Config {
        /// The setting, and why it is invalid.
        what: String,
    },
}
