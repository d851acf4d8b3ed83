//! The node socket, by which the batch system tells the agent which jobs begin and end on its node.
//!
//! Prolog and epilog of the batch system run `hotlease-node`, which sends one request and waits for the answer. Only
//! root and the agent's own user may: the runtime directory is closed to others, and the kernel's word on the peer is
//! checked too.

use crate::AgentError;
use crate::control::listener::{self, SocketFile};
use crate::control::lock::DirectoryLock;
use crate::node::Node;
use crate::socket::AsyncSocket;
use hotlease_fabric::socket::{Socket, SocketListener};
use hotlease_wire::batch::{NodeAnswer, NodeRequest};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Most connections at a time: a batch system starts no more jobs on one node at once.
const CONNECTIONS_MAX: usize = 256;
/// Time that a peer has to send its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

/// Accepts the batch system's connections.
pub(crate) struct NodeSocket {
    listener: AsyncFd<SocketListener>,
    file: SocketFile,
}

impl NodeSocket {
    pub fn bind(lock: &DirectoryLock, name: &str) -> Result<Self, AgentError> {
        let (listener, file) = listener::bind(lock, name)?;
        Ok(Self { listener, file })
    }

    /// Answers requests until told to stop.
    pub async fn serve(self, node: Arc<Node>, mut stop: watch::Receiver<bool>) {
        let mut connections = JoinSet::new();
        loop {
            let socket = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = connections.join_next() => continue,
                socket = listener::accept(&self.listener) => socket,
            };
            match socket.peer() {
                Ok(peer) if listener::admits(peer.uid) => {}
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid, "closed a connection of another user to the node socket");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "closed a connection without credentials to the node socket");
                    continue;
                }
            }
            if connections.len() == CONNECTIONS_MAX {
                tracing::warn!("closed a connection to the node socket: {CONNECTIONS_MAX} wait for their answers");
                continue;
            }
            let node = Arc::clone(&node);
            connections.spawn(async move {
                if let Err(error) = serve_one(&node, socket).await {
                    tracing::warn!(%error, "a request of the batch system was not answered");
                }
            });
        }
        drop(self.file);
    }
}

async fn serve_one(node: &Arc<Node>, socket: Socket) -> io::Result<()> {
    let socket = AsyncSocket::new(socket)?;
    let received = timeout(REQUEST_LIMIT, socket.receive::<NodeRequest>()).await;
    let received = received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    let answer = match received.map_err(io::Error::other)? {
        Some((request, _)) => answer(node, request).await,
        None => return Ok(()),
    };
    socket.send(&answer, &[])
}

async fn answer(node: &Arc<Node>, request: NodeRequest) -> NodeAnswer {
    if let Err(why) = request.check() {
        return NodeAnswer::Refused { why: why.into() };
    }
    let done = match request {
        NodeRequest::Yield(job) => node.yield_to(*job).await.map(|leases| NodeAnswer::Free { leases }),
        NodeRequest::Retake(job) => node.retake(job).map(|()| NodeAnswer::Retaken),
        NodeRequest::Show => Ok(NodeAnswer::Shown(node.batch.show())),
    };
    done.unwrap_or_else(|refusal| NodeAnswer::Refused {
        why: refusal.to_string(),
    })
}
