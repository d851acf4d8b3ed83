//! Send queue of one member: what the provider has no room for waits here.

use crate::memory::Piece;
use crate::slots::Key;
use hotlease_wire::comm::frame::Frame;
use std::collections::VecDeque;

/// The memory of a body was taken back before all of it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoMemory {
    pub(super) send: Key,
}

enum Bytes {
    Copied(Vec<u8>),
    Lent { piece: Piece, send: Key },
}

struct Item {
    /// None once it was sent.
    frame: Option<Frame>,
    /// Bytes of the body that were sent.
    at: usize,
    body: Bytes,
}

#[derive(Default)]
pub(super) struct Outbound {
    items: VecDeque<Item>,
}

impl Outbound {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues a frame, unless it was sent already, and a copy of these bytes.
    pub(super) fn keep(&mut self, frame: Option<&Frame>, bytes: &[u8]) {
        self.items.push_back(Item {
            frame: frame.copied(),
            at: 0,
            body: Bytes::Copied(bytes.to_vec()),
        });
    }

    /// Queues a frame, and the memory of its body.
    pub(super) fn push(&mut self, frame: &Frame, piece: Piece, send: Key) {
        self.items.push_back(Item {
            frame: Some(*frame),
            at: 0,
            body: Bytes::Lent { piece, send },
        });
    }

    /// Fills a message, which is at least a frame long; returns how many bytes. Numbers of bodies that are gone are
    /// added to `sent`.
    pub(super) fn fill(
        &mut self,
        content: &mut [u8],
        sent: &mut VecDeque<Key>,
    ) -> (usize, Result<(), NoMemory>) {
        let mut filled = 0;
        while let Some(Item { frame, at, body }) = self.items.front_mut() {
            if let Some(head) = frame {
                let Some(room) = content.get_mut(filled..filled + Frame::BYTES) else {
                    break;
                };
                room.copy_from_slice(&head.encode());
                filled += Frame::BYTES;
                *frame = None;
            }
            let room = &mut content[filled..];
            let mut copy = |bytes: &[u8]| {
                let length = room.len().min(bytes.len());
                room[..length].copy_from_slice(&bytes[..length]);
                length
            };
            let (copied, total) = match body {
                Bytes::Copied(bytes) => (copy(&bytes[*at..]), bytes.len()),
                Bytes::Lent { piece, send } => {
                    let left = piece.part(*at..piece.len());
                    match left.read(copy) {
                        Some(copied) => (copied, piece.len()),
                        None => return (filled, Err(NoMemory { send: *send })),
                    }
                }
            };
            filled += copied;
            *at += copied;
            if *at < total {
                break;
            }
            if let Some(Item {
                body: Bytes::Lent { send, .. },
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
    use super::super::inbound::Inbound;
    use super::*;
    use crate::link::Sink;
    use crate::memory::Memory;
    use crate::schedule::Rank;
    use crate::slots::Slots;
    use hotlease_wire::comm::Loss;
    use hotlease_wire::comm::frame::{Address, Class};

    /// Sink that keeps what comes.
    #[derive(Default)]
    struct Kept {
        frames: Vec<Frame>,
        memory: Vec<Memory>,
        ended: usize,
    }

    impl Sink for Kept {
        fn frame(&mut self, _: Rank, frame: Frame) -> Result<Option<Piece>, Loss> {
            self.frames.push(frame);
            let memory = Memory::zeroed(frame.body_bytes() as usize);
            let into = memory.whole();
            self.memory.push(memory);
            Ok(frame.has_body().then_some(into))
        }

        fn body(&mut self, _: Rank, _: u64) {
            self.ended += 1;
        }
    }

    const TO: Address = Address {
        class: Class::Message,
        context: 0,
        tag: 1,
    };

    #[test]
    fn frames_and_bodies_come_whole_through_messages_of_any_length() {
        let mut slots = Slots::new();
        for longest in [32, 33, 63, 64, 100, 1000, 70_000] {
            let (mut outbound, mut sent) = (Outbound::default(), VecDeque::new());
            let (mut inbound, mut kept) = (Inbound::default(), Kept::default());
            let mut expected = Vec::new();
            for length in [0, 1, 31, 32, 33, 500, 4000] {
                let body: Vec<u8> = (0..length as u32).map(|at| (at % 251) as u8).collect();
                outbound.keep(Some(&Frame::Alive), &[]);
                let eager = Frame::Eager {
                    to: TO,
                    length: length as u64,
                };
                outbound.keep(Some(&eager), &body);
                expected.extend([(Frame::Alive, Vec::new()), (eager, body.clone())]);
                if length > 0 {
                    let data = Frame::Data {
                        landing: 1,
                        length: length as u64,
                    };
                    outbound.push(&data, Memory::of(body.clone()).whole(), slots.insert(()));
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
            let came = kept.memory.into_iter().map(Memory::into_bytes);
            let came: Vec<_> = kept.frames.into_iter().zip(came).collect();
            assert_eq!(came, expected, "in messages of {longest} bytes");
        }
    }

    #[test]
    fn a_body_whose_memory_was_taken_back_is_told() {
        let (mut outbound, mut sent) = (Outbound::default(), VecDeque::new());
        let send = Slots::new().insert(());
        let mut bytes = [7; 64];
        let piece = hotlease_fabric::lent::lend_mut(&mut bytes, |lent| Memory::LentMut(lent.clone()).whole());
        outbound.push(
            &Frame::Data {
                landing: 1,
                length: 64,
            },
            piece,
            send,
        );
        let (_, outcome) = outbound.fill(&mut [0; 100], &mut sent);
        assert_eq!((outcome, sent.len()), (Err(NoMemory { send }), 0));
    }

    #[test]
    fn a_part_of_a_frame_is_none() {
        let mut kept = Kept::default();
        let alive = Frame::Alive.encode();
        let cut = Inbound::default().message(0, &alive[..31], &mut kept);
        assert_eq!(cut, Err(Loss::Protocol));
        let behind = Inbound::default().message(0, &[&alive[..], &[1]].concat(), &mut kept);
        assert_eq!(behind, Err(Loss::Protocol));
        let nonsense = Inbound::default().message(0, &[0xff; 32], &mut kept);
        assert_eq!(nonsense, Err(Loss::Protocol));
    }
}
