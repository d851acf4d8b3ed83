//! Sender's half: credit, announcements, and large messages, which are sent without a copy.

use super::{Action, Bounds, KeptMessage, MessageStatus, Owner, PENDING_MAX, Protocol};
use crate::arena::Key;
use crate::error::{Activity, Error};
use crate::matching::MessageEnvelope;
use crate::memory::{Piece, TransferMemory};
use hotlease_collectives::Rank;
use hotlease_wire::comm::frame::{DATA_BYTES_MAX, MESSAGE_BYTES_MAX, MemberFrame, MessageAddress, MessageClass};

/// Bit of an announcement's number: if set, the sender waits until a receive has asked for the message, so the receiver
/// does not accept it earlier. No place in the table of sends has this bit. A grant repeats the number unchanged.
pub(super) const SYNCHRONOUS: Key = 1 << 31;

/// Length in the announcement of a message without bytes, because the length in an announcement must be at least 1. No
/// message has this length.
pub(super) const NO_BYTES: u64 = MESSAGE_BYTES_MAX;

/// Message that is sent without a copy, at once or when it is granted.
pub(super) struct OutgoingMessage {
    pub(super) to: Rank,
    pub(super) owner: Owner,
    pub(super) during: Activity,
    pub(super) context: u64,
    tag: u32,
    body: Piece,
    /// The receiver's number for the message, once it was granted.
    landing: Option<u64>,
    /// Bytes that were given to the link.
    given: u64,
}

impl OutgoingMessage {
    /// Makes a message that was given to the link completely.
    pub(super) fn whole(to: Rank, owner: Owner, during: Activity, address: &MessageAddress, body: Piece) -> Self {
        Self {
            to,
            owner,
            during,
            context: address.context,
            tag: address.tag,
            given: body.len() as u64,
            body,
            landing: None,
        }
    }

    pub(super) fn tag(&self) -> u32 {
        self.tag
    }

    /// Whether no part of the message is sent before it is granted.
    pub(super) fn is_announced(&self) -> bool {
        self.landing.is_none() && self.given == 0
    }
}

/// Message for which there was no credit.
pub(super) struct QueuedMessage {
    pub(super) address: MessageAddress,
    body: Piece,
    pub(super) owner: Owner,
    is_synchronous: bool,
}

/// Description of a send for errors.
pub(super) fn during(to: Rank, address: &MessageAddress) -> Activity {
    match address.class {
        MessageClass::Message => Activity::Send { to, tag: address.tag },
        MessageClass::Collective => Activity::Collective { number: address.tag },
    }
}

impl Protocol {
    /// Sends a message, now or when there is credit for it.
    pub(crate) fn send(&mut self, to: Rank, address: MessageAddress, body: Piece, owner: Owner) {
        self.send_in_mode(to, address, body, owner, false);
    }

    /// Sends a message that counts as sent when a receive has asked for it.
    pub(crate) fn send_synchronously(&mut self, to: Rank, address: MessageAddress, body: Piece, owner: Owner) {
        self.send_in_mode(to, address, body, owner, true);
    }

    fn send_in_mode(&mut self, to: Rank, address: MessageAddress, body: Piece, owner: Owner, is_synchronous: bool) {
        if let Some(error) = self.departure_in(address.context, to, during(to, &address)) {
            return self.complete(owner, Err(error));
        }
        if to == self.me {
            return self.send_to_self(address, body, owner, is_synchronous);
        }
        if self.is_stored() {
            return self.put_message(to, address, body, owner);
        }
        let waiting = &self.peer(to).waiting[address.class as usize];
        if waiting.len() >= PENDING_MAX {
            let error = Error::TooManyRequests { pending: PENDING_MAX };
            return self.complete(owner, Err(error));
        }
        // Messages that wait already are sent first.
        let message = QueuedMessage {
            address,
            body,
            owner,
            is_synchronous,
        };
        if !waiting.is_empty() || !self.dispatch(to, &message) {
            self.peer(to).waiting[address.class as usize].push_back(message);
        }
    }

