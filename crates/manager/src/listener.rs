//! The manager's Unix sockets: one manager for each runtime directory; only its own user and root are admitted.
//!
//! The lock file decides which process may bind: only the holder of the lock removes a socket that a killed manager
//! left behind, and the kernel released the lock when that manager died. The lock file itself stays: after its
//! removal two managers could hold locks on two files of the same name.

use crate::{MANAGER_LOCK, MANAGER_SOCKET, ManagerError};
use hotlease_net::grpc::ServerConnection;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;

/// Limit of connections at a time; further connections are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Pause after a failed accept (no descriptors or memory left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bound socket; socket and file are removed when this is dropped.
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    /// Dropped last: while the lock is held, no other process touches the path. `None` for an additional socket.
    _lock: Option<Flock<File>>,
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "socket was gone already");
        }
    }
}

impl LocalListener {
    pub(crate) fn bind(dir: &Path) -> Result<Self, ManagerError> {
        let lock = lock(dir)?;
        Self::bind_at(dir.join(MANAGER_SOCKET), Some(lock))
    }

    /// Binds an additional socket in the same directory. `self` holds the lock, and must outlive it.
    pub(crate) fn bind_beside(&self, name: &str) -> Result<Self, ManagerError> {
        Self::bind_at(self.path.with_file_name(name), None)
    }

    fn bind_at(path: PathBuf, lock: Option<Flock<File>>) -> Result<Self, ManagerError> {
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ManagerError::PathTooLong { path });
        }
        let failed = |what| {
            let path = path.clone();
            move |source| ManagerError::Runtime { what, path, source }
        };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the stale socket")(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed("listen on"))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed("restrict access to"))?;
        Ok(Self {
            listener,
            path,
            _lock: lock,
        })
    }

    /// Accepts connections until the receiver is closed, then returns the listener, so that its owner decides when
    /// the socket's file is removed.
    pub(crate) async fn accept_into(self, accepted: mpsc::Sender<io::Result<LocalPeer>>) -> Self {
        let own_uid = nix::unistd::geteuid().as_raw();
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let stream = tokio::select! {
                () = accepted.closed() => return self,
                stream = self.listener.accept() => stream,
            };
            let stream = match stream {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(peer) = admit(stream, own_uid, &places) else {
                continue;
            };
            if accepted.send(Ok(peer)).await.is_err() {
                return self;
            }
        }
    }
}

fn lock(dir: &Path) -> Result<Flock<File>, ManagerError> {
    let path = dir.join(MANAGER_LOCK);
    let failed = |what, source| ManagerError::Runtime {
        what,
        path: path.clone(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| failed("open", source))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => ManagerError::AlreadyRunning { dir: dir.into() },
        errno => failed("lock", errno.into()),
    })
}

fn admit(stream: UnixStream, own_uid: u32, places: &Arc<Semaphore>) -> Option<LocalPeer> {
    let uid = match stream.peer_cred() {
        Ok(credentials) => credentials.uid(),
        Err(error) => {
            tracing::warn!(%error, "closed a connection without credentials");
            return None;
        }
    };
    if uid != own_uid && uid != 0 {
        tracing::warn!(uid, "closed a connection of another user");
        return None;
    }
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        tracing::warn!(limit = CONNECTIONS_MAX, "closed a connection: too many");
        return None;
    };
    Some(LocalPeer::new(stream, LocalPeerInfo { uid }, place))
}

/// Peer of a local connection; stored in the extensions of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalPeerInfo {
    pub(crate) uid: u32,
}

/// An admitted local connection.
pub(crate) type LocalPeer = ServerConnection<UnixStream, LocalPeerInfo, OwnedSemaphorePermit>;

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::transport::server::Connected;

    #[tokio::test]
    async fn a_directory_has_one_manager_and_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(MANAGER_SOCKET);
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // as after kill -9
        let first = LocalListener::bind(dir.path()).unwrap();
        assert!(matches!(
            LocalListener::bind(dir.path()),
            Err(ManagerError::AlreadyRunning { .. })
        ));
        assert!(path.exists(), "the refused second one left the socket alone");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(first);
        assert!(!path.exists());
        LocalListener::bind(dir.path()).unwrap();
    }

    #[tokio::test]
    async fn a_path_too_long_for_a_socket_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        assert!(matches!(
            LocalListener::bind(&deep),
            Err(ManagerError::PathTooLong { .. })
        ));
    }

    #[tokio::test]
    async fn other_users_and_connections_over_the_limit_are_closed() {
        let places = Arc::new(Semaphore::new(1));
        let own_uid = nix::unistd::geteuid().as_raw();
        let stream = || UnixStream::pair().unwrap().0;
        let admitted = admit(stream(), own_uid, &places).expect("our own user");
        assert_eq!(admitted.connect_info().uid, own_uid);
        assert!(admit(stream(), own_uid, &places).is_none(), "no place is left");
        drop(admitted);
        assert!(admit(stream(), own_uid, &places).is_some(), "the place is free again");
        if own_uid != 0 {
            assert!(
                admit(stream(), own_uid + 1, &places).is_none(),
                "another user's manager"
            );
        }
    }
}
