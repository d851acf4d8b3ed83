//! TLS port of a daemon: limits on peers, connections and handshake times.
//!
//! A peer is unknown until its certificate is verified. Until then a connection costs a bounded number of places, bytes
//! and seconds: connections that have sent nothing are counted in total, and connections in their handshake also for
//! each address. Unknown connections are closed when they take too long, or to make room for another connection.
//! Connections of verified peers are counted for each peer.

pub(crate) mod places;
pub(crate) mod stranger;
#[cfg(test)]
mod tests;
pub(crate) mod waiting_room;

use crate::NetError;
use crate::identity::{ConnectionProtocol, Identity};
use crate::peer::{Peer, parse_certificate};
use crate::tcp_options::{TcpPurpose, tune};
use places::{ConnectionPlace, KeyedCounts};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stranger::{Stranger, StrangerInfo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use waiting_room::{NoRoom, WaitingRoom, WaitingRoomPlace};

/// Pause after the system could not accept a connection (out of descriptors or memory), or while there is no room;
/// without the pause the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a daemon on strangers and peers: their connections, handshakes and time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that wait for their handshake at a time (default: 1024).
    pub waiting: usize,
    /// Connections in their handshake at a time (default: 512).
    pub handshakes: usize,
    /// Connections of one address, or of one /64 network of IPv6, in their handshake at a time (default: 64).
    pub handshakes_per_address: usize,
    /// Time limit for a peer's first byte, for a place among the handshakes, and for a handshake (default: 5 s each).
    pub handshake: Duration,
    /// Time after which a connection that has sent nothing is closed if a new connection needs its place (default: 300
    /// ms).
    pub silence: Duration,
    /// Time after which a handshake that waits for its peer is closed if another connection needs its place (default:
    /// 1 s).
    pub standstill: Duration,
    /// Connections of verified peers at a time (default: 16384).
    pub connections: usize,
    /// Connections of one peer, by name and role, at a time (default: 1024).
    pub connections_per_peer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 1024,
            handshakes: 512,
            handshakes_per_address: 64,
            handshake: Duration::from_secs(5),
            silence: Duration::from_millis(300),
            standstill: Duration::from_secs(1),
            connections: 16 * 1024,
            connections_per_peer: 1024,
        }
    }
}

/// Connection of a verified peer, counted as long as it lives.
pub struct PeerConnection {
    /// The connection.
    pub stream: TlsStream<TcpStream>,
    /// The verified peer.
    pub peer: Peer,
    /// Protocol that the peer chose in the handshake.
    pub protocol: ConnectionProtocol,
    /// Place of this connection; must be dropped with it.
    pub place: ConnectionPlace,
}

/// Result of a completed handshake.
enum HandshakeResult {
    Peer(Box<PeerConnection>),
    Stranger(Box<Stranger>),
}

/// TLS port of a daemon. Enforces [`Limits`] on handshakes and connections.
pub struct TlsListener {
    tcp: TcpListener,
    identity: Arc<Identity>,
    limits: Limits,
    is_http: bool,
}