    /// Whether a message may be sent with its frame right now; if so, the caller sends it.
    pub(crate) fn admit(&mut self, to: Rank, address: &MessageAddress, bytes: u64) -> Result<bool, Error> {
        if let Some(error) = self.departure_in(address.context, to, during(to, address)) {
            return Err(error);
        }
        let is_small = bytes <= self.bounds.small_bytes;
        if to == self.me || self.is_stored() || !is_small || !self.peer(to).waiting[address.class as usize].is_empty() {
            return Ok(false);
        }
        Ok(self.peer(to).spend[address.class as usize].spend(bytes))
    }

    /// Sends or announces a message; returns `false` if there is no credit.
    fn dispatch(&mut self, to: Rank, message: &QueuedMessage) -> bool {
        let QueuedMessage {
            address,
            body,
            owner,
            is_synchronous,
        } = message;
        let (owner, is_synchronous) = (*owner, *is_synchronous);
        let length = body.len() as u64;
        let Bounds {
            small_bytes,
            eager_bytes,
            ..
        } = self.bounds;
        let spend = &mut self.peer(to).spend[address.class as usize];
        let frame = MemberFrame::Eager { to: *address, length };
        if length <= small_bytes && !is_synchronous {
            if !spend.spend(length) {
                return false;
            }
            let body = body.clone();
            self.actions.push_back(Action::Eager { to, frame, body });
            self.sent_whole(address.tag, length, owner);
            return true;
        }
        let goes_at_once = !is_synchronous && length <= eager_bytes && spend.spend_large(length);
        if !goes_at_once && !spend.spend(0) {
            return false;
        }
        let id = self.sends.insert(OutgoingMessage {
            to,
            owner,
            during: during(to, address),
            context: address.context,
            tag: address.tag,
            body: body.clone(),
            landing: None,
            given: if goes_at_once { length } else { 0 },
        });
        self.actions.push_back(match goes_at_once {
            true => Action::Data {
                to,
                frame,
                body: body.clone(),
                send: id,
            },
            false => Action::Frame {
                to,
                frame: MemberFrame::Announce {
                    to: *address,
                    length: if length == 0 { NO_BYTES } else { length },
                    id: if is_synchronous { id | SYNCHRONOUS } else { id },
                },
            },
        });
        true
    }

    fn sent_whole(&mut self, tag: u32, bytes: u64, owner: Owner) {
        let source = self.me;
        self.complete(owner, Ok(MessageStatus { source, tag, bytes }));
    }

    /// Sends a message to this member itself, for another thread or a later receive.
    fn send_to_self(&mut self, address: MessageAddress, body: Piece, owner: Owner, is_synchronous: bool) {
        let (class, length) = (address.class, body.len() as u64);
        let envelope = MessageEnvelope {
            source: self.me,
            tag: address.tag,
        };
        if let Some(posted) = self.receiver_of(&address, envelope, length) {
            return self.deliver_own(envelope, (body, owner), posted);
        }
        let is_small = length <= self.bounds.small_bytes && !is_synchronous;
        let me = self.me;
        let kept = if is_small && self.peer(me).spend[class as usize].spend(length) {
            self.peer(me).lend[class as usize].charge(length);
            let copy = TransferMemory::zeroed(body.len());
            let copied = body.copy_to(&copy.whole());
            let landed = self.insert_landed(envelope, class, length, copy);
            let result = copied.map(|()| MessageStatus {
                source: me,
                tag: address.tag,
                bytes: length,
            });
            let during = during(me, &address);
            self.complete(owner, result.ok_or(Error::MemoryReclaimed { during }));
            landed
        } else {
            KeptMessage::Own {
                body,
                owner,
                is_synchronous,
            }
        };
        self.news += 1;
        self.matching(class, address.context).keep(envelope, kept);
    }

    /// Adds credit that a member has given back.
    pub(super) fn handle_credit(&mut self, from: Rank, class: MessageClass, amount: u64) {
        let index = class as usize;
        self.peer(from).spend[index].give_back(amount);
        self.is_leaving_due = true;
        while let Some(first) = self.peer(from).waiting[index].pop_front() {
            if !self.dispatch(from, &first) {
                return self.peer(from).waiting[index].push_front(first);
            }
        }
    }

