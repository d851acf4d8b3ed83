//! Receiver's half: awaited messages land in the caller's memory, others are kept within the credit.

mod kept;

use super::{Action, Owner, Protocol, Status};
use crate::error::{During, Error};
use crate::link::store::Name;
use crate::matching::{Envelope, Pattern};
use crate::memory::{Memory, Piece};
use crate::schedule::Rank;
use crate::slots::{Key, Slots};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{Address, Class, Frame};

/// Receive that waits for its message.
pub(super) struct Posted {
    pub(super) owner: Owner,
    pub(super) during: During,
    into: Piece,
}

impl Posted {
    pub(super) fn parts(self) -> (Piece, Owner, During) {
        (self.into, self.owner, self.during)
    }
}

/// Message that no receive has asked for yet.
pub(crate) enum Kept {
    /// Still at its sender.
    Announced { id: u64, length: u64 },
    /// Here, or on its way.
    Landing(Key),
    /// Sent by this member to itself.
    Own { body: Piece, owner: Owner },
    /// In a store, except for its first bytes, which are here and may be all.
    Stored { name: Name, length: u64, first: Vec<u8> },
}

/// Message that is being received.
pub(super) struct Landing {
    from: Rank,
    tag: u32,
    class: Class,
    total: u64,
    received: u64,
    /// Number of its bytes that were sent on credit, if credit is to be given back when it is taken.
    credit: Option<u64>,
    /// The sender has given it up.
    is_withdrawn: bool,
    target: Target,
}

enum Target {
    /// Memory of the receive that asked for it.
    Asked(Posted),
    /// Memory of this member, for a receive that asks for it.
    Kept {
        memory: Memory,
        is_early: bool,
        asked: Option<Posted>,
    },
    /// None: the receive that asked for it has given up.
    Nobody,
}

impl Target {
    fn asked(&self) -> Option<&Posted> {
        match self {
            Self::Asked(posted) => Some(posted),
            Self::Kept { asked, .. } => asked.as_ref(),
            Self::Nobody => None,
        }
    }
}

fn length_of(kept: &Kept, landings: &Slots<Landing>) -> u64 {
    match kept {
        Kept::Announced { length, .. } | Kept::Stored { length, .. } => *length,
        Kept::Landing(key) => landings.get(*key).map_or(0, |landing| landing.total),
        Kept::Own { body, .. } => body.len() as u64,
    }
}

/// Prepares memory for a message; fails if the two do not fit.
fn fit(class: Class, envelope: Envelope, length: u64, into: &mut Piece, during: During) -> Result<(), Error> {
    let room = into.len() as u64;
    match class {
        Class::Message if length > room => Err(Error::Truncated {
            source_rank: envelope.source,
            tag: envelope.tag,
            sent: length,
            room,
        }),
        Class::Collective if length != room => Err(Error::Mismatch {
            during,
            source_rank: envelope.source,
            sent: length,
            expected: room,
        }),
        _ => into.settle(length),
    }
}

impl Protocol {
    /// Receives a message, which is here or comes later. A message that is too large stays where it is.
    pub(crate) fn receive(
        &mut self,
        class: Class,
        context: u64,
        pattern: Pattern,
        into: Piece,
        owner: Owner,
    ) {
        let during = match class {
            Class::Message => During::Receive {
                from: pattern.source,
                tag: pattern.tag,
            },
            Class::Collective => During::Collective {
                number: pattern.tag.unwrap_or(0),
            },
        };
        let mut posted = Posted { owner, during, into };
        if let Some((envelope, length)) = self.probe(class, context, pattern) {
            if let Err(error) = fit(class, envelope, length, &mut posted.into, during) {
                return self.complete(owner, Err(error));
            }
            if let Some((envelope, kept)) = self.matching(class, context).take(pattern) {
                self.no_longer_kept(&kept);
                return self.deliver(class, envelope, kept, posted);
            }
        }
        if let Some(error) = self.hopeless(context, pattern, during) {
            return self.complete(owner, Err(error));
        }
        self.wants_change();
        if self.matching(class, context).post(pattern, posted).is_err() {
            let pending = super::PENDING_MAX;
            self.complete(owner, Err(Error::TooManyRequests { pending }));
        }
    }

    /// First message that a receive would take, and its length.
    pub(crate) fn probe(&self, class: Class, context: u64, pattern: Pattern) -> Option<(Envelope, u64)> {
        let context = self.contexts.get(&context)?;
        let (envelope, kept) = context.matching[class as usize].find(pattern)?;
        Some((envelope, length_of(kept, &self.landings)))
    }

    /// Takes the receive that a message is for. A receive with too little memory ends with an error; the message is for
    /// the next one.
    pub(super) fn receiver_of(&mut self, to: &Address, envelope: Envelope, length: u64) -> Option<Posted> {
        loop {
            let mut posted = self.matching(to.class, to.context).arrive(envelope)?;
            match fit(to.class, envelope, length, &mut posted.into, posted.during) {
                Ok(()) => return Some(posted),
                Err(error) => self.complete(posted.owner, Err(error)),
            }
        }
    }

