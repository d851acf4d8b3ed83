//! Receiver's half: awaited messages are received into the caller's memory; other messages are kept, as far as their
//! senders have credit.

mod kept;
mod whole;

pub(crate) use kept::KeptNow;

use super::sending::NO_BYTES;
use super::{Action, MessageStatus, Owner, Protocol};
use crate::arena::{Arena, Key};
use crate::error::{Activity, Error};
use crate::link::ObjectName;
use crate::matching::{MessageEnvelope, Pattern};
use crate::memory::{Piece, TransferMemory};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageAddress, MessageClass};

/// Receive that waits for its message.
pub(super) struct PostedReceive {
    pub(super) owner: Owner,
    pub(super) during: Activity,
    into: Piece,
}

impl PostedReceive {
    pub(super) const fn memory(&self) -> &Piece {
        &self.into
    }

    pub(super) fn parts(self) -> (Piece, Owner, Activity) {
        (self.into, self.owner, self.during)
    }
}

/// Message that no receive has asked for yet.
pub(crate) enum KeptMessage {
    /// Still at its sender.
    Announced { id: u64, length: u64 },
    /// Received, or being received.
    Landing(Key),
    /// Sent by this member to itself.
    Own {
        body: Piece,
        owner: Owner,
        is_synchronous: bool,
    },
    /// In a store. The first bytes are kept here, and may be all bytes of the message.
    Stored {
        name: ObjectName,
        length: u64,
        first: Vec<u8>,
    },
}

/// Message that is being received.
pub(super) struct Landing {
    from: Rank,
    tag: u32,
    class: MessageClass,
    total: u64,
    received: u64,
    /// Number of the message's bytes that were sent on credit; `None` if no credit is to be given back for the message.
    credit: Option<u64>,
    /// Whether the sender has given the message up.
    is_withdrawn: bool,
    target: LandingTarget,
}

enum LandingTarget {
    /// Memory of the receive that asked for the message.
    Posted(PostedReceive),
    /// Memory of this member, until a receive asks for the message.
    Kept {
        memory: TransferMemory,
        is_early: bool,
        asked: Option<PostedReceive>,
    },
    /// No memory: the receive that asked for the message has given up.
    Discarded,
}

impl LandingTarget {
    fn asked(&self) -> Option<&PostedReceive> {
        match self {
            Self::Posted(posted) => Some(posted),
            Self::Kept { asked, .. } => asked.as_ref(),
            Self::Discarded => None,
        }
    }
}

fn length_of(kept: &KeptMessage, landings: &Arena<Landing>) -> u64 {
    match kept {
        KeptMessage::Announced { length, .. } | KeptMessage::Stored { length, .. } => *length,
        KeptMessage::Landing(key) => landings.get(*key).map_or(0, |landing| landing.total),
        KeptMessage::Own { body, .. } => body.len() as u64,
    }
}

/// Prepares memory for a message; fails if the message does not fit.
fn fit(
    class: MessageClass,
    envelope: MessageEnvelope,
    length: u64,
    into: &mut Piece,
    during: Activity,
) -> Result<(), Error> {
    let room = into.len() as u64;
    match class {
        MessageClass::Message if length > room => Err(Error::Truncated {
            source_rank: envelope.source,
            tag: envelope.tag,
            sent: length,
            room,
        }),
        MessageClass::Collective if length != room => Err(Error::Mismatch {
            during,
            source_rank: envelope.source,
            sent: length,
            expected: room,
        }),
        _ => into.fit(length),
    }
}

impl Protocol {
    /// Receives a message that has arrived, or arrives later. A message that is too large is not taken.
    pub(crate) fn receive(&mut self, class: MessageClass, context: u64, pattern: Pattern, into: Piece, owner: Owner) {
        let during = match class {
            MessageClass::Message => Activity::Receive {
                from: pattern.source,
                tag: pattern.tag,
            },
            MessageClass::Collective => Activity::Collective {
                number: pattern.tag.unwrap_or(0),
            },
        };
        let mut posted = PostedReceive { owner, during, into };
        if let Some((envelope, length)) = self.probe(class, context, pattern) {
            if let Err(error) = fit(class, envelope, length, &mut posted.into, during) {
                return self.complete(owner, Err(error));
            }
            if let Some((envelope, kept)) = self.matching(class, context).take(pattern) {
                self.no_longer_kept(&kept);
                return self.deliver(class, envelope, kept, posted);
            }
        }
        if let Some(error) = self.receive_error(context, pattern, during) {
            return self.complete(owner, Err(error));
        }
        self.note_change();
        if self.matching(class, context).post(pattern, posted).is_err() {
            let pending = super::PENDING_MAX;
            self.complete(owner, Err(Error::TooManyRequests { pending }));
        }
    }

