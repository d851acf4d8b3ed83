//! Why an agent did not start.

use hotlease_journal::DirectoryError;
use hotlease_sandbox::SandboxError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why an agent did not start. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The runtime directory has one.
    #[error("an agent runs already in {dir}; stop it with `hotlease down`, or set HOTLEASE_RUNTIME_DIR")]
    AlreadyRunning {
        /// The runtime directory.
        dir: PathBuf,
    },
    /// The runtime directory cannot be used.
    #[error("agent cannot {what} {path}: {source}")]
    Runtime {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket's path is longer than the system takes.
    #[error("{path} is too long for a socket: at most 107 bytes; set HOTLEASE_RUNTIME_DIR to a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The address for other hosts cannot be listened on.
    #[error("agent cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The cores asked for are not there.
    #[error("cannot offer {asked}: this process may run on {allowed}; see `taskset -p $$`")]
    Cores {
        /// What was asked for.
        asked: String,
        /// What there is.
        allowed: String,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] DirectoryError),
    /// No worker can be started.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A setting makes no sense.
    #[error("agent: {what}")]
    Config {
        /// Which, and why.
        what: String,
    },
}
