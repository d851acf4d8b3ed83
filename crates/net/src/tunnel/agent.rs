//! The agent's end: takes up streams of clients on other hosts.

use super::frames::{Incoming, Outgoing, halves};
use super::local::Local;
use super::relay::{Side, relay};
use super::tickets::Tickets;
use crate::NetError;
use crate::listener::Admitted;
use crate::peer::{Peer, Role};
use hotlease_fabric::socket::Socket;
use hotlease_wire::Refusal;
use hotlease_wire::limits::{CODE_BYTES_MAX, PROTOCOL_VERSION};
use hotlease_wire::tunnel::Frame;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

type Stream = TlsStream<TcpStream>;
type Halves = (Incoming<Stream>, Outgoing<Stream>);

/// How long a client may take to say what it wants.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);
/// What a client may ask for as its silence limit.
const SILENCE_MIN: Duration = Duration::from_millis(250);
const SILENCE_MAX: Duration = Duration::from_secs(3601);
/// KiB of function libraries that may be arriving, of all sessions: two of the largest.
const ARRIVING_KIB_MAX: usize = 2 * (CODE_BYTES_MAX >> 10) as usize;

/// What all streams of an agent share.
pub struct Tunnels {
    tickets: Arc<Tickets>,
    arriving: Arc<Semaphore>,
}

/// A session of a client on another host that has begun.
pub struct Begun {
    /// As one that was accepted here.
    pub socket: Socket,
    /// Who it is.
    pub peer: Peer,
    /// Whether a message of it is arriving that takes long: it cannot renew its lease meanwhile.
    pub receiving: Arc<AtomicBool>,
}

impl Default for Tunnels {
    fn default() -> Self {
        Self {
            tickets: Arc::default(),
            arriving: Arc::new(Semaphore::new(ARRIVING_KIB_MAX)),
        }
    }
}

impl Tunnels {
    /// Serves one stream to its end. `begin` starts a session, or refuses it.
    pub async fn serve(&self, admitted: Admitted, begin: impl FnOnce(Begun) -> Result<(), Refusal>) {
        let peer = admitted.peer;
        let whom = peer.to_string();
        let (mut incoming, mut outgoing) = halves(admitted.stream, &whom, BEGIN_WITHIN);
        let begun = self.begin((&mut incoming, &mut outgoing), peer, begin).await;
        match begun {
            Ok((local, side, silence)) => {
                incoming.silence = silence;
                relay(local, (incoming, outgoing), side).await;
            }
            Err(NetError::Refused(refusal)) => {
                tracing::info!(peer = whom, %refusal, "refused a stream");
                farewell((incoming, outgoing), refusal).await;
            }
            Err(error) => tracing::debug!(peer = whom, %error, "a stream did not begin"),
        }
        drop(admitted.place);
    }

    async fn begin(
        &self,
        (incoming, outgoing): (&mut Incoming<Stream>, &mut Outgoing<Stream>),
        peer: Peer,
        begin: impl FnOnce(Begun) -> Result<(), Refusal>,
    ) -> Result<(Local, Side, Duration), NetError> {
        let version = PROTOCOL_VERSION;
        outgoing.send(&Frame::Hello { version }).await?;
        if peer.role != Role::Client {
            return Err(NetError::Refused(Refusal::NotPermitted {
                what: format!("sessions are for clients, and this is the certificate of the {peer}"),
            }));
        }
        let local = |socket: Socket| Local::new(socket).map_err(NetError::local("serve a stream"));
        let (local, side, silence_ms) = match incoming.next().await? {
            Frame::Session { version: theirs, .. } if theirs != version => {
                return Err(NetError::Refused(Refusal::Version {
                    theirs,
                    ours: version,
                }));
            }
            Frame::Session { silence_ms, .. } => {
                let (ours, socket) = Socket::pair().map_err(NetError::local("make a socket"))?;
                let receiving = Arc::new(AtomicBool::new(false));
                let side = Side::AgentSession {
                    tickets: Arc::clone(&self.tickets),
                    peer: peer.clone(),
                    budget: Arc::clone(&self.arriving),
                    receiving: Arc::clone(&receiving),
                };
                let begun = Begun {
                    socket,
                    peer,
                    receiving,
                };
                begin(begun).map_err(NetError::Refused)?;
                (local(ours)?, side, silence_ms)
            }
            Frame::Join { ticket, silence_ms } => {
                let socket = self.tickets.take(ticket, &peer);
                let socket = socket.ok_or_else(|| {
                    NetError::Refused(Refusal::NotPermitted {
                        what: "the ticket is not, or no longer, good for anything".into(),
                    })
                })?;
                (local(socket.into())?, Side::Worker, silence_ms)
            }
            _ => {
                return Err(NetError::Refused(Refusal::BadRequest {
                    what: "a stream begins with a session or a ticket".into(),
                }));
            }
        };
        outgoing.send(&Frame::Accepted).await?;
        let silence = Duration::from_millis(silence_ms).clamp(SILENCE_MIN, SILENCE_MAX);
        Ok((local, side, silence))
    }
}

/// Says why, and waits for the other side to close, so that it hears it.
async fn farewell((mut incoming, mut outgoing): Halves, refusal: Refusal) {
    if outgoing.send(&Frame::Refused(refusal)).await.is_ok() && outgoing.close().await.is_ok() {
        incoming.silence = Duration::from_secs(1);
        let _ = incoming.fill(&mut [0; 1]).await;
    }
}