    /// First message that a receive would take, and its length.
    pub(crate) fn probe(&self, class: MessageClass, context: u64, pattern: Pattern) -> Option<(MessageEnvelope, u64)> {
        let context = self.contexts.get(&context)?;
        let (envelope, kept) = context.matching[class as usize].find(pattern)?;
        Some((envelope, length_of(kept, &self.landings)))
    }

    /// Removes and returns the receive that a message is for. A receive with too little memory ends with an error; then
    /// the message is for the next receive.
    pub(super) fn receiver_of(
        &mut self,
        to: &MessageAddress,
        envelope: MessageEnvelope,
        length: u64,
    ) -> Option<PostedReceive> {
        loop {
            let mut posted = self.matching(to.class, to.context).arrive(envelope)?;
            match fit(to.class, envelope, length, &mut posted.into, posted.during) {
                Ok(()) => return Some(posted),
                Err(error) => self.complete(posted.owner, Err(error)),
            }
        }
    }

    /// Gives a kept message to a receive that it fits.
    pub(super) fn deliver(
        &mut self,
        class: MessageClass,
        envelope: MessageEnvelope,
        kept: KeptMessage,
        posted: PostedReceive,
    ) {
        match kept {
            KeptMessage::Announced { id, length } => {
                self.repay_credit(envelope.source, class, 0);
                self.grant(class, envelope, id, length, LandingTarget::Posted(posted));
            }
            KeptMessage::Own { body, owner, .. } => self.deliver_own(envelope, (body, owner), posted),
            KeptMessage::Stored { name, length, first } => self.hand(name, envelope, length, &first, posted),
            KeptMessage::Landing(key) => {
                let Some(landing) = self.landings.get_mut(key) else {
                    return;
                };
                landing.tag = envelope.tag;
                if let LandingTarget::Kept { asked, .. } = &mut landing.target {
                    *asked = Some(posted);
                }
                if landing.received == landing.total {
                    self.finish_landing(key);
                }
            }
        }
    }

    /// Keeps a complete message that this member has sent to itself.
    pub(super) fn insert_landed(
        &mut self,
        envelope: MessageEnvelope,
        class: MessageClass,
        length: u64,
        memory: TransferMemory,
    ) -> KeptMessage {
        KeptMessage::Landing(self.landings.insert(Landing {
            from: envelope.source,
            tag: envelope.tag,
            class,
            total: length,
            received: length,
            credit: Some(length),
            is_withdrawn: false,
            target: LandingTarget::Kept {
                memory,
                is_early: false,
                asked: None,
            },
        }))
    }

