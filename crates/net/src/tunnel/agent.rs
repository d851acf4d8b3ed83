//! Agent's end of tunnels: admits streams of clients on other hosts, and serves them.

use super::arrivals::Arrivals;
use super::frames::{FrameReader, FrameWriter, split_frames};
use super::local::LocalSocket;
use super::relay::{RelaySide, relay};
use super::tickets::{TicketHolder, Tickets};
use crate::NetError;
use crate::listener::PeerConnection;
use crate::listener::stranger::Stranger;
use crate::peer::{CertificateRole, Peer};
use hotlease_fabric::socket::Socket;
use hotlease_wire::Rejection;
use hotlease_wire::limits::{CODE_BYTES_MAX, PROTOCOL_VERSION};
use hotlease_wire::tunnel::{FIRST_BYTES_MAX, TunnelFrame};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

type Stream = TlsStream<TcpStream>;
type Halves = (FrameReader<Stream>, FrameWriter<Stream>);

/// Limit for a client to send its first frame.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// Shortest and longest silence limit that a client may ask for.
const SILENCE_MIN: Duration = Duration::from_millis(250);
const SILENCE_MAX: Duration = Duration::from_secs(3601);
/// Largest number of bytes of function libraries that have arrived and wait to be loaded, over all sessions: two
/// libraries of the largest size. One tenant may use half of these bytes.
const ARRIVED_BYTES_MAX: u64 = 2 * CODE_BYTES_MAX;

/// State that all streams of an agent share.
pub struct Tunnels {
    tickets: Arc<Tickets>,
    arrivals: Arc<Arrivals>,
}

/// Session of a client on another host that has begun.
pub struct NewSession {
    /// Local socket of the session, used like a socket that was accepted on this node.
    pub socket: Socket,
    /// The client, from its certificate, or from its lease's token if it has no certificate.
    pub peer: Peer,
    /// Whether a large message of the session is arriving: until it has arrived, the client cannot renew its lease.
    pub receiving: Arc<AtomicBool>,
}

impl Default for Tunnels {
    fn default() -> Self {
        Self {
            tickets: Arc::default(),
            arrivals: Arc::new(Arrivals::new(ARRIVED_BYTES_MAX, CODE_BYTES_MAX)),
        }
    }
}

impl Tunnels {
    /// Serves one stream to its end. `begin` starts a session, or refuses it.
    pub async fn serve(&self, admitted: PeerConnection, begin: impl FnOnce(NewSession) -> Result<(), Rejection>) {
        let peer = admitted.peer;
        let peer_text = peer.to_string();
        let (mut incoming, mut outgoing) = split_frames(admitted.stream, &peer_text, BEGIN_WITHIN);
        let begun = self.begin((&mut incoming, &mut outgoing), peer, begin).await;
        match begun {
            Ok((local, side, silence)) => {
                incoming.silence = silence;
                relay(local, (incoming, outgoing), side).await;
            }
            Err(NetError::Refused(refusal)) => {
                tracing::info!(peer = peer_text, %refusal, "refused a stream");
                farewell((incoming, outgoing), refusal).await;
            }
            Err(error) => tracing::debug!(peer = peer_text, %error, "a stream did not begin"),
        }
        drop(admitted.place);
    }

    /// Serves a stream without a certificate to its end. The client speaks first: it sends a ticket, or the token of a
    /// lease; `known` finds the peer to which a token belongs. Until the peer is known, the stream costs one of the
    /// places for handshakes and a few hundred bytes, for five seconds at most. A refused stream keeps its place for up
    /// to one second more, and the client learns only the reason of the refusal.
    pub async fn serve_stranger(
        &self,
        stranger: Stranger,
        known: impl FnOnce(&[u8]) -> Result<Peer, Rejection>,
        begin: impl FnOnce(NewSession) -> Result<(), Rejection>,
    ) {
        let Stranger {
            stream,
            info,
            place: _place,
        } = stranger;
        let (mut incoming, mut outgoing) = split_frames(stream, "a client without a certificate", BEGIN_WITHIN);
        let begun = match incoming.first(FIRST_BYTES_MAX, BEGIN_WITHIN).await {
            Ok(first) => self.begin_stranger(first, known, begin),
            Err(error) => Err(error),
        };
        let begun = begun.and_then(|(begun, peer)| {
            info.make_known(&peer.name).map_err(NetError::Refused)?;
            Ok(begun)
        });
        match begun {
            Ok((local, side, silence)) => {
                if outgoing.send(&TunnelFrame::Accepted).await.is_ok() {
                    incoming.silence = silence;
                    relay(local, (incoming, outgoing), side).await;
                }
            }
            Err(NetError::Refused(refusal)) => {
                // Debug level only: strangers could fill the log.
                tracing::debug!(%refusal, "refused a stream without a certificate");
                farewell((incoming, outgoing), refusal).await;
            }
            Err(error) => tracing::debug!(%error, "a stream without a certificate did not begin"),
        }
    }

