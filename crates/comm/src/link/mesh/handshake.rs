//! Handshake of two members on one connection. Either member may have made the connection, or a relay is between them.
//!
//! ```text
//!   lower rank                                       higher rank
//!     │ ◄────────────────────────────── knock ─── │  if the higher rank called, or both at once
//!     │ ── greeting, first message ─────────────► │
//!     │ ◄──────────────── verdict, second message │
//!     │ ── record ──────────────────────────────► │  the lower rank has chosen this connection
//! ```

use super::MeshPlan;
use super::approach::Approach;
use crate::link::cipher::{self, AdmissionRules, Cipher, HandshakeError, Initiator, Responder, ResponderStep};
use hotlease_collectives::Rank;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::{Greeting, Introduction, Knock, MemberNode, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{AnswerPieces, JoinAnswer, JoinQuestion, Relay};
use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Time that a connected peer has for its part of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Connection on which the handshake with another member is under way.
pub(super) struct MemberHandshake {
    pub(super) stream: TcpStream,
    pub(super) way: Approach,
    /// Rank of the other member; `None` until the peer has sent its rank.
    pub(super) with: Option<Rank>,
    pub(super) until: Instant,
    stage: MemberHandshakeStage,
}

enum MemberHandshakeStage {
    /// The system is connecting.
    Connecting,
    /// A peer has called, and has sent these bytes.
    Accepted(Vec<u8>),
    /// The handshake with the rendezvous, which relays, is under way.
    Entering(Initiator),
    /// The rendezvous waits for the other member.
    Entered {
        cipher: Box<Cipher>,
        pieces: AnswerPieces,
        got: Vec<u8>,
    },
    /// This member is the lower rank.
    Calling {
        caller: Initiator,
        /// First bytes from the peer, which may be a part of a knock; `None` if no knock can arrive.
        knock: Option<Vec<u8>>,
    },
    /// This member is the higher rank.
    Listening {
        listener: Responder,
        introduction: Option<Introduction>,
    },
    Done,
}

/// Member at the other end, and the connection with it.
pub(super) struct HandshakeResult {
    pub(super) rank: Rank,
    /// Node of that member.
    pub(super) member_node: MemberNode,
    pub(super) cipher: Cipher,
    /// Bytes that followed the handshake.
    pub(super) rest: Vec<u8>,
}

impl MemberHandshake {
    /// Starts the handshake on a connection that the system is still making to a member.
    pub(super) fn to(rank: Rank, way: Approach, stream: TcpStream, until: Instant) -> Self {
        Self {
            stream,
            way,
            with: Some(rank),
            until,
            stage: MemberHandshakeStage::Connecting,
        }
    }

    /// Starts the handshake on a connection that a peer has made.
    pub(super) fn accepted(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            way: Approach::Incoming,
            with: None,
            until: Instant::now() + HANDSHAKE,
            stage: MemberHandshakeStage::Accepted(Vec::new()),
        })
    }

    /// Handles an event of the system: connects, reads, and continues the handshake.
    pub(super) fn handle_event(&mut self, plan: &MeshPlan<'_>) -> Result<Option<HandshakeResult>, String> {
        let text = |error: io::Error| error.to_string();
        if let Some(error) = self.stream.take_error().map_err(text)? {
            return Err(error.to_string());
        }
        if matches!(self.stage, MemberHandshakeStage::Connecting) {
            if self.stream.peer_addr().is_err() {
                // Not connected yet.
                return Ok(None);
            }
            self.stream.set_nodelay(true).map_err(text)?;
            self.until = Instant::now() + HANDSHAKE;
            self.begin(plan).map_err(text)?;
        }
        let mut bytes = [0; 4096];
        loop {
            let got = match self.stream.read(&mut bytes) {
                Ok(0) => return Err("it closed the connection".into()),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            if let Some(known) = self.handle_bytes(bytes[..got].to_vec(), plan)? {
                return Ok(Some(known));
            }
        }
    }

    /// Begins the handshake on a connection that the system has made.
    fn begin(&mut self, plan: &MeshPlan<'_>) -> io::Result<()> {
        let Some(other) = self.with else {
            return Ok(());
        };
        self.stage = match self.way {
            Approach::Relay => {
                let greeting = Greeting {
                    purpose: Purpose::Rendezvous,
                    key: plan.secret.id(),
                    group: GroupId::NONE,
                };
                MemberHandshakeStage::Entering(self.call(plan, &greeting, &[])?)
            }
            _ if plan.me < other => self.begin_as_caller(plan, other, Some(Vec::new()))?,
            _ => {
                let knock = Knock {
                    key: plan.secret.id(),
                    group: plan.group,
                    // Anybody can read a knock, so the node is left out.
                    introduction: Introduction {
                        member_node: MemberNode::UNKNOWN,
                        ..plan.introduction(other)
                    },
                };
                self.stream.write_all(&knock.encode())?;
                MemberHandshakeStage::listening(plan)
            }
        };
        Ok(())
    }

    /// Begins a handshake. The first message is short enough for the system to take it whole on a new connection.
    fn call(&mut self, plan: &MeshPlan<'_>, greeting: &Greeting, payload: &[u8]) -> io::Result<Initiator> {
        let (caller, first) =
            Initiator::new(plan.secret, greeting, payload).ok_or_else(|| io::Error::other("no random numbers"))?;
        self.stream.write_all(&first)?;
        Ok(caller)
    }

    fn begin_as_caller(
        &mut self,
        plan: &MeshPlan<'_>,
        other: Rank,
        knock: Option<Vec<u8>>,
    ) -> io::Result<MemberHandshakeStage> {
        let greeting = Greeting {
            purpose: Purpose::Member,
            key: plan.secret.id(),
            group: plan.group,
        };
        let introduction = plan.introduction(other).encode();
        let caller = self.call(plan, &greeting, &introduction)?;
        Ok(MemberHandshakeStage::Calling { caller, knock })
    }

    /// Continues the handshake after these bytes have arrived.
    fn handle_bytes(&mut self, mut bytes: Vec<u8>, plan: &MeshPlan<'_>) -> Result<Option<HandshakeResult>, String> {
        let text = |error: io::Error| error.to_string();
        loop {
            match std::mem::replace(&mut self.stage, MemberHandshakeStage::Done) {
                MemberHandshakeStage::Accepted(mut got) => {
                    got.append(&mut bytes);
                    let Some(knocks) = detect_knock(&got) else {
                        self.stage = MemberHandshakeStage::Accepted(got);
                        return Ok(None);
                    };
                    if !knocks {
                        bytes = got;
                        self.stage = MemberHandshakeStage::listening(plan);
                        continue;
                    }
                    let Some(knock) = got.first_chunk() else {
                        self.stage = MemberHandshakeStage::Accepted(got);
                        return Ok(None);
                    };
                    let other = plan.rank_of_knock(knock)?;
                    self.with = Some(other);
                    bytes = got.split_off(Knock::BYTES);
                    self.stage = self.begin_as_caller(plan, other, None).map_err(text)?;
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                }
                MemberHandshakeStage::Entering(mut caller) => match caller.read(&bytes).map_err(reason)? {
                    None => {
                        self.stage = MemberHandshakeStage::Entering(caller);
                        return Ok(None);
                    }
                    Some((mut cipher, rest)) => {
                        let relay = JoinQuestion::Relay(Relay {
                            group: plan.group,
                            from: plan.me,
                            to: self.with.unwrap_or(plan.me),
                        });
                        let mut record = Vec::new();
                        cipher.seal(&hotlease_wire::encode(&relay), &mut record);
                        self.stream.write_all(&record).map_err(text)?;
                        // The other member may connect at any time until the deadline.
                        self.until = plan.deadline;
                        bytes = rest;
                        self.stage = MemberHandshakeStage::Entered {
                            cipher: Box::new(cipher),
                            pieces: AnswerPieces::default(),
                            got: Vec::new(),
                        };
                    }
                },
                MemberHandshakeStage::Entered {
                    mut cipher,
                    mut pieces,
                    mut got,
                } => {
                    got.append(&mut bytes);
                    match answer(&mut cipher, &mut pieces, &mut got)? {
                        None => {
                            self.stage = MemberHandshakeStage::Entered { cipher, pieces, got };
                            return Ok(None);
                        }
                        Some(JoinAnswer::Relayed) => {
                            let other = self.with.unwrap_or(plan.me);
                            self.until = Instant::now() + HANDSHAKE;
                            self.stage = if plan.me < other {
                                self.begin_as_caller(plan, other, None).map_err(text)?
                            } else {
                                MemberHandshakeStage::listening(plan)
                            };
                            bytes = got;
                            if bytes.is_empty() {
                                return Ok(None);
                            }
                        }
                        Some(JoinAnswer::Refused(refused)) => return Err(refused.to_string()),
                        Some(_) => return Err("the rendezvous answered something else".into()),
                    }
                }
                MemberHandshakeStage::Calling { caller, knock } => {
                    return self.handle_as_caller(caller, knock, bytes, plan);
                }
                MemberHandshakeStage::Listening { listener, introduction } => {
                    return self.handle_as_listener(listener, introduction, &bytes, plan);
                }
                MemberHandshakeStage::Connecting | MemberHandshakeStage::Done => {
                    return Err("it went on after the end".into());
                }
            }
        }
    }

    /// Takes bytes on the side of the lower rank.
    fn handle_as_caller(
        &mut self,
        mut caller: Initiator,
        mut knock: Option<Vec<u8>>,
        mut bytes: Vec<u8>,
        plan: &MeshPlan<'_>,
    ) -> Result<Option<HandshakeResult>, String> {
        if let Some(mut got) = knock.take() {
            got.append(&mut bytes);
            let is_verdict = got.first().is_some_and(|byte| Verdict::decode(*byte).is_ok());
            if !is_verdict {
                // Both called at once, so the other member has knocked.
                let Some(knocked) = got.first_chunk() else {
                    self.stage = MemberHandshakeStage::Calling {
                        caller,
                        knock: Some(got),
                    };
                    return Ok(None);
                };
                if Some(plan.rank_of_knock(knocked)?) != self.with {
                    return Err("it is another member".into());
                }
                got.drain(..Knock::BYTES);
            }
            bytes = got;
        }
        let Some((mut cipher, rest)) = caller.read(&bytes).map_err(reason)? else {
            self.stage = MemberHandshakeStage::Calling { caller, knock };
            return Ok(None);
        };
        let member_node = MemberNode::decode(caller.payload());
        let member_node = member_node.map_err(|_| "it does not say where it is")?;
        let mut record = Vec::new();
        cipher.seal(&[], &mut record);
        self.stream.write_all(&record).map_err(|error| error.to_string())?;
        Ok(Some(HandshakeResult {
            rank: self.with.ok_or("it is no member")?,
            member_node,
            cipher,
            rest,
        }))
    }

    /// Takes bytes on the side of the higher rank.
    fn handle_as_listener(
        &mut self,
        mut listener: Responder,
        mut introduction: Option<Introduction>,
        mut bytes: &[u8],
        plan: &MeshPlan<'_>,
    ) -> Result<Option<HandshakeResult>, String> {
        let rules = AdmissionRules {
            secrets: std::slice::from_ref(plan.secret),
            purpose: Purpose::Member,
            group: plan.group,
        };
        loop {
            match listener.read(std::mem::take(&mut bytes), &rules) {
                Ok(ResponderStep::More) => {
                    self.stage = MemberHandshakeStage::Listening { listener, introduction };
                    return Ok(None);
                }
                Ok(ResponderStep::Answer { bytes, payload }) => {
                    let introduced = Introduction::decode(&payload).map_err(|_| "it is no member")?;
                    let is_other = self.with.is_some_and(|with| with != introduced.from);
                    if introduced.to != plan.me || introduced.from >= plan.me || is_other {
                        return Err("it takes this member for another one".into());
                    }
                    if introduced.is_sealed != plan.is_sealed {
                        return Err(self.refuse(Verdict::OtherSealing));
                    }
                    if introduced.link != plan.link {
                        return Err(self.refuse(Verdict::OtherLink));
                    }
                    introduction = Some(introduced);
                    let written = self.stream.write_all(&bytes);
                    written.map_err(|error| error.to_string())?;
                }
                Ok(ResponderStep::Proved { cipher, rest, .. }) => {
                    let Introduction {
                        from: rank,
                        member_node,
                        ..
                    } = introduction.ok_or("it is no member")?;
                    return Ok(Some(HandshakeResult {
                        rank,
                        member_node,
                        cipher,
                        rest,
                    }));
                }
                Err(HandshakeError::Refuse(verdict)) => return Err(self.refuse(verdict)),
                Err(failure) => return Err(reason(failure)),
            }
        }
    }

    fn refuse(&mut self, verdict: Verdict) -> String {
        // The peer may be gone, and then needs no answer.
        let _ = self.stream.write(&[verdict.encode()]);
        cipher::explain(verdict).into()
    }
}

