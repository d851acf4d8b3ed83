//! Peer at the rendezvous: its connection, its stage, and the bytes that are to be sent to it.

use crate::link::cipher::{AdmissionRules, Cipher, HandshakeError, Responder, ResponderStep, explain};
use hotlease_wire::comm::greeting::{Greeting, KeyId, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{Join, JoinAnswer, JoinQuestion, NatMapping};
use hotlease_wire::comm::{GroupId, RANKS_MAX};
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

pub(super) enum PeerStage {
    /// The peer has not proved the secret.
    Stranger(Box<Responder>),
    /// The peer has connected to the second port, and has sent these bytes.
    Shows(Vec<u8>),
    /// The member is behind a NAT, and is to show itself at the second port under this number.
    Seen {
        number: GroupId,
        key: KeyId,
        join: Box<Join>,
        mapped: NatMapping,
    },
    /// The member waits for the other members of its group, or for the other member of its pair.
    Waits,
    /// The member has its answer, except for bytes that the system has not taken yet. Its connection may stay open for
    /// a while, because a NAT forgets the address of a closed connection.
    Answered,
}

/// Connection of a peer.
pub(super) struct RendezvousPeer {
    pub(super) stream: TcpStream,
    /// Address from which the peer has connected.
    pub(super) from: SocketAddr,
    pub(super) stage: PeerStage,
    /// Time at which the connection is closed; `None` while the member waits for its group: the matchmaker has that
    /// time.
    pub(super) until: Option<Instant>,
    cipher: Option<Box<Cipher>>,
    /// Bytes that arrived after the first request, and are no complete record yet.
    incoming: Vec<u8>,
    /// Number of reports of losses.
    reports: u32,
    /// Bytes that the system has not taken yet.
    outgoing: Vec<u8>,
}

/// Request of a peer.
pub(super) enum PeerRequest {
    /// The peer has not sent a whole request yet.
    Incomplete,
    Ask(KeyId, JoinQuestion),
    /// Reports all ranks that the member considers lost by now.
    Tell(Vec<u32>),
    /// Shows the member of this number at the second port.
    Show(KeyId, GroupId),
}

/// Reason why a connection is closed.
pub(super) enum CloseReason {
    /// The other side closed it.
    ByPeer,
    /// This side closes it.
    ByUs { is_other_secret: bool, why: &'static str },
}

const fn closed_by_us(why: &'static str) -> CloseReason {
    CloseReason::ByUs {
        is_other_secret: false,
        why,
    }
}

impl RendezvousPeer {
    pub(super) fn new(stream: TcpStream, from: SocketAddr, is_second: bool, until: Instant) -> Self {
        Self {
            stream,
            // The form of the address that members use, even if the port serves both address families.
            from: SocketAddr::new(from.ip().to_canonical(), from.port()),
            stage: if is_second {
                PeerStage::Shows(Vec::new())
            } else {
                PeerStage::Stranger(Box::new(Responder::new()))
            },
            until: Some(until),
            cipher: None,
            incoming: Vec::new(),
            reports: 0,
            outgoing: Vec::new(),
        }
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, PeerStage::Stranger(_) | PeerStage::Shows(_))
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends an answer, as far as the system takes it.
    pub(super) fn answer(&mut self, answer: &JoinAnswer) {
        if let Some(cipher) = &mut self.cipher {
            for piece in answer.pieces() {
                cipher.seal(&piece, &mut self.outgoing);
            }
        }
        // A fault of the connection is noticed when the connection is read.
        let _ = self.push();
    }

    /// Returns the connection, and the bytes that are still to be sent over it.
    pub(super) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.outgoing)
    }

    fn push(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(gone) => drop(self.outgoing.drain(..gone)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles an event of the system. Must be called until there is no further request: the event is not reported again.
    pub(super) fn hear(&mut self, rules: &AdmissionRules<'_>) -> Result<PeerRequest, CloseReason> {
        self.push().map_err(|_| CloseReason::ByPeer)?;
        let mut bytes = [0; 2048];
        // Records that arrived together with the previous request.
        let mut request = match self.stage {
            PeerStage::Stranger(_) | PeerStage::Shows(_) => PeerRequest::Incomplete,
            _ => self.read_records(&[])?,
        };
        while matches!(request, PeerRequest::Incomplete) {
            let got = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(CloseReason::ByPeer),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(PeerRequest::Incomplete),
                Err(_) => return Err(CloseReason::ByPeer),
            };
            request = match &mut self.stage {
                PeerStage::Stranger(_) => self.read_handshake(&bytes[..got], rules)?,
                PeerStage::Shows(said) => {
                    said.extend_from_slice(&bytes[..got]);
                    mapping_request(said)?
                }
                _ => self.read_records(&bytes[..got])?,
            };
        }
        Ok(request)
    }

    fn read_handshake(&mut self, mut bytes: &[u8], rules: &AdmissionRules<'_>) -> Result<PeerRequest, CloseReason> {
        let PeerStage::Stranger(listener) = &mut self.stage else {
            return Ok(PeerRequest::Incomplete);
        };
        loop {
            match listener.read(std::mem::take(&mut bytes), rules) {
                Ok(ResponderStep::More) => return Ok(PeerRequest::Incomplete),
                Ok(ResponderStep::Answer { bytes, .. }) => {
                    self.stream.write_all(&bytes).map_err(|_| CloseReason::ByPeer)?;
                }
                Ok(ResponderStep::Proved { cipher, content, rest }) => {
                    let question = JoinQuestion::decode(&content);
                    let question = question.map_err(|_| closed_by_us("it asked for nothing sensible"))?;
                    let key = listener.key().ok_or(CloseReason::ByPeer)?;
                    self.cipher = Some(Box::new(cipher));
                    self.incoming = rest;
                    return Ok(PeerRequest::Ask(key, question));
                }
                Err(HandshakeError::Refuse(verdict)) => {
                    // The peer may be gone, and then needs no answer.
                    let _ = self.stream.write(&[verdict.encode()]);
                    return Err(CloseReason::ByUs {
                        is_other_secret: verdict == Verdict::OtherSecret,
                        why: explain(verdict),
                    });
                }
                Err(HandshakeError::Refused(_)) => return Err(closed_by_us("it refused")),
                Err(HandshakeError::Stranger(why)) => return Err(closed_by_us(why)),
            }
        }
    }

    /// Takes further records of a member. If several arrived together, the last record is enough.
    fn read_records(&mut self, bytes: &[u8]) -> Result<PeerRequest, CloseReason> {
        let early = || closed_by_us("it went on before it was answered");
        let cipher = self.cipher.as_mut().ok_or_else(early)?;
        self.incoming.extend_from_slice(bytes);
        let mut request = PeerRequest::Incomplete;
        while let Some(content) = cipher.open_next(&mut self.incoming).map_err(|_| early())? {
            match JoinQuestion::decode(&content) {
                // Each report has at least one more loss.
                Ok(JoinQuestion::Lost(ranks)) if self.reports < RANKS_MAX => request = PeerRequest::Tell(ranks),
                _ => return Err(early()),
            }
            self.reports += 1;
        }
        Ok(request)
    }
}

/// Request of a peer at the second port.
fn mapping_request(said: &[u8]) -> Result<PeerRequest, CloseReason> {
    let Some(bytes) = said.first_chunk() else {
        return Ok(PeerRequest::Incomplete);
    };
    match Greeting::decode(bytes) {
        Ok(greeting) if greeting.purpose == Purpose::Mapping && said.len() == Greeting::BYTES => {
            Ok(PeerRequest::Show(greeting.key, greeting.group))
        }
        _ => Err(closed_by_us("it sent no greeting")),
    }
}
