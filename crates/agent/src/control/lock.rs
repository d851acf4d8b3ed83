//! Lock of a runtime directory, which allows one agent, and the identity that survives restarts there.
//!
//! The lock file decides who may bind: only the holder of the lock removes a socket that a killed agent left behind.
//! The kernel released the lock when that agent died.

use crate::AgentError;
use crate::config::{AGENT_ID, AGENT_LOCK};
use hotlease_wire::ids::AgentId;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Lock that allows its holder to be the agent of a runtime directory.
pub(crate) struct DirectoryLock {
    directory: PathBuf,
    _lock: Flock<File>,
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> AgentError + 'a {
    move |source| AgentError::Runtime {
        what,
        path: path.to_owned(),
        source,
    }
}

impl DirectoryLock {
    pub fn take(directory: &Path) -> Result<Self, AgentError> {
        let path = directory.join(AGENT_LOCK);
        let file = private().truncate(false).open(&path).map_err(failed("open", &path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self {
                directory: directory.to_owned(),
                _lock: lock,
            }),
            Err((_, Errno::EWOULDBLOCK)) => Err(AgentError::AlreadyRunning {
                dir: directory.to_owned(),
            }),
            Err((_, errno)) => Err(failed("lock", &path)(errno.into())),
        }
    }

    /// Path of a socket to bind. A stale socket there is removed.
    pub fn socket_path(&self, name: &str) -> Result<PathBuf, AgentError> {
        let path = self.directory.join(name);
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(AgentError::PathTooLong { path });
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove the stale socket", &path)(error))
            }
            _ => Ok(path),
        }
    }

    /// The identity in this directory. If there is none, makes a new identity and writes it there.
    pub fn identity(&self) -> Result<AgentId, AgentError> {
        match self.known_identity() {
            Some(id) => Ok(id),
            None => keep_identity(&self.directory, AgentId(rand::random())),
        }
    }

    /// The identity in this directory; `None` if there is none.
    pub fn known_identity(&self) -> Option<AgentId> {
        kept_identity(&self.directory)
    }
}

/// The identity in a directory; `None` if there is none.
pub(crate) fn kept_identity(directory: &Path) -> Option<AgentId> {
    let text = fs::read_to_string(directory.join(AGENT_ID)).ok()?;
    text.trim().parse().ok()
}

/// Writes an identity into a directory.
pub(crate) fn keep_identity(directory: &Path, id: AgentId) -> Result<AgentId, AgentError> {
    let path = directory.join(AGENT_ID);
    let written = private()
        .truncate(true)
        .open(&path)
        .and_then(|mut file| writeln!(file, "{id}").and_then(|()| file.sync_all()));
    written.map_err(failed("write", &path))?;
    Ok(id)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_agent_with_one_identity() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = DirectoryLock::take(directory.path()).expect("free");
        assert!(matches!(
            DirectoryLock::take(directory.path()),
            Err(AgentError::AlreadyRunning { .. })
        ));
        let id = lock.identity().expect("made");
        drop(lock);
        let lock = DirectoryLock::take(directory.path()).expect("free again");
        assert_eq!(lock.identity().expect("kept"), id);
        fs::write(directory.path().join(AGENT_ID), "garbage").expect("written");
        assert_ne!(lock.identity().expect("made anew"), id);
    }

    #[test]
    fn stale_sockets_are_removed_and_long_paths_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = DirectoryLock::take(directory.path()).expect("free");
        let stale = directory.path().join("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).expect("bound"));
        assert_eq!(lock.socket_path("a.sock").expect("usable"), stale);
        assert!(!stale.exists());
        assert!(matches!(
            lock.socket_path(&"s".repeat(108)),
            Err(AgentError::PathTooLong { .. })
        ));
    }
}
