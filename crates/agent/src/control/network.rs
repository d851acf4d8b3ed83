//! The agent's TLS port: requests of managers and sessions of clients, from other hosts.

use crate::AgentError;
use crate::config::AgentNetwork;
use crate::control::session;
use crate::control::session_places::SessionPlaces;
use crate::isolation::caller::SessionPeer;
use crate::node::Node;
use hotlease_net::grpc::PeerStream;
use hotlease_net::tunnel::{NewSession, Tunnels};
use hotlease_net::{Address, ConnectionProtocol, Peer, PeerConnection, Stranger, TlsListener};
use hotlease_wire::Rejection;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Largest number of admitted connections that wait to be handled.
const ADMITTED_MAX: usize = 16;
/// Time in which streams must send the message about the agent's end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Binds the port; also returns its address.
pub(crate) async fn listen(network: &AgentNetwork) -> Result<(TlsListener, SocketAddr), AgentError> {
    let failed = |source| AgentError::Listen {
        address: network.listen,
        source,
    };
    let bound = TlsListener::bind(network.listen, Arc::clone(&network.identity), network.limits);
    let bound = bound.await.map_err(failed)?;
    let address = bound.local_addr().map_err(failed)?;
    Ok((bound, address))
}

/// Address to which other hosts connect.
pub(crate) fn endpoint(network: &AgentNetwork, address: SocketAddr) -> Address {
    if let Some(advertised) = &network.advertise {
        return advertised.clone();
    }
    let everywhere = address.ip().is_unspecified();
    let named = network.identity.peer().hosts.into_iter().next().filter(|_| everywhere);
    Address::new(named.unwrap_or_else(|| address.ip().to_string()), address.port())
}

/// Handles connections until `stop` is true. Connections of managers go to `requests`; all others are sessions, and
/// each session takes one of `places`.
///
/// If `is_open`, clients without a certificate may open sessions with the token of a lease; otherwise every peer needs
/// a certificate.
pub(crate) async fn serve(
    (listener, is_open): (TlsListener, bool),
    node: Arc<Node>,
    places: SessionPlaces,
    requests: mpsc::Sender<io::Result<PeerStream>>,
    mut stop: watch::Receiver<bool>,
) {
    let (sender, mut admitted) = mpsc::channel(ADMITTED_MAX);
    let (unidentified, mut strangers) = mpsc::channel(ADMITTED_MAX);
    let accepting = match is_open {
        true => tokio::spawn(listener.accept_all_into(sender, unidentified)),
        // Accepts no client without a certificate, and only keeps the channel of such clients open.
        false => tokio::spawn(async {
            listener.accept_into(sender).await;
            drop(unidentified);
        }),
    };
    let tunnels = Arc::new(Tunnels::default());
    let mut streams = JoinSet::new();
    loop {
        let connection = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = streams.join_next() => continue,
            Some(stranger) = strangers.recv() => {
                // Requests are for managers, which have a certificate.
                if stranger.protocol() == Some(ConnectionProtocol::Session) {
                    let (node, tunnels) = (Arc::clone(&node), Arc::clone(&tunnels));
                    streams.spawn(bearer(node, tunnels, stranger, places.clone()));
                }
                continue;
            }
            connection = admitted.recv() => connection,
        };
        let Some(connection) = connection else { break };
        match connection.protocol {
            ConnectionProtocol::Grpc => {
                // An error says that requests are not served any more.
                let _ = requests.send(Ok(PeerStream::from(connection))).await;
            }
            // An agent does not offer this protocol in its handshake.
            ConnectionProtocol::Http => drop(connection),
            ConnectionProtocol::Session => {
                let (node, tunnels) = (Arc::clone(&node), Arc::clone(&tunnels));
                streams.spawn(stream(node, tunnels, connection, places.clone()));
            }
        }
    }
    accepting.abort();
    let finished = async { while streams.join_next().await.is_some() {} };
    if timeout(FAREWELL, finished).await.is_err() {
        tracing::debug!(streams = streams.len(), "cut streams that did not close");
    }
}

async fn stream(node: Arc<Node>, tunnels: Arc<Tunnels>, connection: PeerConnection, places: SessionPlaces) {
    let begin = move |begun: NewSession| {
        // A client without a tenant has no certificate of the site; see Peer.
        let Some(tenant) = begun.peer.tenant.clone() else {
            return Err(Rejection::NotPermitted {
                what: "sessions are for tenants".into(),
            });
        };
        begin(node, begun, SessionPeer::Certified { tenant }, &places)
    };
    tunnels.serve(connection, begin).await;
}

/// Serves the stream of a client that has no certificate and shows the token of a lease instead.
async fn bearer(node: Arc<Node>, tunnels: Arc<Tunnels>, stranger: Stranger, places: SessionPlaces) {
    let shown = Mutex::new(None);
    let known = |token: &[u8]| {
        let (tenant, lease) = node.bearer_of(token)?;
        let peer = Peer::bearer(&tenant, lease);
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(SessionPeer::Bearer { tenant, lease });
        Ok(peer)
    };
    let begin = |begun: NewSession| {
        let caller = shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        let caller = caller.ok_or(Rejection::BadToken)?;
        begin(Arc::clone(&node), begun, caller, &places)
    };
    tunnels.serve_stranger(stranger, known, begin).await;
}

fn begin(node: Arc<Node>, begun: NewSession, caller: SessionPeer, places: &SessionPlaces) -> Result<(), Rejection> {
    let place = places.take(&caller)?;
    tokio::spawn(async move {
        session::serve(node, begun.socket, caller, begun.receiving).await;
        drop(place);
    });
    Ok(())
}
