//! Somebody at the rendezvous: what has come of it, and what is to be sent to it.

use crate::link::cipher::{Cipher, Door, Failure, Listener, Step, explain};
use hotlease_wire::comm::greeting::{Greeting, KeyId, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{Answer, Join, Mapped, Question};
use hotlease_wire::comm::{GroupId, RANKS_MAX};
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

pub(super) enum Stage {
    /// It has not proved the secret.
    Stranger(Box<Listener>),
    /// It came to the second port, and has said this.
    Shows(Vec<u8>),
    /// It is behind a NAT, and is to show itself at the second port under this number.
    Seen {
        number: GroupId,
        key: KeyId,
        join: Box<Join>,
        mapped: Mapped,
    },
    /// It waits for the others of its group, or the other one of its pair.
    Waits,
    /// It has its answer, or what of it the system has not taken yet. It may stay for a while: a NAT
    /// forgets connections that are closed.
    Answered,
}

/// See the module.
pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    /// Where it came from.
    pub(super) from: SocketAddr,
    pub(super) stage: Stage,
    /// When it has to go; that of a member that waits for its group is in the book.
    pub(super) until: Option<Instant>,
    cipher: Option<Box<Cipher>>,
    /// What came after its first question, and is no whole record yet.
    incoming: Vec<u8>,
    /// How often it has told of losses.
    told: u32,
    /// What the system has not taken yet.
    outgoing: Vec<u8>,
}

/// What somebody wants.
pub(super) enum Wish {
    Nothing,
    Ask(KeyId, Question),
    /// It knows of these lost ranks by now.
    Tell(Vec<u32>),
    /// To be seen at the second port.
    Show(KeyId, GroupId),
}

/// Why a connection is closed.
pub(super) enum Farewell {
    /// By the other side.
    Goes,
    /// By this one.
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
            // The form in which members say it, also where the port is one of both families.
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

    /// Sends an answer, or what the system takes of it.
    pub(super) fn answer(&mut self, answer: &Answer) {
        if let Some(cipher) = &mut self.cipher {
            for piece in answer.pieces() {
                cipher.seal(&piece, &mut self.outgoing);
            }
        }
        // What is wrong with the connection is found when it is read.
        let _ = self.push();
    }

    /// The connection, and what is still to be sent over it.
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

    /// The system says that something may have happened. To be called until there are no more wishes: it is not said again.
    pub(super) fn hear(&mut self, door: &Door<'_>) -> Result<Wish, Farewell> {
        self.push().map_err(|_| Farewell::Goes)?;
        let mut bytes = [0; 2048];
        // What came together with the question before.
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
                    // It may be gone, and then needs no answer.
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

    /// It has something to add. Of what came together the last word is enough.
    fn went_on(&mut self, bytes: &[u8]) -> Result<Wish, Farewell> {
        let early = || sent("it went on before it was answered");
        let cipher = self.cipher.as_mut().ok_or_else(early)?;
        self.incoming.extend_from_slice(bytes);
        let mut wish = Wish::Nothing;
        while let Some(content) = cipher.open_next(&mut self.incoming).map_err(|_| early())? {
            match Question::decode(&content) {
                // Each time one more is lost, at least.
                Ok(Question::Lost(ranks)) if self.told < RANKS_MAX => wish = Wish::Tell(ranks),
                _ => return Err(early()),
            }
            self.told += 1;
        }
        Ok(wish)
    }
}

/// What somebody said at the second port.
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
