//! Client's end of tunnels: a session with an agent on another host, as a local socket.

use super::frames::{FrameReader, FrameWriter, split_frames};
use super::local::LocalSocket;
use super::relay::{RelaySide, relay};
use crate::NetError;
use crate::address::Address;
use crate::dial::{DialedConnection, dial, dial_client_first};
use crate::identity::ConnectionProtocol;
use crate::peer::CertificateRole;
use crate::site::Proof;
use hotlease_fabric::socket::Socket;
use hotlease_wire::Rejection;
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::tunnel::{Ticket, TunnelFrame};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

type Stream = TlsStream<TcpStream>;

/// Limit for an agent's first frames.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

/// Session with an agent on another host.
pub struct TunnelSession {
    /// Socket of the session, used like the socket of an agent on this node.
    pub socket: Socket,
    /// Address of this host on the connection to the agent.
    pub local: IpAddr,
    /// Address of the agent's host.
    pub host: IpAddr,
}

/// Connects to the session endpoint of an agent. `silence` is [`super::silence_of`] the lease. A client without a
/// certificate shows the lease's `token` instead. The relays run in tasks of the current tokio runtime.
pub async fn session(
    address: Address,
    proof: Proof,
    token: &[u8],
    silence: Duration,
) -> Result<TunnelSession, NetError> {
    let dialler = Arc::new(Dialler {
        address,
        proof,
        silence,
    });
    let (version, silence_ms) = (PROTOCOL_VERSION, dialler.silence_ms());
    let begin = match &dialler.proof {
        Proof::Certificate(_) => TunnelFrame::Session { version, silence_ms },
        Proof::Credential(..) => TunnelFrame::Bearer {
            version,
            token: token.to_vec(),
            silence_ms,
        },
    };
    let dialled = dialler.dial().await?;
    let tcp = dialled.stream.get_ref().0;
    let ends = tcp
        .local_addr()
        .and_then(|local| Ok((local.ip(), tcp.peer_addr()?.ip())));
    let (local, host) = ends.map_err(NetError::local("ask where a connection goes"))?;
    let stream = dialler.begin(dialled, &begin).await?;
    let side = RelaySide::ClientSession {
        dialler: Arc::clone(&dialler),
    };
    Ok(TunnelSession {
        socket: dialler.relayed(stream, side)?,
        local,
        host,
    })
}

/// Maker of streams to one agent.
pub(super) struct Dialler {
    address: Address,
    proof: Proof,
    silence: Duration,
}

impl Dialler {
    fn silence_ms(&self) -> u64 {
        u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX)
    }

    async fn dial(&self) -> Result<DialedConnection, NetError> {
        match &self.proof {
            Proof::Certificate(identity) => {
                dial(
                    &self.address,
                    identity,
                    ConnectionProtocol::Session,
                    CertificateRole::Agent,
                )
                .await
            }
            Proof::Credential(_, trust) => {
                dial_client_first(
                    &self.address,
                    trust.session(),
                    ConnectionProtocol::Session,
                    CertificateRole::Agent,
                )
                .await
            }
        }
    }

    /// Begins a stream; returns when the agent has accepted it.
    async fn begin(
        &self,
        dialled: DialedConnection,
        begin: &TunnelFrame,
    ) -> Result<(FrameReader<Stream>, FrameWriter<Stream>), NetError> {
        let peer = format!("the agent at {}", self.address);
        let (mut incoming, mut outgoing) = split_frames(dialled.stream, &peer, BEGIN_WITHIN);
        // Without a certificate the client speaks first, with its token or ticket.
        if matches!(self.proof, Proof::Certificate(_)) {
            match incoming.next().await? {
                TunnelFrame::Hello { version } if version == PROTOCOL_VERSION => {}
                TunnelFrame::Hello { version } => {
                    return Err(NetError::Refused(Rejection::Version {
                        theirs: version,
                        ours: PROTOCOL_VERSION,
                    }));
                }
                TunnelFrame::Refused(refusal) => return Err(NetError::Refused(refusal)),
                _ => return Err(unexpected_frame(&peer)),
            }
        }
        outgoing.send(begin).await?;
        match incoming.next().await? {
            TunnelFrame::Accepted => {}
            TunnelFrame::Refused(refusal) => return Err(NetError::Refused(refusal)),
            _ => return Err(unexpected_frame(&peer)),
        }
        incoming.silence = self.silence;
        Ok((incoming, outgoing))
    }

    /// Starts a relay for a stream; returns the local socket that it serves.
    fn relayed(&self, stream: (FrameReader<Stream>, FrameWriter<Stream>), side: RelaySide) -> Result<Socket, NetError> {
        let what = "make a socket";
        let (ours, theirs) = Socket::pair().map_err(NetError::local(what))?;
        let local = LocalSocket::new(ours).map_err(NetError::local(what))?;
        tokio::spawn(relay(local, stream, side));
        Ok(theirs)
    }

    /// Fetches the socket that waits under a ticket. If no connection to the worker can be made, the client gets a
    /// socket that is closed already, as if the worker had closed it: the session goes on.
    pub async fn fetch(&self, ticket: Ticket) -> Result<Socket, NetError> {
        let join = TunnelFrame::Join {
            ticket,
            silence_ms: self.silence_ms(),
        };
        let begun = match self.dial().await {
            Ok(dialled) => self.begin(dialled, &join).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(stream) => self.relayed(stream, RelaySide::connection()),
            Err(error) => {
                tracing::warn!(%error, "no connection to a worker");
                let (ours, theirs) = Socket::pair().map_err(NetError::local("make a socket"))?;
                drop(ours);
                Ok(theirs)
            }
        }
    }
}

fn unexpected_frame(peer: &str) -> NetError {
    NetError::Protocol {
        peer: peer.to_owned(),
        why: "its first frame was not the expected one".into(),
    }
}