    /// Begins a message that was announced, because its receiver has memory for it.
    pub(super) fn handle_grant(&mut self, from: Rank, id: Key, landing: u64) {
        let id = id & !SYNCHRONOUS;
        match self.sends.get_mut(id) {
            Some(sending) if sending.to == from && sending.is_announced() => {
                sending.landing = Some(landing);
                // Nothing follows a message without bytes.
                match sending.body.len() {
                    0 => self.handle_sent(id),
                    _ => self.send_next(id),
                }
            }
            // The message was not announced, or not to this member.
            Some(_) => {}
            // The message was given up meanwhile, with its collective.
            None => {
                let frame = MemberFrame::Withdraw { landing };
                self.actions.push_back(Action::Frame { to: from, frame });
            }
        }
    }

    /// Notes that the link has sent the part of a message that was passed to it.
    pub(crate) fn handle_sent(&mut self, send: Key) {
        let Some(sending) = self.sends.get(send) else {
            return;
        };
        if sending.given < sending.body.len() as u64 {
            return self.send_next(send);
        }
        if let Some(sending) = self.sends.remove(send) {
            self.sent_whole(sending.tag, sending.given, sending.owner);
        }
    }

    fn send_next(&mut self, send: Key) {
        let Some(sending) = self.sends.get_mut(send) else {
            return;
        };
        let Some(landing) = sending.landing else { return };
        let length = DATA_BYTES_MAX.min(sending.body.len() as u64 - sending.given);
        let start = sending.given as usize;
        let body = sending.body.part(start..start + length as usize);
        sending.given += length;
        let frame = MemberFrame::Data { landing, length };
        let to = sending.to;
        self.actions.push_back(Action::Data { to, frame, body, send });
    }

    /// Ends a message whose memory was taken back before all of it was sent. Nothing more can be sent to its receiver,
    /// which would take it for the rest of the message.
    pub(crate) fn fail_send(&mut self, send: Key) {
        if let Some(sending) = self.sends.remove(send) {
            let during = sending.during;
            self.complete(sending.owner, Err(Error::MemoryReclaimed { during }));
        }
    }

    /// Whether anything is still to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        let waits = |peer: &super::PeerState| peer.waiting.iter().any(|waiting| !waiting.is_empty());
        self.sends.len() > 0 || self.peers.iter().any(waits)
    }

    /// Removes the sends of which nothing was sent or announced; returns whether there were any. Announced messages
    /// stay, because their receivers will wait for them. ([`Self::withdraw_announced`] is only for collectives, which
    /// end for all members.)
    pub(super) fn withdraw_sends(&mut self, owner: Owner) -> bool {
        self.withdraw_waiting(owner) > 0 || self.withdraw_own(owner)
    }

    pub(super) fn withdraw_waiting(&mut self, owner: Owner) -> usize {
        let mut withdrawn = 0;
        for peer in &mut self.peers {
            for waiting in &mut peer.waiting {
                let before = waiting.len();
                waiting.retain(|waiting| waiting.owner != owner);
                withdrawn += before - waiting.len();
            }
        }
        withdrawn
    }

    /// Removes the messages that were announced and not granted; returns their number.
    pub(super) fn withdraw_announced(&mut self, owner: Owner) -> usize {
        let meant = self
            .sends
            .keys(|sending| sending.owner == owner && sending.is_announced());
        meant.iter().filter(|send| self.sends.remove(**send).is_some()).count()
    }

    fn withdraw_own(&mut self, owner: Owner) -> bool {
        let me = self.me;
        let mut withdrawn = false;
        for context in self.contexts.values_mut() {
            for matching in &mut context.matching {
                matching.retain(me, |kept| match kept {
                    KeptMessage::Own { owner: sender, .. } if *sender == owner => {
                        withdrawn = true;
                        false
                    }
                    _ => true,
                });
            }
        }
        withdrawn
    }
}
