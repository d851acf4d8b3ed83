//! Frames that members send over their connection to set up libfabric: addresses, and confirmations of them.

use crate::link::Sink;
use crate::memory::{Piece, TransferMemory};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::BTreeMap;

/// Frame that sets up libfabric between two members.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SetUpFrame {
    /// Address for messages to the sender of this frame, not decoded yet.
    Inbox(Vec<u8>),
    /// The sender of this frame has this member's address.
    Switch,
}

/// Sink that accepts [`SetUpFrame`]s, and refuses all other frames.
#[derive(Default)]
pub(super) struct SetUpSink {
    coming: BTreeMap<Rank, TransferMemory>,
    said: Vec<(Rank, SetUpFrame)>,
}

impl SetUpSink {
    /// Takes the frames that have arrived.
    pub(super) fn take(&mut self) -> Vec<(Rank, SetUpFrame)> {
        std::mem::take(&mut self.said)
    }
}

impl Sink for SetUpSink {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        match frame {
            // `MemberFrame` limits the length to `Inbox::BYTES_MAX`.
            MemberFrame::Inbox { length } => {
                let memory = TransferMemory::zeroed(length as usize);
                let into = memory.whole();
                self.coming.insert(from, memory);
                Ok(Some(into))
            }
            MemberFrame::Switch => {
                self.said.push((from, SetUpFrame::Switch));
                Ok(None)
            }
            _ => Err(Loss::Protocol),
        }
    }

    fn body(&mut self, from: Rank, _bytes: u64) {
        if let Some(memory) = self.coming.remove(&from) {
            self.said.push((from, SetUpFrame::Inbox(memory.into_bytes())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::comm::frame::{MessageAddress, MessageClass};

    #[test]
    fn nothing_else_is_said_on_a_connection() {
        let mut words = SetUpSink::default();
        let inbox = MemberFrame::Inbox { length: 3 };
        words
            .whole(2, inbox, &mut |into| {
                into.copy_from_slice(b"abc");
                Ok(())
            })
            .expect("a word");
        words.frame(1, MemberFrame::Switch).expect("another");
        let said = vec![(2, SetUpFrame::Inbox(b"abc".to_vec())), (1, SetUpFrame::Switch)];
        assert_eq!(words.take(), said);
        let to = MessageAddress {
            class: MessageClass::Message,
            context: 0,
            tag: 0,
        };
        for frame in [
            MemberFrame::Alive,
            MemberFrame::Goodbye,
            MemberFrame::Eager { to, length: 1 },
        ] {
            assert_eq!(words.frame(1, frame).err(), Some(Loss::Protocol), "{frame:?}");
        }
        assert_eq!(words.take(), []);
    }
}
