//! Frames by which members that use libfabric talk on their connection.

use crate::link::Sink;
use crate::memory::{Piece, TransferMemory};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::BTreeMap;

/// One such frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SetUpFrame {
    /// Address at which the member is to be sent messages, as it came.
    Inbox(Vec<u8>),
    /// The member knows this member's address.
    Switch,
}

/// Sink that accepts such frames, and no others.
#[derive(Default)]
pub(super) struct SetUpSink {
    coming: BTreeMap<Rank, TransferMemory>,
    said: Vec<(Rank, SetUpFrame)>,
}

impl SetUpSink {
    /// Takes the words that have come.
    pub(super) fn take(&mut self) -> Vec<(Rank, SetUpFrame)> {
        std::mem::take(&mut self.said)
    }
}

impl Sink for SetUpSink {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        match frame {
            // The frame bounds its length.
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
            .whole(2, inbox, &mut |into| into.copy_from_slice(b"abc"))
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