    fn begin_stranger(
        &self,
        first: TunnelFrame,
        known: impl FnOnce(&[u8]) -> Result<Peer, Rejection>,
        begin: impl FnOnce(NewSession) -> Result<(), Rejection>,
    ) -> Result<((LocalSocket, RelaySide, Duration), Peer), NetError> {
        match first {
            TunnelFrame::Bearer { version, .. } if version != PROTOCOL_VERSION => {
                Err(NetError::Refused(Rejection::Version {
                    theirs: version,
                    ours: PROTOCOL_VERSION,
                }))
            }
            TunnelFrame::Bearer { token, silence_ms, .. } => {
                let peer = known(&token).map_err(NetError::Refused)?;
                let holder = TicketHolder::Bearer(peer.clone());
                let (local, side) = self.session(peer.clone(), holder, begin)?;
                Ok(((local, side, clamped_silence(silence_ms)), peer))
            }
            TunnelFrame::Join { ticket, silence_ms } => {
                let (socket, peer) = self.tickets.take_of_bearer(ticket).ok_or_else(no_ticket)?;
                Ok((
                    (of_worker(socket)?, RelaySide::Worker, clamped_silence(silence_ms)),
                    peer,
                ))
            }
            _ => Err(NetError::Refused(Rejection::BadRequest {
                what: "without a certificate a stream begins with a lease's token or a ticket".into(),
            })),
        }
    }

    /// Makes the local socket of a session, and passes its other end to `begin`.
    fn session(
        &self,
        peer: Peer,
        holder: TicketHolder,
        begin: impl FnOnce(NewSession) -> Result<(), Rejection>,
    ) -> Result<(LocalSocket, RelaySide), NetError> {
        let (ours, socket) = Socket::pair().map_err(NetError::local("make a socket"))?;
        let receiving = Arc::new(AtomicBool::new(false));
        let side = RelaySide::AgentSession {
            tickets: Arc::clone(&self.tickets),
            holder,
            arrivals: Arc::clone(&self.arrivals),
            unanswered: Mutex::default(),
            receiving: Arc::clone(&receiving),
        };
        begin(NewSession {
            socket,
            peer,
            receiving,
        })
        .map_err(NetError::Refused)?;
        Ok((local(ours)?, side))
    }

    async fn begin(
        &self,
        (incoming, outgoing): (&mut FrameReader<Stream>, &mut FrameWriter<Stream>),
        peer: Peer,
        begin: impl FnOnce(NewSession) -> Result<(), Rejection>,
    ) -> Result<(LocalSocket, RelaySide, Duration), NetError> {
        let version = PROTOCOL_VERSION;
        outgoing.send(&TunnelFrame::Hello { version }).await?;
        if peer.role != CertificateRole::Client {
            return Err(NetError::Refused(Rejection::NotPermitted {
                what: format!("sessions are for clients, and this is the certificate of the {peer}"),
            }));
        }
        let (local, side, silence_ms) = match incoming.next().await? {
            TunnelFrame::Session { version: theirs, .. } if theirs != version => {
                return Err(NetError::Refused(Rejection::Version { theirs, ours: version }));
            }
            TunnelFrame::Session { silence_ms, .. } => {
                let holder = TicketHolder::Certified(peer.clone());
                let (local, side) = self.session(peer, holder, begin)?;
                (local, side, silence_ms)
            }
            TunnelFrame::Join { ticket, silence_ms } => {
                let socket = self.tickets.take(ticket, &peer);
                let socket = socket.ok_or_else(no_ticket)?;
                (of_worker(socket)?, RelaySide::Worker, silence_ms)
            }
            _ => {
                return Err(NetError::Refused(Rejection::BadRequest {
                    what: "a stream begins with a session or a ticket".into(),
                }));
            }
        };
        outgoing.send(&TunnelFrame::Accepted).await?;
        Ok((local, side, clamped_silence(silence_ms)))
    }
}

fn local(socket: Socket) -> Result<LocalSocket, NetError> {
    LocalSocket::new(socket).map_err(NetError::local("serve a stream"))
}

fn of_worker(socket: Socket) -> Result<LocalSocket, NetError> {
    LocalSocket::of_worker(socket).map_err(NetError::local("serve a stream"))
}

fn clamped_silence(silence_ms: u64) -> Duration {
    Duration::from_millis(silence_ms).clamp(SILENCE_MIN, SILENCE_MAX)
}

fn no_ticket() -> NetError {
    NetError::Refused(Rejection::NotPermitted {
        what: "the ticket is not valid, or no longer valid".into(),
    })
}

/// Sends the reason of a refusal, and waits for the client to close, so that the client can read the reason.
async fn farewell((mut incoming, mut outgoing): Halves, refusal: Rejection) {
    if outgoing.send(&TunnelFrame::Refused(refusal)).await.is_ok() && outgoing.close().await.is_ok() {
        incoming.silence = Duration::from_secs(1);
        let _ = incoming.fill(&mut [0; 1]).await;
    }
}
