//! Kept messages, and the ways in which they end without being received.

use super::{KeptMessage, Landing, LandingTarget, PostedReceive};
use crate::arena::Key;
use crate::matching::Pattern;
use crate::memory::TransferMemory;
use crate::protocol::sending::SYNCHRONOUS;
use crate::protocol::{Action, MessageStatus, Owner, Protocol};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageClass};
use std::ops::RangeInclusive;

/// Result of [`Protocol::take_kept_now`].
pub(crate) enum KeptNow {
    Taken(MessageStatus),
    /// No kept message matches.
    Absent,
    /// The first kept message that matches cannot be taken at once, and stays kept: it has not arrived completely, has
    /// an unsuitable length, is in a store, was sent by this member to itself, or was accepted early.
    Unsuitable,
}

impl Protocol {
    /// Takes the first kept message that matches, if all its bytes have arrived from another member, it was not
    /// accepted early ([`accept_early`](Self::accept_early)), and its length is in `lengths`. Passes its bytes to
    /// `copy`.
    pub(crate) fn take_kept_now(
        &mut self,
        class: MessageClass,
        context: u64,
        pattern: Pattern,
        lengths: RangeInclusive<u64>,
        copy: impl FnOnce(&[u8]),
    ) -> KeptNow {
        let Some(of_context) = self.contexts.get_mut(&context) else {
            return KeptNow::Absent;
        };
        let matching = &mut of_context.matching[class as usize];
        let Some((envelope, kept)) = matching.find(pattern) else {
            return KeptNow::Absent;
        };
        let KeptMessage::Landing(key) = *kept else {
            return KeptNow::Unsuitable;
        };
        let is_suitable = |landing: &&Landing| {
            let is_here = landing.received == landing.total && lengths.contains(&landing.total);
            is_here && matches!(landing.target, LandingTarget::Kept { is_early: false, .. })
        };
        if self.landings.get(key).filter(is_suitable).is_none() {
            return KeptNow::Unsuitable;
        }
        matching.take(pattern);
        let Some(landing) = self.landings.remove(key) else {
            return KeptNow::Unsuitable;
        };
        if let LandingTarget::Kept { memory, .. } = landing.target {
            memory.piece(0..landing.total as usize).read(copy);
            if landing.total > self.bounds.small_bytes {
                self.keep_scratch(memory);
            }
        }
        if let Some(bytes) = landing.credit {
            self.repay_credit(envelope.source, class, bytes);
        }
        KeptNow::Taken(MessageStatus {
            source: envelope.source,
            tag: envelope.tag,
            bytes: landing.total,
        })
    }

    /// Accepts large messages that no receive has asked for, as far as there is memory for them. Called while this
    /// member waits in a send: the receiver may itself wait until this member receives something, and then neither
    /// would ever continue.
    pub(crate) fn accept_early(&mut self) {
        let class = MessageClass::Message;
        let mut sent = Vec::new();
        for context in self.contexts.values_mut() {
            for (source, kept) in context.matching[class as usize].kept_messages() {
                let length = match &*kept {
                    // The sender waits until a receive asks for this message.
                    KeptMessage::Announced { id, .. } if id & SYNCHRONOUS != 0 => continue,
                    KeptMessage::Announced { length, .. } => *length,
                    KeptMessage::Own {
                        body,
                        is_synchronous: false,
                        ..
                    } => body.len() as u64,
                    KeptMessage::Own { .. } | KeptMessage::Landing(_) | KeptMessage::Stored { .. } => continue,
                };
                if length > self.bounds.early_bytes - self.early_bytes {
                    continue;
                }
                let memory = TransferMemory::zeroed(length as usize);
                let received = match &*kept {
                    KeptMessage::Own { body, .. } if body.copy_to(&memory.whole()).is_none() => continue,
                    KeptMessage::Own { .. } => length,
                    _ => 0,
                };
                self.early_bytes += length;
                let landing = self.landings.insert(Landing {
                    from: source,
                    tag: 0, // set when it is asked for
                    class,
                    total: length,
                    received,
                    credit: (received == 0).then_some(0),
                    is_withdrawn: false,
                    target: LandingTarget::Kept {
                        memory,
                        is_early: true,
                        asked: None,
                    },
                });
                match std::mem::replace(kept, KeptMessage::Landing(landing)) {
                    KeptMessage::Announced { id, .. } => self.actions.push_back(Action::Frame {
                        to: source,
                        frame: MemberFrame::Grant { id, landing },
                    }),
                    KeptMessage::Own { owner, .. } => sent.push((owner, length)),
                    KeptMessage::Landing(_) | KeptMessage::Stored { .. } => {}
                }
            }
        }
        for (owner, bytes) in sent {
            let status = MessageStatus {
                source: self.me,
                tag: 0,
                bytes,
            };
            self.complete(owner, Ok(status));
        }
    }

