//! The agent's TLS port: requests of managers and sessions of clients, from other hosts.

use crate::caller::Caller;
use crate::node::Node;
use crate::session;
use hotlease_net::grpc::PeerStream;
use hotlease_net::tunnel::{Begun, Tunnels};
use hotlease_net::{Admitted, Listener, Protocol};
use hotlease_wire::Refusal;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Admitted connections that wait to be taken up.
const ADMITTED_MAX: usize = 16;
/// How long streams may take to carry the news of the agent's end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Takes connections until told to stop: those of managers go to `requests`, the others are sessions, each
/// with one of `places`.
pub(crate) async fn serve(
    listener: Listener,
    node: Arc<Node>,
    places: Arc<Semaphore>,
    requests: mpsc::Sender<io::Result<PeerStream>>,
    mut stop: watch::Receiver<bool>,
) {
    let (sender, mut admitted) = mpsc::channel(ADMITTED_MAX);
    let accepting = tokio::spawn(listener.accept_into(sender));
    let tunnels = Arc::new(Tunnels::default());
    let mut streams = JoinSet::new();
    loop {
        let connection = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = streams.join_next() => continue,
            connection = admitted.recv() => connection,
        };
        let Some(connection) = connection else { break };
        match connection.protocol {
            Protocol::Grpc => {
                // An error says that requests are not served any more.
                let _ = requests.send(Ok(PeerStream::from(connection))).await;
            }
            // Not among what an agent offers in its handshake.
            Protocol::Http => drop(connection),
            Protocol::Session => {
                let (node, tunnels) = (Arc::clone(&node), Arc::clone(&tunnels));
                let places = Arc::clone(&places);
                streams.spawn(stream(node, tunnels, connection, places));
            }
        }
    }
    accepting.abort();
    let finished = async { while streams.join_next().await.is_some() {} };
    if timeout(FAREWELL, finished).await.is_err() {
        tracing::debug!(streams = streams.len(), "cut streams that did not close");
    }
}

async fn stream(node: Arc<Node>, tunnels: Arc<Tunnels>, connection: Admitted, places: Arc<Semaphore>) {
    let begin = move |begun: Begun| {
        // A client without a tenant has no certificate of ours; see Peer.
        let Some(tenant) = begun.peer.tenant else {
            return Err(Refusal::NotPermitted {
                what: "sessions are for tenants".into(),
            });
        };
        let Ok(place) = places.try_acquire_owned() else {
            return Err(session::too_many());
        };
        tokio::spawn(async move {
            let caller = Caller::Certified { tenant };
            session::serve(node, begun.socket, caller, begun.receiving).await;
            drop(place);
        });
        Ok(())
    };
    tunnels.serve(connection, begin).await;
}
