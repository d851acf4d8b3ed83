//! Send queue of one lane: what there is no room for waits here.

use crate::link::Body;
use crate::memory::Piece;
use crate::slots::Key;
use hotlease_fabric::lane::{Broken, Writer};
use hotlease_wire::comm::frame::Frame;
use std::collections::VecDeque;

/// Reason why nothing more can be written to a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its reader has broken the protocol.
    Broken,
    /// The memory of a body was taken back before all of it was written.
    NoMemory {
        /// Number of that body.
        send: Key,
    },
}

impl From<Broken> for Stop {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

enum Bytes {
    Copied(Vec<u8>),
    Lent { piece: Piece, send: Key },
}

struct Item {
    /// None once it was written.
    frame: Option<[u8; Frame::BYTES]>,
    /// Bytes of the body that were written.
    at: usize,
    body: Bytes,
}

pub(super) struct Outbound {
    lane: Writer,
    items: VecDeque<Item>,
}

impl Outbound {
    pub(super) fn new(mut lane: Writer) -> Self {
        lane.was_opened();
        Self {
            lane,
            items: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Writes a frame and its body after what waits already; returns whether anything was written.
    pub(super) fn send(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
        sent: &mut VecDeque<Key>,
    ) -> Result<bool, Stop> {
        let is_first = self.items.is_empty();
        let mut frame = Some(frame.encode());
        match body {
            Body::Now(bytes) => {
                let at = match is_first {
                    true => write(&mut self.lane, &mut frame, bytes, 0)?,
                    false => 0,
                };
                let has_gone = frame.is_none();
                if !has_gone || at < bytes.len() {
                    self.items.push_back(Item {
                        frame,
                        at: 0,
                        body: Bytes::Copied(bytes[at..].to_vec()),
                    });
                }
                Ok(has_gone)
            }
            Body::Later { piece, send } => {
                self.items.push_back(Item {
                    frame,
                    at: 0,
                    body: Bytes::Lent { piece, send },
                });
                // Written when there is room for the items before it.
                if is_first { self.flush(sent) } else { Ok(false) }
            }
        }
    }

    /// Writes what there is room for; returns whether anything was written.
    pub(super) fn flush(&mut self, sent: &mut VecDeque<Key>) -> Result<bool, Stop> {
        let mut any = false;
        while let Some(Item { frame, at, body }) = self.items.front_mut() {
            let (was, had_frame) = (*at, frame.is_some());
            let is_all = match body {
                Bytes::Copied(bytes) => {
                    *at += write(&mut self.lane, frame, bytes, *at)?;
                    frame.is_none() && *at == bytes.len()
                }
                Bytes::Lent { piece, send } => {
                    let written = piece.read(|bytes| write(&mut self.lane, frame, bytes, *at));
                    *at += written.ok_or(Stop::NoMemory { send: *send })??;
                    frame.is_none() && *at == piece.len()
                }
            };
            any |= *at > was || had_frame && frame.is_none();
            if is_all {
                if let Some(Item {
                    body: Bytes::Lent { send, .. },
                    ..
                }) = self.items.pop_front()
                {
                    sent.push_back(send);
                }
            } else if !self.lane.stall()? {
                break;
            }
        }
        Ok(any)
    }
}

/// Writes the frame, unless it was written already, and what there is room for of its body; returns how many bytes of
/// the body.
fn write(
    lane: &mut Writer,
    frame: &mut Option<[u8; Frame::BYTES]>,
    body: &[u8],
    at: usize,
) -> Result<usize, Broken> {
    let mut gone = 0;
    if let Some(head) = frame {
        let Some(first) = lane.begin(head, body)? else {
            return Ok(0);
        };
        *frame = None;
        gone = first;
    }
    Ok(gone + lane.go_on(&body[at + gone..])?)
}
