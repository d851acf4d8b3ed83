//! Peer at the rendezvous: its connection, how far it has come, and what is to be sent to it.

use crate::link::cipher::{Cipher, Door, Failure, Listener, Step, explain};
use hotlease_wire::comm::greeting::{Greeting, KeyId, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{Answer, Join, Mapped, Question};
use hotlease_wire::comm::{GroupId, RANKS_MAX};
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

pub(super) enum Stage {
    /// The peer has not proved the secret.
    Stranger(Box<Listener>),
    /// The peer came to the second port, and has sent these bytes.
    Shows(Vec<u8>),
    /// The member is behind a NAT, and is to show itself at the second port under this number.
    Seen {
        number: GroupId,
        key: KeyId,
        join: Box<Join>,
        mapped: Mapped,
    },
    /// The member waits for the others of its group, or for the other one of its pair.
    Waits,
    /// The member has its answer, except for what the system has not taken yet. Its connection may stay for a while: a
    /// NAT forgets connections that are closed.
    Answered,
}

/// Connection of a peer.
pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    /// Address that the peer comes from.
    pub(super) from: SocketAddr,
    pub(super) stage: Stage,
    /// Time at which the connection is closed; for a member that waits for its group, the book has that time.
    pub(super) until: Option<Instant>,
    cipher: Option<Box<Cipher>>,
    /// Bytes that came after the first request, and are no complete record yet.
    incoming: Vec<u8>,
    /// Number of reports of losses.
    told: u32,
    /// Bytes that the system has not taken yet.
    outgoing: Vec<u8>,
}

/// Wish of a peer.
pub(super) enum Wish {
    Nothing,
    Ask(KeyId, Question),
    /// Reports all ranks that the member holds to be lost by now.
    Tell(Vec<u32>),
    /// Shows the member of this number at the second port.
    Show(KeyId, GroupId),
}

/// Reason why a connection is closed.
pub(super) enum Farewell {
    /// The other side closed it.
    Goes,
    /// This side closes it.
    Sent {
        is_other_secret: bool,
        why: &'static str,
    },
}

const fn sent(why: &'static str) -> Farewell {
    Farewell::Sent {
        is_other_secret: false,
        why,
    }
}

impl Visitor {
    pub(super) fn new(stream: TcpStream, from: SocketAddr, is_second: bool, until: Instant) -> Self {
        Self {
            stream,
            // The form that members use, also where the port serves both address families.
            from: SocketAddr::new(from.ip().to_canonical(), from.port()),
            stage: if is_second {
                Stage::Shows(Vec::new())
            } else {
                Stage::Stranger(Box::new(Listener::new()))
            },
            until: Some(until),
            cipher: None,
            incoming: Vec::new(),
            told: 0,
            outgoing: Vec::new(),
        }
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Stranger(_) | Stage::Shows(_))
    }

    pub(super) fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends an answer, as far as the system takes it.
    pub(super) fn answer(&mut self, answer: &Answer) {
        if let Some(cipher) = &mut self.cipher {
            for piece in answer.pieces() {
                cipher.seal(&piece, &mut self.outgoing);
            }
        }
        // A fault of the connection shows when it is read.
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

    /// Handles an event of the system. To be called until there is no further wish: the event is not reported again.
    pub(super) fn hear(&mut self, door: &Door<'_>) -> Result<Wish, Farewell> {
        self.push().map_err(|_| Farewell::Goes)?;
        let mut bytes = [0; 2048];
        // Records that came together with the previous request.
        let mut wish = match self.stage {
            Stage::Stranger(_) | Stage::Shows(_) => Wish::Nothing,
            _ => self.went_on(&[])?,
        };
        while matches!(wish, Wish::Nothing) {
            let got = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Farewell::Goes),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Wish::Nothing),
                Err(_) => return Err(Farewell::Goes),
            };
            wish = match &mut self.stage {
                Stage::Stranger(_) => self.greeted(&bytes[..got], door)?,
                Stage::Shows(said) => {
                    said.extend_from_slice(&bytes[..got]);
                    shown(said)?
                }
                _ => self.went_on(&bytes[..got])?,
            };
        }
        Ok(wish)
    }

    fn greeted(&mut self, mut bytes: &[u8], door: &Door<'_>) -> Result<Wish, Farewell> {
        let Stage::Stranger(listener) = &mut self.stage else {
            return Ok(Wish::Nothing);
        };
        loop {
            match listener.read(std::mem::take(&mut bytes), door) {
                Ok(Step::More) => return Ok(Wish::Nothing),
                Ok(Step::Answer { bytes, .. }) => {
                    self.stream.write_all(&bytes).map_err(|_| Farewell::Goes)?;
                }
                Ok(Step::Known {
                    cipher,
                    content,
                    rest,
                }) => {
                    let question = Question::decode(&content);
                    let question = question.map_err(|_| sent("it asked for nothing sensible"))?;
                    let key = listener.key().ok_or(Farewell::Goes)?;
                    self.cipher = Some(Box::new(cipher));
                    self.incoming = rest;
                    return Ok(Wish::Ask(key, question));
                }
                Err(Failure::Refuse(verdict)) => {
                    // The peer may be gone, and then needs no answer.
                    let _ = self.stream.write(&[verdict.encode()]);
                    return Err(Farewell::Sent {
                        is_other_secret: verdict == Verdict::OtherSecret,
                        why: explain(verdict),
                    });
                }
                Err(Failure::Refused(_)) => return Err(sent("it refused")),
                Err(Failure::Stranger(why)) => return Err(sent(why)),
            }
        }
    }

    /// Takes further records of a member. Of several that came together the last one is enough.
    fn went_on(&mut self, bytes: &[u8]) -> Result<Wish, Farewell> {
        let early = || sent("it went on before it was answered");
        let cipher = self.cipher.as_mut().ok_or_else(early)?;
        self.incoming.extend_from_slice(bytes);
        let mut wish = Wish::Nothing;
        while let Some(content) = cipher.open_next(&mut self.incoming).map_err(|_| early())? {
            match Question::decode(&content) {
                // Each report has at least one more loss.
                Ok(Question::Lost(ranks)) if self.told < RANKS_MAX => wish = Wish::Tell(ranks),
                _ => return Err(early()),
            }
            self.told += 1;
        }
        Ok(wish)
    }
}

/// Wish of a peer at the second port.
fn shown(said: &[u8]) -> Result<Wish, Farewell> {
    let Some(bytes) = said.first_chunk() else {
        return Ok(Wish::Nothing);
    };
    match Greeting::decode(bytes) {
        Ok(greeting) if greeting.purpose == Purpose::Mapping && said.len() == Greeting::BYTES => {
            Ok(Wish::Show(greeting.key, greeting.group))
        }
        _ => Err(sent("it sent no greeting")),
    }
}
