//! Send queue of one member: frames and bodies for which the provider has no room yet.

use crate::arena::Key;
use crate::memory::Piece;
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::VecDeque;

/// Error: the memory of a body was taken back before all of the body was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryTakenBack {
    pub(super) send: Key,
}

enum OfiBody {
    Copied(Vec<u8>),
    Lent { piece: Piece, send: Key },
}

struct OfiSendItem {
    /// `None` once the frame was sent.
    frame: Option<MemberFrame>,
    /// Bytes of the body that were sent.
    at: usize,
    body: OfiBody,
}

#[derive(Default)]
pub(super) struct OfiSendQueue {
    items: VecDeque<OfiSendItem>,
}

impl OfiSendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues a frame, unless it was sent already, and a copy of these bytes.
    pub(super) fn keep(&mut self, frame: Option<&MemberFrame>, bytes: &[u8]) {
        self.items.push_back(OfiSendItem {
            frame: frame.copied(),
            at: 0,
            body: OfiBody::Copied(bytes.to_vec()),
        });
    }

    /// Queues a frame, and the memory of its body.
    pub(super) fn push(&mut self, frame: &MemberFrame, piece: Piece, send: Key) {
        self.items.push_back(OfiSendItem {
            frame: Some(*frame),
            at: 0,
            body: OfiBody::Lent { piece, send },
        });
    }

    /// Fills a message with items of the queue; returns the length that was filled. `content` must be at least as long
    /// as a frame. The numbers of bodies that are then sent completely are added to `sent`.
    pub(super) fn fill(
        &mut self,
        content: &mut [u8],
        sent: &mut VecDeque<Key>,
    ) -> (usize, Result<(), MemoryTakenBack>) {
        let mut filled = 0;
        while let Some(OfiSendItem { frame, at, body }) = self.items.front_mut() {
            if let Some(head) = frame {
                let Some(room) = content.get_mut(filled..filled + MemberFrame::BYTES) else {
                    break;
                };
                room.copy_from_slice(&head.encode());
                filled += MemberFrame::BYTES;
                *frame = None;
            }
            let room = &mut content[filled..];
            let mut copy = |bytes: &[u8]| {
                let length = room.len().min(bytes.len());
                room[..length].copy_from_slice(&bytes[..length]);
                length
            };
            let (copied, total) = match body {
                OfiBody::Copied(bytes) => (copy(&bytes[*at..]), bytes.len()),
                OfiBody::Lent { piece, send } => {
                    let left = piece.part(*at..piece.len());
                    match left.read(copy) {
                        Some(copied) => (copied, piece.len()),
                        None => return (filled, Err(MemoryTakenBack { send: *send })),
                    }
                }
            };
            filled += copied;
            *at += copied;
            if *at < total {
                break;
            }
            if let Some(OfiSendItem {
                body: OfiBody::Lent { send, .. },
                ..
            }) = self.items.pop_front()
            {
                sent.push_back(send);
            }
        }
        (filled, Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbound::OfiReceiver;
    use super::*;
    use crate::arena::Arena;
    use crate::link::Sink;
    use crate::memory::TransferMemory;
    use hotlease_collectives::Rank;
    use hotlease_wire::comm::Loss;
    use hotlease_wire::comm::frame::{MessageAddress, MessageClass};

    /// Sink that stores what arrives.
    #[derive(Default)]
    struct Kept {
        frames: Vec<MemberFrame>,
        memory: Vec<TransferMemory>,
        ended: usize,
    }

    impl Sink for Kept {
        fn frame(&mut self, _: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
            self.frames.push(frame);
            let memory = TransferMemory::zeroed(frame.body_bytes() as usize);
            let into = memory.whole();
            self.memory.push(memory);
            Ok(frame.has_body().then_some(into))
        }

        fn body(&mut self, _: Rank, _: u64) {
            self.ended += 1;
        }
    }

    const TO: MessageAddress = MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag: 1,
    };

    #[test]
    fn frames_and_bodies_come_whole_through_messages_of_any_length() {
        let mut slots = Arena::new();
        for longest in [32, 33, 63, 64, 100, 1000, 70_000] {
            let (mut outbound, mut sent) = (OfiSendQueue::default(), VecDeque::new());
            let (mut inbound, mut kept) = (OfiReceiver::default(), Kept::default());
            let mut expected = Vec::new();
            for length in [0, 1, 31, 32, 33, 500, 4000] {
                let body: Vec<u8> = (0..length as u32).map(|at| (at % 251) as u8).collect();
                outbound.keep(Some(&MemberFrame::Alive), &[]);
                let eager = MemberFrame::Eager {
                    to: TO,
                    length: length as u64,
                };
                outbound.keep(Some(&eager), &body);
                expected.extend([(MemberFrame::Alive, Vec::new()), (eager, body.clone())]);
                if length > 0 {
                    let data = MemberFrame::Data {
                        landing: 1,
                        length: length as u64,
                    };
                    outbound.push(&data, TransferMemory::of(body.clone()).whole(), slots.insert(()));
                    expected.push((data, body));
                }
            }
            while !outbound.is_empty() {
                let mut content = vec![0; longest];
                let (filled, outcome) = outbound.fill(&mut content, &mut sent);
                assert_eq!(outcome, Ok(()));
                assert!(filled > 0, "messages of {longest} bytes go on");
                inbound.message(3, &content[..filled], &mut kept).expect("frames");
            }
            assert_eq!(sent.len(), 6, "bodies that are gone");
            assert_eq!(kept.ended, 13, "bodies that have come");
            let came = kept.memory.into_iter().map(TransferMemory::into_bytes);
            let came: Vec<_> = kept.frames.into_iter().zip(came).collect();
            assert_eq!(came, expected, "in messages of {longest} bytes");
        }
    }

    #[test]
    fn a_body_whose_memory_was_taken_back_is_told() {
        let (mut outbound, mut sent) = (OfiSendQueue::default(), VecDeque::new());
        let send = Arena::new().insert(());
        let mut bytes = [7; 64];
        let piece = hotlease_fabric::loan::lend_mut(&mut bytes, |lent| TransferMemory::LentMut(lent.clone()).whole());
        outbound.push(&MemberFrame::Data { landing: 1, length: 64 }, piece, send);
        let (_, outcome) = outbound.fill(&mut [0; 100], &mut sent);
        assert_eq!((outcome, sent.len()), (Err(MemoryTakenBack { send }), 0));
    }

    #[test]
    fn a_part_of_a_frame_is_none() {
        let mut kept = Kept::default();
        let alive = MemberFrame::Alive.encode();
        let cut = OfiReceiver::default().message(0, &alive[..31], &mut kept);
        assert_eq!(cut, Err(Loss::Protocol));
        let behind = OfiReceiver::default().message(0, &[&alive[..], &[1]].concat(), &mut kept);
        assert_eq!(behind, Err(Loss::Protocol));
        let nonsense = OfiReceiver::default().message(0, &[0xff; 32], &mut kept);
        assert_eq!(nonsense, Err(Loss::Protocol));
    }
}