    fn grant(&mut self, class: MessageClass, envelope: MessageEnvelope, id: u64, total: u64, target: LandingTarget) {
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
            frame: MemberFrame::Grant { id, landing },
        });
        if total == 0 {
            self.finish_landing(landing);
        }
    }

    /// Counts a taken message of which `bytes` bytes were sent on credit; gives credit back once enough is owed.
    pub(super) fn repay_credit(&mut self, from: Rank, class: MessageClass, bytes: u64) {
        let me = self.me;
        let peer = self.peer(from);
        let Some(amount) = peer.lend[class as usize].repay(bytes) else {
            return;
        };
        if from == me {
            return peer.spend[class as usize].give_back(amount);
        }
        let frame = MemberFrame::Credit { class, amount };
        self.actions.push_back(Action::Frame { to: from, frame });
    }

    /// Handles a frame of a member; returns the memory for its body, or `None` if there is no body or it is discarded.
    /// Fails if the member is not allowed to send this frame.
    pub(crate) fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        match frame {
            MemberFrame::Eager { to, length } => self.eager(from, to, length),
            MemberFrame::Data { landing, length } => self.data(from, landing, length),
            MemberFrame::Announce { to, length, id } => self.handle_announce(from, to, length, id).map(|()| None),
            MemberFrame::Grant { id, landing } => {
                self.handle_grant(from, id, landing);
                Ok(None)
            }
            MemberFrame::Withdraw { landing } => self.handle_withdraw(from, landing).map(|()| None),
            MemberFrame::Credit { class, amount } => {
                self.handle_credit(from, class, amount);
                Ok(None)
            }
            MemberFrame::Alive => Ok(None),
            MemberFrame::Goodbye
            | MemberFrame::Farewell
            | MemberFrame::Lost { .. }
            | MemberFrame::Broken { .. }
            | MemberFrame::Leave { .. } => self.handle_notice(from, frame).map(|()| None),
            // Links exchange these frames among themselves, and must not pass them on.
            MemberFrame::Offer { .. }
            | MemberFrame::Accept { .. }
            | MemberFrame::Decline
            | MemberFrame::Switch
            | MemberFrame::Inbox { .. } => Err(Loss::Protocol),
        }
    }

    fn charge(&mut self, from: Rank, to: &MessageAddress, bytes: u64) -> Result<MessageEnvelope, Loss> {
        let is_new = !self.contexts.contains_key(&to.context);
        let is_one_too_many = is_new && self.is_full();
        let peer = self.peer(from);
        if is_one_too_many || peer.has_left || !peer.lend[to.class as usize].charge(bytes) {
            return Err(Loss::Protocol);
        }
        Ok(MessageEnvelope {
            source: from,
            tag: to.tag,
        })
    }

    fn eager(&mut self, from: Rank, to: MessageAddress, length: u64) -> Result<Option<Piece>, Loss> {
        let envelope = self.charge(from, &to, length)?;
        let posted = self.taker_of(&to, envelope, length);
        Ok(self.land(envelope, to, length, posted))
    }

    /// Removes and returns the receive that a message is for, unless this member has left the communicator.
    fn taker_of(&mut self, to: &MessageAddress, envelope: MessageEnvelope, length: u64) -> Option<PostedReceive> {
        match self.is_accepting(to) {
            true => self.receiver_of(to, envelope, length),
            false => None,
        }
    }

    /// Prepares for the body of a message; returns the memory for the body.
    fn land(
        &mut self,
        envelope: MessageEnvelope,
        to: MessageAddress,
        length: u64,
        posted: Option<PostedReceive>,
    ) -> Option<Piece> {
        let from = envelope.source;
        let (target, into) = match posted {
            // Discarded: this member has left the communicator, and the sender was not told yet.
            None if !self.is_accepting(&to) => (LandingTarget::Discarded, None),
            Some(posted) => {
                let into = posted.into.part(0..length as usize);
                (LandingTarget::Posted(posted), Some(into))
            }
            None => {
                // At most `EAGER_BYTES_MAX` bytes, for which the sender had credit.
                let bytes = length as usize;
                let memory = match length <= self.bounds.small_bytes {
                    true => TransferMemory::zeroed(bytes),
                    false => self.scratch(bytes),
                };
                let into = Some(memory.piece(0..bytes));
                let target = LandingTarget::Kept {
                    memory,
                    is_early: false,
                    asked: None,
                };
                (target, into)
            }
        };
        let is_kept = matches!(target, LandingTarget::Kept { .. });
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
                .keep(envelope, KeptMessage::Landing(key));
        }
        self.peer(from).landing = Some(key);
        into
    }

    fn handle_announce(&mut self, from: Rank, to: MessageAddress, length: u64, id: u64) -> Result<(), Loss> {
        let envelope = self.charge(from, &to, 0)?;
        let length = if length == NO_BYTES { 0 } else { length };
        if !self.is_accepting(&to) {
            // The sender ends the message when it is told that this member has left.
            self.repay_credit(from, to.class, 0);
            return Ok(());
        }
        match self.receiver_of(&to, envelope, length) {
            Some(posted) => self.deliver(to.class, envelope, KeptMessage::Announced { id, length }, posted),
            None => {
                let kept = KeptMessage::Announced { id, length };
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
            LandingTarget::Posted(posted) => Some(posted.into.part(range)),
            LandingTarget::Kept { memory, .. } => Some(memory.piece(range)),
            LandingTarget::Discarded => None,
        };
        self.peer(from).landing = Some(key);
        Ok(into)
    }

    /// Notes that the body of a member's last frame has arrived.
    pub(crate) fn body(&mut self, from: Rank, bytes: u64) {
        let Some(key) = self.peer(from).landing.take() else {
            return;
        };
        let Some(landing) = self.landings.get_mut(key) else {
            return;
        };
        landing.received += bytes;
        if landing.received == landing.total {
            self.finish_landing(key);
        }
    }

    /// Ends a message that has arrived completely, if a receive has asked for it.
    fn finish_landing(&mut self, key: Key) {
        let Some(landing) = self.landings.get(key) else {
            return;
        };
        if matches!(&landing.target, LandingTarget::Kept { asked: None, .. }) {
            return;
        }
        let Some(landing) = self.landings.remove(key) else {
            return;
        };
        let status = MessageStatus {
            source: landing.from,
            tag: landing.tag,
            bytes: landing.total,
        };
        if let Some(bytes) = landing.credit {
            self.repay_credit(landing.from, landing.class, bytes);
        }
        match landing.target {
            LandingTarget::Posted(posted) => self.complete(posted.owner, Ok(status)),
            LandingTarget::Kept {
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
                    self.keep_scratch(memory);
                }
                self.complete(
                    posted.owner,
                    copied.map(|()| status).ok_or(Error::MemoryReclaimed { during }),
                );
            }
            LandingTarget::Kept { .. } | LandingTarget::Discarded => {}
        }
    }
}
