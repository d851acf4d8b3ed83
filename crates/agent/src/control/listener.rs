//! Listeners of the agent's Unix sockets, with checks of users and limits on sessions.

use crate::AgentError;
use crate::control::lock::DirectoryLock;
use crate::control::session;
use crate::control::session_places::SessionPlaces;
use crate::isolation::caller::SessionPeer;
use crate::node::Node;
use hotlease_fabric::socket::{Socket, SocketListener};
use hotlease_wire::Rejection;
use hotlease_wire::session::SessionReply;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Pause after the system could not accept (no descriptors or memory left), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time in which sessions must receive the message about the agent's end.
const FAREWELL: Duration = Duration::from_secs(1);

/// File of a socket; removed on drop.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "socket was gone already");
        }
    }
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> AgentError + use<> {
    let path = path.to_owned();
    move |source| AgentError::Runtime {
        what,
        path: path.clone(),
        source,
    }
}

/// Admits the agent's own user and root, and no other user.
pub(crate) fn admits(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// Binds a socket for messages in the runtime directory.
pub(crate) fn bind(lock: &DirectoryLock, name: &str) -> Result<(AsyncFd<SocketListener>, SocketFile), AgentError> {
    let path = lock.socket_path(name)?;
    let failed = failed("listen on", &path);
    let listener = SocketListener::bind(&path).map_err(&failed)?;
    let file = SocketFile(path);
    // See AsyncSocket::new; a listener owns its descriptor as well.
    #[allow(deprecated)]
    let listener = AsyncFd::new(listener).map_err(&failed)?;
    Ok((listener, file))
}

/// Accepts client sessions.
pub(crate) struct SessionListener {
    listener: AsyncFd<SocketListener>,
    file: SocketFile,
}

impl SessionListener {
    pub fn bind(lock: &DirectoryLock, name: &str) -> Result<Self, AgentError> {
        let (listener, file) = bind(lock, name)?;
        Ok(Self { listener, file })
    }

    /// Serves sessions until `stop` is true. Then reports the agent's end to the remaining sessions, and closes them.
    pub async fn serve(self, node: Arc<Node>, places: SessionPlaces, mut stop: watch::Receiver<bool>) {
        let Self { listener, file } = self;
        let mut sessions = JoinSet::new();
        loop {
            let socket = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = sessions.join_next() => continue,
                socket = accept(&listener) => socket,
            };
            let caller = match socket.peer() {
                Ok(peer) if admits(peer.uid) => SessionPeer::Local { uid: peer.uid },
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid, "closed a session of another user");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "closed a session without credentials");
                    continue;
                }
            };
            let place = match places.take(&caller) {
                Ok(place) => place,
                Err(refusal) => {
                    refuse(&socket, refusal);
                    continue;
                }
            };
            let node = Arc::clone(&node);
            sessions.spawn(async move {
                session::serve(node, socket, caller, Arc::default()).await;
                drop(place);
            });
        }
        drop((listener, file));
        let finished = async { while sessions.join_next().await.is_some() {} };
        if timeout(FAREWELL, finished).await.is_err() {
            tracing::debug!(sessions = sessions.len(), "cut sessions that did not close");
        }
    }
}

/// Accepts the next connection. If the system cannot accept, tries again until it can.
pub(crate) async fn accept(listener: &AsyncFd<SocketListener>) -> Socket {
    loop {
        let error = match listener.readable().await {
            Ok(mut ready) => match listener.get_ref().accept() {
                Ok(socket) => return socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!(%error, "cannot accept a session");
        sleep(ACCEPT_PAUSE).await;
    }
}

fn refuse(socket: &Socket, refusal: Rejection) {
    tracing::warn!(%refusal, "closed a session");
    // The socket is new and its buffer is empty, so a failure only means that the client is already gone.
    if let Err(error) = socket.send(&SessionReply::Refused(refusal), &[]) {
        tracing::debug!(%error, "the client did not hear of it");
    }
}

/// Accepts gRPC connections.
pub(crate) struct GrpcListener {
    listener: UnixListener,
    file: SocketFile,
}

impl GrpcListener {
    pub fn bind(lock: &DirectoryLock, name: &str) -> Result<Self, AgentError> {
        let path = lock.socket_path(name)?;
        let failed = failed("listen on", &path);
        let listener = UnixListener::bind(&path).map_err(&failed)?;
        let file = SocketFile(path);
        fs::set_permissions(&file.0, Permissions::from_mode(0o600)).map_err(&failed)?;
        Ok(Self { listener, file })
    }

    /// Accepts until the receiver of the connections is gone. The socket's file exists as long as the returned value.
    pub async fn accept_into(self, accepted: mpsc::Sender<io::Result<UnixStream>>) -> SocketFile {
        loop {
            let stream = tokio::select! {
                () = accepted.closed() => return self.file,
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
            match stream.peer_cred() {
                Ok(peer) if admits(peer.uid()) => {
                    if accepted.send(Ok(stream)).await.is_err() {
                        return self.file;
                    }
                }
                Ok(peer) => tracing::warn!(uid = peer.uid(), "closed a connection of another user"),
                Err(error) => tracing::warn!(%error, "closed a connection without credentials"),
            }
        }
    }
}
