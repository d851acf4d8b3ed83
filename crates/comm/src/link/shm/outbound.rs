//! Send queue of one lane: frames and bodies for which the lane has no room yet.

use crate::arena::Key;
use crate::link::Body;
use crate::memory::Piece;
use hotlease_fabric::lane::{LaneError, LaneWriter};
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::VecDeque;

/// Reason why nothing more can be written to a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaneStop {
    /// The reader of the lane has broken the protocol.
    Broken,
    /// The memory of a body was taken back before all of the body was written.
    NoMemory {
        /// Number of that body.
        send: Key,
    },
}

impl From<LaneError> for LaneStop {
    fn from(_: LaneError) -> Self {
        Self::Broken
    }
}

enum LaneBody {
    Copied(Vec<u8>),
    Lent { piece: Piece, send: Key },
}

struct LaneSendItem {
    /// `None` once the frame was written.
    frame: Option<[u8; MemberFrame::BYTES]>,
    /// Bytes of the body that were written.
    at: usize,
    body: LaneBody,
}

pub(super) struct LaneSendQueue {
    lane: LaneWriter,
    items: VecDeque<LaneSendItem>,
}

impl LaneSendQueue {
    pub(super) fn new(mut lane: LaneWriter) -> Self {
        lane.close_descriptor();
        Self {
            lane,
            items: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Writes a frame and its body, after the items that wait already; returns whether anything was written.
    pub(super) fn send(
        &mut self,
        frame: &MemberFrame,
        body: Body<'_>,
        sent: &mut VecDeque<Key>,
    ) -> Result<bool, LaneStop> {
        let is_first = self.items.is_empty();
        let mut frame = Some(frame.encode());
        match body {
            Body::Borrowed(bytes) => {
                let at = match is_first {
                    true => write(&mut self.lane, &mut frame, bytes, 0)?,
                    false => 0,
                };
                let has_gone = frame.is_none();
                if !has_gone || at < bytes.len() {
                    self.items.push_back(LaneSendItem {
                        frame,
                        at: 0,
                        body: LaneBody::Copied(bytes[at..].to_vec()),
                    });
                }
                Ok(has_gone)
            }
            Body::Lent { piece, send } => {
                self.items.push_back(LaneSendItem {
                    frame,
                    at: 0,
                    body: LaneBody::Lent { piece, send },
                });
                // If other items wait, they are written before this item.
                if is_first { self.flush(sent) } else { Ok(false) }
            }
        }
    }

    /// Writes as much as there is room for; returns whether anything was written.
    pub(super) fn flush(&mut self, sent: &mut VecDeque<Key>) -> Result<bool, LaneStop> {
        let mut any = false;
        while let Some(LaneSendItem { frame, at, body }) = self.items.front_mut() {
            let (was, had_frame) = (*at, frame.is_some());
            let is_all = match body {
                LaneBody::Copied(bytes) => {
                    *at += write(&mut self.lane, frame, bytes, *at)?;
                    frame.is_none() && *at == bytes.len()
                }
                LaneBody::Lent { piece, send } => {
                    let written = piece.read(|bytes| write(&mut self.lane, frame, bytes, *at));
                    *at += written.ok_or(LaneStop::NoMemory { send: *send })??;
                    frame.is_none() && *at == piece.len()
                }
            };
            any |= *at > was || had_frame && frame.is_none();
            if is_all {
                if let Some(LaneSendItem {
                    body: LaneBody::Lent { send, .. },
                    ..
                }) = self.items.pop_front()
                {
                    sent.push_back(send);
                }
            } else if !self.lane.announce_stall()? {
                break;
            }
        }
        Ok(any)
    }
}

/// Writes the frame, unless it was written before, and as much of its body as there is room for; returns the number of
/// bytes of the body that were written.
fn write(
    lane: &mut LaneWriter,
    frame: &mut Option<[u8; MemberFrame::BYTES]>,
    body: &[u8],
    at: usize,
) -> Result<usize, LaneError> {
    let mut gone = 0;
    if let Some(head) = frame {
        let Some(first) = lane.begin(head, body)? else {
            return Ok(0);
        };
        *frame = None;
        gone = first;
    }
    Ok(gone + lane.continue_body(&body[at + gone..])?)
}