    /// Gives a kept message to a receive that it fits.
    pub(super) fn deliver(&mut self, class: Class, envelope: Envelope, kept: Kept, posted: Posted) {
        match kept {
            Kept::Announced { id, length } => {
                self.taken(envelope.source, class, 0);
                self.grant(class, envelope, id, length, Target::Asked(posted));
            }
            Kept::Own { body, owner } => {
                let status = Status {
                    source: envelope.source,
                    tag: envelope.tag,
                    bytes: body.len() as u64,
                };
                let copied = body.copy_to(&posted.into);
                let during = posted.during;
                let result = copied.map(|()| status).ok_or(Error::MemoryGone { during });
                self.complete(owner, result.clone());
                self.complete(posted.owner, result);
            }
            Kept::Stored { name, length, first } => self.hand(name, envelope, length, &first, posted),
            Kept::Landing(key) => {
                let Some(landing) = self.landings.get_mut(key) else {
                    return;
                };
                landing.tag = envelope.tag;
                if let Target::Kept { asked, .. } = &mut landing.target {
                    *asked = Some(posted);
                }
                if landing.received == landing.total {
                    self.arrived(key);
                }
            }
        }
    }

    /// Keeps a message of this member to itself, which is complete.
    pub(super) fn landed(&mut self, envelope: Envelope, class: Class, length: u64, memory: Memory) -> Kept {
        Kept::Landing(self.landings.insert(Landing {
            from: envelope.source,
            tag: envelope.tag,
            class,
            total: length,
            received: length,
            credit: Some(length),
            is_withdrawn: false,
            target: Target::Kept {
                memory,
                is_early: false,
                asked: None,
            },
        }))
    }

    fn grant(&mut self, class: Class, envelope: Envelope, id: u64, total: u64, target: Target) {
        let landing = self.landings.insert(Landing {
            from: envelope.source,
            tag: envelope.tag,
            class,
            total,
            received: 0,
            credit: None,
            is_withdrawn: false,
            target,
        });
        self.actions.push_back(Action::Frame {
            to: envelope.source,
            frame: Frame::Grant { id, landing },
        });
    }

    /// Counts a message that was taken, of which this many bytes were sent on credit; gives credit back once enough is
    /// owed.
    pub(super) fn taken(&mut self, from: Rank, class: Class, bytes: u64) {
        let me = self.me;
        let peer = self.peer(from);
        let Some(amount) = peer.lend[class as usize].taken(bytes) else {
            return;
        };
        if from == me {
            return peer.spend[class as usize].give_back(amount);
        }
        let frame = Frame::Credit { class, amount };
        self.actions.push_back(Action::Frame { to: from, frame });
    }

    /// Handles a frame of a member; returns where its body goes, if it has one. Fails if the member must not send it.
    pub(crate) fn frame(&mut self, from: Rank, frame: Frame) -> Result<Option<Piece>, Loss> {
        match frame {
            Frame::Eager { to, length } => self.eager(from, to, length),
            Frame::Data { landing, length } => self.data(from, landing, length),
            Frame::Announce { to, length, id } => self.announced(from, to, length, id).map(|()| None),
            Frame::Grant { id, landing } => {
                self.granted(from, id, landing);
                Ok(None)
            }
            Frame::Withdraw { landing } => self.withdrawn(from, landing).map(|()| None),
            Frame::Credit { class, amount } => {
                self.credit(from, class, amount);
                Ok(None)
            }
            Frame::Alive => Ok(None),
            Frame::Goodbye
            | Frame::Farewell
            | Frame::Lost { .. }
            | Frame::Broken { .. }
            | Frame::Leave { .. } => self.word(from, frame).map(|()| None),
            // Links exchange these on their connections, where frames go another way.
            Frame::Offer { .. }
            | Frame::Accept { .. }
            | Frame::Decline
            | Frame::Switch
            | Frame::Inbox { .. } => Err(Loss::Protocol),
        }
    }

    /// Whether a message is for a receive with this pattern that is not posted, because everything that is posted or
    /// kept does not match.
    pub(crate) fn is_direct(&self, from: Rank, to: &Address, pattern: Pattern) -> bool {
        let envelope = Envelope {
            source: from,
            tag: to.tag,
        };
        let of_context = self.contexts.get(&to.context);
        of_context.is_some_and(|of_context| {
            let matching = &of_context.matching[to.class as usize];
            pattern.takes(envelope) && !matching.is_awaited(envelope) && matching.find(pattern).is_none()
        })
    }

    /// Whether a small message that has come completely is for such a receive with this much room. If so, it counts as
    /// received.
    pub(crate) fn take_direct(
        &mut self,
        from: Rank,
        to: &Address,
        bytes: u64,
        pattern: Pattern,
        room: u64,
    ) -> Result<bool, Loss> {
        if bytes > room || !self.is_direct(from, to, pattern) {
            return Ok(false);
        }
        self.charge(from, to, bytes)?;
        self.taken(from, to.class, bytes);
        Ok(true)
    }

