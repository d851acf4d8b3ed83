//! The node socket, on which the batch system reports the jobs that begin and end on its node.
//!
//! Prolog and epilog of the batch system run `hotlease-node`, which sends one request and waits for the answer. Only
//! root and the agent's own user may connect: other users cannot enter the runtime directory, and the agent also checks
//! the peer's user, which the kernel reports.

use crate::AgentError;
use crate::control::listener::{self, SocketFile};
use crate::control::lock::DirectoryLock;
use crate::node::Node;
use crate::socket::AsyncSocket;
use hotlease_fabric::socket::{Socket, SocketListener};
use hotlease_wire::batch::{NodeAnswer, NodeRequest};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Largest number of connections of root, and largest number of connections of the agent's own user, at a time. A batch
/// system does not start more jobs on one node at once. If an agent closed the connection of `hotlease-node`,
/// `hotlease-node` would take the agent for dead and kill it.
const CONNECTIONS_MAX: usize = 256;
/// Time in which a peer must send its request.
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

    /// Answers requests until `stop` is true.
    pub async fn serve(self, node: Arc<Node>, mut stop: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        let mut connections = Connections::default();
        loop {
            let socket = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = tasks.join_next() => continue,
                socket = listener::accept(&self.listener) => socket,
            };
            let is_root = match socket.peer() {
                Ok(peer) if listener::admits(peer.uid) => peer.uid == 0,
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid, "closed a connection of another user to the node socket");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "closed a connection without credentials to the node socket");
                    continue;
                }
            };
            if !connections.make_room(is_root) {
                tracing::warn!("closed a connection to the node socket: {CONNECTIONS_MAX} wait for their answers");
                continue;
            }
            let (node, has_asked) = (Arc::clone(&node), Arc::new(AtomicBool::new(false)));
            let asks = Arc::clone(&has_asked);
            let task = tasks.spawn(async move {
                if let Err(error) = serve_one(&node, socket, &asks).await {
                    tracing::warn!(%error, "a request of the batch system was not answered");
                }
            });
            connections.0.push_back(NodeConnection {
                is_root,
                has_asked,
                task,
            });
        }
        drop(self.file);
    }
}

/// Open connections, oldest first.
#[derive(Default)]
struct Connections(VecDeque<NodeConnection>);

struct NodeConnection {
    is_root: bool,
    /// Whether its request has arrived.
    has_asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Connections {
    /// Makes room for a connection of root or of the agent's own user, which have separate places. If all places are
    /// taken, closes the oldest connection that has not sent a request. Returns whether there is a place.
    fn make_room(&mut self, is_root: bool) -> bool {
        self.0.retain(|connection| !connection.task.is_finished());
        let same = |connection: &&NodeConnection| connection.is_root == is_root;
        if self.0.iter().filter(same).count() < CONNECTIONS_MAX {
            return true;
        }
        let is_idle = |connection: &NodeConnection| {
            connection.is_root == is_root && !connection.has_asked.load(Ordering::Relaxed)
        };
        let idle = self.0.iter().position(is_idle).and_then(|at| self.0.remove(at));
        if let Some(connection) = &idle {
            connection.task.abort();
        }
        idle.is_some()
    }
}

async fn serve_one(node: &Arc<Node>, socket: Socket, has_asked: &AtomicBool) -> io::Result<()> {
    let socket = AsyncSocket::new(socket)?;
    let received = timeout(REQUEST_LIMIT, socket.receive::<NodeRequest>()).await;
    let received = received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    let answer = match received.map_err(io::Error::other)? {
        Some((request, _)) => {
            has_asked.store(true, Ordering::Relaxed);
            answer(node, request).await
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(connections: &mut Connections, tasks: &mut JoinSet<()>, is_root: bool, asks: bool) -> bool {
        let has_place = connections.make_room(is_root);
        if has_place {
            connections.0.push_back(NodeConnection {
                is_root,
                has_asked: Arc::new(AtomicBool::new(asks)),
                task: tasks.spawn(std::future::pending()),
            });
        }
        has_place
    }

    #[tokio::test]
    async fn the_agent_s_user_takes_no_place_of_root_and_idle_connections_none_of_those_that_ask() {
        let (mut connections, mut tasks) = (Connections::default(), JoinSet::new());
        for is_root in [false, true] {
            let mut add = |asks| open(&mut connections, &mut tasks, is_root, asks);
            assert!((0..2 * CONNECTIONS_MAX).all(|_| add(false)), "idle ones give way");
            assert!((0..CONNECTIONS_MAX).all(|_| add(true)), "idle ones give way");
            assert!(!add(true), "each one is being answered");
        }
        let left = connections.0.iter().filter(|connection| connection.is_root).count();
        assert_eq!((left, connections.0.len()), (CONNECTIONS_MAX, 2 * CONNECTIONS_MAX));
    }
}