impl TlsListener {
    /// Listens at an address; port 0 chooses a free port.
    pub async fn bind(address: SocketAddr, identity: Arc<Identity>, limits: Limits) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::bind(address).await?,
            identity,
            limits,
            is_http: false,
        })
    }

    /// Serves HTTP/1.1 instead of our own protocols. A client that names no protocol is taken to speak HTTP/1.1.
    pub fn for_http(self) -> Self {
        Self { is_http: true, ..self }
    }

    /// Address and port that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Accepts connections until the receiver of `admitted` is closed.
    pub async fn accept_into(self, admitted: mpsc::Sender<PeerConnection>) {
        self.accept_with(admitted, None).await;
    }

    /// Accepts connections as [`accept_into`](Self::accept_into) does, and connections without a certificate too.
    /// Connections without a certificate are closed unless their peers sign in in time.
    pub async fn accept_all_into(self, admitted: mpsc::Sender<PeerConnection>, strangers: mpsc::Sender<Stranger>) {
        self.accept_with(admitted, Some(strangers)).await;
    }

    async fn accept_with(self, admitted: mpsc::Sender<PeerConnection>, strangers: Option<mpsc::Sender<Stranger>>) {
        let limits = self.limits;
        let waiting_room = WaitingRoom::new(limits);
        let admission = Arc::new(Admission {
            identity: self.identity,
            limits,
            is_open: strangers.is_some(),
            is_http: self.is_http,
            connections: Arc::new(Semaphore::new(limits.connections)),
            peers: KeyedCounts::new(limits.connections_per_peer),
        });
        // When this function returns, the set is dropped, which closes the connections that are still in their
        // handshake.
        let mut handshakes = JoinSet::new();
        handshakes.spawn(waiting_room.clone().relieve());
        loop {
            let accepted = tokio::select! {
                () = admitted.closed() => return,
                Some(_) = handshakes.join_next() => continue,
                accepted = self.tcp.accept() => accepted,
            };
            let (tcp, from) = match accepted {
                Ok((tcp, from)) => (Arc::new(tcp), from),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = loop {
                match waiting_room.enter(from.ip(), &tcp) {
                    Ok(connection) => break Some(connection),
                    Err(NoRoom::SourceFull) => break None,
                    // Later connections wait in the accept queue.
                    Err(NoRoom::Full) => tokio::select! {
                        () = admitted.closed() => return,
                        () = sleep(ACCEPT_PAUSE) => {}
                    },
                }
            };
            drop(tcp);
            // Debug level only: otherwise a stranger could fill the log.
            let Some(connection) = connection else {
                tracing::debug!(%from, "closed a connection: too many of its address are waiting");
                continue;
            };
            let (admission, admitted, strangers) = (Arc::clone(&admission), admitted.clone(), strangers.clone());
            handshakes.spawn(async move {
                let (tcp, place) = match connection.wait_for_turn(limits.handshake).await {
                    Ok(begun) => begun,
                    Err(why) => {
                        tracing::debug!(%from, why, "closed a connection");
                        return;
                    }
                };
                match timeout(admission.limits.handshake, admission.admit(tcp, place)).await {
                    // Sending fails only when the daemon is stopping.
                    Ok(Ok(HandshakeResult::Peer(peer))) => {
                        tracing::debug!(%from, peer = %peer.peer, "connected");
                        let _ = admitted.send(*peer).await;
                    }
                    Ok(Ok(HandshakeResult::Stranger(stranger))) => {
                        tracing::debug!(%from, "connected without a certificate");
                        if let Some(strangers) = strangers {
                            let _ = strangers.send(*stranger).await;
                        }
                    }
                    Ok(Err(error)) => tracing::info!(%from, %error, "closed a connection"),
                    Err(_) => tracing::info!(%from, "closed a connection: its handshake took too long"),
                }
            });
        }
    }
}

struct Admission {
    identity: Arc<Identity>,
    limits: Limits,
    is_open: bool,
    is_http: bool,
    connections: Arc<Semaphore>,
    peers: KeyedCounts<(crate::CertificateRole, String)>,
}

impl Admission {
    async fn admit(&self, tcp: TcpStream, unidentified: WaitingRoomPlace) -> Result<HandshakeResult, NetError> {
        let closed = |why: String| NetError::Closed {
            peer: "the peer".into(),
            why: Some(why),
        };
        tune(&tcp, TcpPurpose::Requests).map_err(NetError::local("set up a connection"))?;
        let credentials = self.identity.credentials();
        let acceptor = TlsAcceptor::from(Arc::clone(match (self.is_http, self.is_open) {
            (true, _) => &credentials.http_server,
            (false, true) => &credentials.open_server,
            (false, false) => &credentials.server,
        }));
        let stream = acceptor.accept(tcp).await;
        let stream = stream.map_err(|error| crate::dial::explain("the peer", error))?;
        let connection = stream.get_ref().1;
        let protocol = match connection.alpn_protocol() {
            None if self.is_http => Some(ConnectionProtocol::Http),
            alpn => ConnectionProtocol::of_alpn(alpn),
        };
        let protocol = protocol.ok_or_else(|| closed("it does not name a protocol".into()))?;
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let all = Arc::clone(&self.connections).try_acquire_owned();
        let all = all.map_err(|_| closed(format!("over the limit of {} connections", self.limits.connections)))?;
        if self.is_open && certificate.is_none() {
            let place = ConnectionPlace {
                _all: all,
                _of_peer: None,
            };
            let info = StrangerInfo::new(credentials.described.peer.fingerprint, unidentified, self.peers.clone());
            if protocol == ConnectionProtocol::Session {
                tune(stream.get_ref().0, TcpPurpose::Session).map_err(NetError::local("set up a connection"))?;
            }
            return Ok(HandshakeResult::Stranger(Box::new(Stranger { stream, info, place })));
        }
        let described = parse_certificate(certificate.map(|der| der.as_ref()).unwrap_or_default());
        let peer = described
            .map_err(|source| NetError::ForeignCertificate {
                peer: "the peer".into(),
                source,
            })?
            .peer;
        if protocol == ConnectionProtocol::Session {
            tune(stream.get_ref().0, TcpPurpose::Session).map_err(NetError::local("set up a connection"))?;
        }
        let of_peer = self.peers.count((peer.role, peer.name.clone())).ok_or_else(|| {
            let limit = self.limits.connections_per_peer;
            closed(format!("{peer} has {limit} connections already"))
        })?;
        drop(unidentified);
        Ok(HandshakeResult::Peer(Box::new(PeerConnection {
            stream,
            peer,
            protocol,
            place: ConnectionPlace {
                _all: all,
                _of_peer: Some(of_peer),
            },
        })))
    }
}
