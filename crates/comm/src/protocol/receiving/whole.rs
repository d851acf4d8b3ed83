//! Messages that arrive in one piece with their frame: they need no [`Landing`](super::Landing) if a receive waits.

use crate::error::Error;
use crate::link::CopyBody;
use crate::matching::{MessageEnvelope, Pattern};
use crate::protocol::{MessageStatus, Protocol};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageAddress};

impl Protocol {
    /// Handles a frame that has arrived with its body; `copy` copies the body to memory of its length.
    pub(crate) fn whole(&mut self, from: Rank, frame: MemberFrame, copy: CopyBody<'_>) -> Result<(), Loss> {
        let into = match frame {
            MemberFrame::Eager { to, length } => {
                let envelope = self.charge(from, &to, length)?;
                if let Some(posted) = self.taker_of(&to, envelope, length) {
                    // No effect if the memory was taken back.
                    if let Some(Err(loss)) = posted.into.part(0..length as usize).write(copy) {
                        // The member is lost, and this receive is not posted any more.
                        let during = posted.during;
                        let error = Error::MemberLost {
                            during,
                            rank: from,
                            loss,
                        };
                        self.complete(posted.owner, Err(error));
                        return Err(loss);
                    }
                    self.repay_credit(from, to.class, length);
                    let status = MessageStatus {
                        source: from,
                        tag: to.tag,
                        bytes: length,
                    };
                    self.complete(posted.owner, Ok(status));
                    return Ok(());
                }
                self.land(envelope, to, length, None)
            }
            _ => self.frame(from, frame)?,
        };
        into.and_then(|into| into.write(copy)).transpose()?;
        self.body(from, frame.body_bytes());
        Ok(())
    }

    /// Whether a message may go directly to a receive with this pattern that is not posted: the message matches the
    /// pattern, and neither a posted receive nor a kept message has precedence.
    pub(crate) fn is_direct(&self, from: Rank, to: &MessageAddress, pattern: Pattern) -> bool {
        let envelope = MessageEnvelope {
            source: from,
            tag: to.tag,
        };
        let of_context = self.contexts.get(&to.context);
        of_context.is_some_and(|of_context| {
            let matching = &of_context.matching[to.class as usize];
            pattern.is_match(envelope) && !matching.is_awaited(envelope) && matching.find(pattern).is_none()
        })
    }

    /// Returns whether a small message that has arrived completely may go directly ([`is_direct`](Self::is_direct)) to
    /// a receive that is not posted and has memory of `room` bytes. If so, the message counts as received.
    pub(crate) fn take_direct(
        &mut self,
        from: Rank,
        to: &MessageAddress,
        bytes: u64,
        pattern: Pattern,
        room: u64,
    ) -> Result<bool, Loss> {
        if bytes > room || !self.is_direct(from, to, pattern) {
            return Ok(false);
        }
        self.charge(from, to, bytes)?;
        self.repay_credit(from, to.class, bytes);
        Ok(true)
    }
}