impl MemberHandshakeStage {
    fn listening(plan: &MeshPlan<'_>) -> Self {
        Self::Listening {
            listener: Responder::with_payload(&plan.member_node.encode()),
            introduction: None,
        }
    }
}

impl MeshPlan<'_> {
    fn introduction(&self, to: Rank) -> Introduction {
        Introduction {
            from: self.me,
            to,
            is_sealed: self.is_sealed,
            link: self.link,
            member_node: self.member_node,
        }
    }

    /// Rank that a knock claims, after a check that the knock is for this member.
    fn rank_of_knock(&self, knock: &[u8; Knock::BYTES]) -> Result<Rank, &'static str> {
        let knock = Knock::decode(knock).map_err(|_| "it sent no greeting")?;
        let Introduction { from, to, .. } = knock.introduction;
        let is_ours = knock.group == self.group && knock.key == self.secret.id();
        if !is_ours || to != self.me || from as usize >= self.members.len() {
            return Err("it takes this member for another one");
        }
        Ok(from)
    }
}

/// Returns whether the peer knocks, or `None` if too few bytes have arrived to decide.
fn detect_knock(got: &[u8]) -> Option<bool> {
    let greeting = got.first_chunk::<{ Greeting::BYTES }>()?;
    let greeting = Greeting::decode(greeting);
    Some(greeting.is_ok_and(|greeting| greeting.purpose == Purpose::Knock))
}

/// Takes the answer of the rendezvous, if it is complete.
fn answer(cipher: &mut Cipher, pieces: &mut AnswerPieces, got: &mut Vec<u8>) -> Result<Option<JoinAnswer>, String> {
    while let Some(content) = cipher.open_next(got).map_err(reason)? {
        let answer = pieces.take(&content);
        let answer = answer.map_err(|_| "the rendezvous's answer makes no sense")?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

fn reason(failure: HandshakeError) -> String {
    match failure {
        HandshakeError::Refused(verdict) | HandshakeError::Refuse(verdict) => cipher::explain(verdict).into(),
        HandshakeError::Stranger(why) => why.into(),
    }
}