    /// Discards the messages on their way that receives of this owner have asked for; returns their number.
    pub(in crate::protocol) fn abandon(&mut self, owner: Owner) -> usize {
        let meant = self.landings.keys(|landing| {
            let asked = landing.target.asked();
            asked.is_some_and(|posted| posted.owner == owner)
        });
        for key in &meant {
            self.discard_landing(*key);
        }
        meant.len()
    }

    /// Makes the rest of a message be discarded as it arrives.
    fn discard_landing(&mut self, key: Key) {
        let Some(landing) = self.landings.get_mut(key) else {
            return;
        };
        landing.target = LandingTarget::Discarded;
        if landing.is_withdrawn {
            self.landings.remove(key);
        } else if landing.received == landing.total {
            self.finish_landing(key);
        }
    }

    /// Notes that a granted message will not arrive. The receive that waits for it has also been given up, or will be
    /// when this member is told why the sender has given up.
    pub(super) fn handle_withdraw(&mut self, from: Rank, key: Key) -> Result<(), Loss> {
        let Some(landing) = self.landings.get_mut(key) else {
            return Ok(());
        };
        if landing.from != from || landing.received > 0 || landing.is_withdrawn {
            return Err(Loss::Protocol);
        }
        landing.is_withdrawn = true;
        if matches!(landing.target, LandingTarget::Discarded) {
            self.landings.remove(key);
        }
        Ok(())
    }

    /// Drops a kept message that no receive will ask for.
    pub(in crate::protocol) fn drop_landing(&mut self, key: Key) {
        let Some(landing) = self.landings.get_mut(key) else {
            return;
        };
        if let LandingTarget::Kept { is_early: true, .. } = landing.target {
            self.early_bytes -= landing.total;
        }
        self.discard_landing(key);
    }

    /// Removes the messages of this member to itself that were not received; returns their owners.
    pub(in crate::protocol) fn take_own(&mut self) -> Vec<Owner> {
        let me = self.me;
        let mut owners = Vec::new();
        for context in self.contexts.values_mut() {
            for matching in &mut context.matching {
                matching.retain(me, |kept| match kept {
                    KeptMessage::Own { owner, .. } => {
                        owners.push(*owner);
                        false
                    }
                    _ => true,
                });
            }
        }
        owners
    }

    /// Ends the messages of a member that have not arrived completely, and forgets its messages that were only
    /// announced. Called when nothing more arrives from this member. Returns the receives that waited for these
    /// messages.
    pub(in crate::protocol) fn cut_off(&mut self, from: Rank) -> Vec<PostedReceive> {
        self.peer(from).landing = None;
        let cut = self
            .landings
            .keys(|landing| landing.from == from && landing.received < landing.total);
        let landings = &self.landings;
        for context in self.contexts.values_mut() {
            for matching in &mut context.matching {
                matching.retain(from, |kept| match kept {
                    KeptMessage::Announced { .. } => false,
                    KeptMessage::Landing(key) => landings
                        .get(*key)
                        .is_some_and(|landing| landing.received == landing.total),
                    KeptMessage::Own { .. } | KeptMessage::Stored { .. } => true,
                });
            }
        }
        let mut asked = Vec::new();
        for key in cut {
            match self.landings.remove(key).map(|landing| (landing.total, landing.target)) {
                Some((_, LandingTarget::Posted(posted))) => asked.push(posted),
                Some((
                    total,
                    LandingTarget::Kept {
                        is_early,
                        asked: waiting,
                        ..
                    },
                )) => {
                    if is_early {
                        self.early_bytes -= total;
                    }
                    asked.extend(waiting);
                }
                _ => {}
            }
        }
        asked
    }
}