    fn charge(&mut self, from: Rank, to: &Address, bytes: u64) -> Result<Envelope, Loss> {
        let is_new = !self.contexts.contains_key(&to.context);
        let is_one_too_many = is_new && self.is_full();
        let peer = self.peer(from);
        if is_one_too_many || peer.has_left || !peer.lend[to.class as usize].came(bytes) {
            return Err(Loss::Protocol);
        }
        Ok(Envelope {
            source: from,
            tag: to.tag,
        })
    }

    fn eager(&mut self, from: Rank, to: Address, length: u64) -> Result<Option<Piece>, Loss> {
        let envelope = self.charge(from, &to, length)?;
        let takes = self.takes(&to);
        let posted = if takes {
            self.receiver_of(&to, envelope, length)
        } else {
            None
        };
        let (target, into) = match posted {
            // Discarded: this member has left the communicator, and the sender has not heard of it yet.
            None if !takes => (Target::Nobody, None),
            Some(posted) => {
                let into = posted.into.part(0..length as usize);
                (Target::Asked(posted), Some(into))
            }
            None => {
                // At most `EAGER_BYTES_MAX` bytes, for which the sender had credit.
                let bytes = length as usize;
                let memory = match length <= self.bounds.small_bytes {
                    true => Memory::zeroed(bytes),
                    false => self.scratch(bytes),
                };
                let into = Some(memory.piece(0..bytes));
                let target = Target::Kept {
                    memory,
                    is_early: false,
                    asked: None,
                };
                (target, into)
            }
        };
        let is_kept = matches!(target, Target::Kept { .. });
        let key = self.landings.insert(Landing {
            from,
            tag: to.tag,
            class: to.class,
            total: length,
            received: 0,
            credit: Some(length),
            is_withdrawn: false,
            target,
        });
        if is_kept {
            self.news += 1;
            self.matching(to.class, to.context)
                .keep(envelope, Kept::Landing(key));
        }
        self.peer(from).landing = Some(key);
        Ok(into)
    }

    fn announced(&mut self, from: Rank, to: Address, length: u64, id: u64) -> Result<(), Loss> {
        let envelope = self.charge(from, &to, 0)?;
        if !self.takes(&to) {
            // The sender ends the message when it hears that this member has left.
            self.taken(from, to.class, 0);
            return Ok(());
        }
        match self.receiver_of(&to, envelope, length) {
            Some(posted) => self.deliver(to.class, envelope, Kept::Announced { id, length }, posted),
            None => {
                let kept = Kept::Announced { id, length };
                self.news += 1;
                self.matching(to.class, to.context).keep(envelope, kept);
            }
        }
        Ok(())
    }

    fn data(&mut self, from: Rank, key: Key, length: u64) -> Result<Option<Piece>, Loss> {
        let landing = self.landings.get(key).ok_or(Loss::Protocol)?;
        let is_due = landing.from == from && length <= landing.total - landing.received;
        if !is_due {
            return Err(Loss::Protocol);
        }
        let range = landing.received as usize..(landing.received + length) as usize;
        let into = match &landing.target {
            Target::Asked(posted) => Some(posted.into.part(range)),
            Target::Kept { memory, .. } => Some(memory.piece(range)),
            Target::Nobody => None,
        };
        self.peer(from).landing = Some(key);
        Ok(into)
    }

    /// Notes that the body of a member's last frame has come.
    pub(crate) fn body(&mut self, from: Rank, bytes: u64) {
        let Some(key) = self.peer(from).landing.take() else {
            return;
        };
        let Some(landing) = self.landings.get_mut(key) else {
            return;
        };
        landing.received += bytes;
        if landing.received == landing.total {
            self.arrived(key);
        }
    }

    /// Ends a message that has come completely, if a receive has asked for it.
    fn arrived(&mut self, key: Key) {
        let Some(landing) = self.landings.get(key) else {
            return;
        };
        if matches!(&landing.target, Target::Kept { asked: None, .. }) {
            return;
        }
        let Some(landing) = self.landings.remove(key) else {
            return;
        };
        let status = Status {
            source: landing.from,
            tag: landing.tag,
            bytes: landing.total,
        };
        if let Some(bytes) = landing.credit {
            self.taken(landing.from, landing.class, bytes);
        }
        match landing.target {
            Target::Asked(posted) => self.complete(posted.owner, Ok(status)),
            Target::Kept {
                memory,
                is_early,
                asked: Some(posted),
            } => {
                if is_early {
                    self.early_bytes -= landing.total;
                }
                let copied = memory.piece(0..landing.total as usize).copy_to(&posted.into);
                let during = posted.during;
                if landing.total > self.bounds.small_bytes {
                    self.spare(memory);
                }
                self.complete(
                    posted.owner,
                    copied.map(|()| status).ok_or(Error::MemoryGone { during }),
                );
            }
            Target::Kept { .. } | Target::Nobody => {}
        }
    }
}
