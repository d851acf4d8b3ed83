//! Send queue of one lane: frames and bodies for which the lane has no room yet, and bodies that the other member may
//! copy from their place.

use crate::arena::Key;
use crate::link::Body;
use crate::memory::Piece;
use hotlease_fabric::lane::{ExposedBody, LaneError, LaneWriter};
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Shortest body that is exposed: a shorter one is copied twice in the time of the system call that copies it once.
const EXPOSED_BYTES_MIN: usize = 16 * 1024;
/// Time after which a body that its reader has not begun to copy is copied into the lane: the reader computes, or waits
/// for this processor.
const LATE: Duration = Duration::from_micros(20);
/// Largest number of bodies that are copied into the lane, after a reader that was late, before the next is exposed.
const COPIES_MAX: u32 = 64;

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

/// Body that the reader may copy from its place.
struct ExposedSend {
    body: ExposedBody,
    piece: Piece,
    send: Key,
}

pub(super) struct LaneSendQueue {
    /// Dropped before the memory of the bodies that it exposes.
    lane: LaneWriter,
    exposed: VecDeque<ExposedSend>,
    /// Time since which the reader could have copied the first of them.
    exposed_since: Instant,
    items: VecDeque<LaneSendItem>,
    /// Number of bodies to copy before the next is exposed, now and after the next late reader.
    copies: u32,
    copies_next: u32,
}

impl LaneSendQueue {
    pub(super) fn new(mut lane: LaneWriter) -> Self {
        lane.close_descriptor();
        Self {
            lane,
            exposed: VecDeque::new(),
            exposed_since: Instant::now(),
            items: VecDeque::new(),
            copies: 0,
            copies_next: 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.exposed.is_empty()
    }

    /// Whether the other member may copy bodies from their place.
    pub(super) fn has_exposed(&self) -> bool {
        !self.exposed.is_empty()
    }

    /// Writes a frame and its body, after the items that wait already; returns whether anything was written.
    pub(super) fn send(
        &mut self,
        frame: &MemberFrame,
        body: Body<'_>,
        sent: &mut VecDeque<Key>,
        may_expose: bool,
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
                if is_first {
                    self.flush(sent, may_expose)
                } else {
                    Ok(false)
                }
            }
        }
    }

    /// Writes as much as there is room for; returns whether anything was written. If `may_expose`, the other member may
    /// copy bodies from their place.
    pub(super) fn flush(&mut self, sent: &mut VecDeque<Key>, may_expose: bool) -> Result<bool, LaneStop> {
        let mut any = false;
        while let Some(LaneSendItem { frame, at, body }) = self.items.front_mut() {
            let (was, had_frame) = (*at, frame.is_some());
            let is_all = match body {
                LaneBody::Copied(bytes) => {
                    *at += write(&mut self.lane, frame, bytes, *at)?;
                    frame.is_none() && *at == bytes.len()
                }
                LaneBody::Lent { piece, send } => {
                    if let Some(head) = frame
                        && may_expose
                        && self.copies == 0
                        && piece.len() >= EXPOSED_BYTES_MIN
                        && self.lane.may_expose(piece.len())
                        && let Some(source) = piece.expose(self.lane.key(), self.lane.key_address())
                        && self.lane.is_readable(source, piece.len())
                    {
                        if let Some(body) = self.lane.expose(head, source, piece.len())? {
                            let (piece, send) = (piece.clone(), *send);
                            if self.exposed.is_empty() {
                                self.exposed_since = Instant::now();
                            }
                            self.exposed.push_back(ExposedSend { body, piece, send });
                            self.items.pop_front();
                            any = true;
                            continue;
                        }
                        if !self.exposed.is_empty() {
                            // There is room when the reader has copied them.
                            break;
                        }
                    }
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
                    self.copies = self.copies.saturating_sub(1);
                    sent.push_back(send);
                }
            } else if !self.lane.announce_stall()? {
                break;
            }
        }
        Ok(any)
    }

    /// Notes which exposed bodies were copied, and copies those of a late reader into the lane; returns whether there
    /// were any. If `is_last`, this thread is about to sleep, so it waits for no reader.
    pub(super) fn settle_exposed(&mut self, sent: &mut VecDeque<Key>, is_last: bool) -> Result<bool, LaneStop> {
        let mut any = false;
        while let Some(first) = self.exposed.front() {
            if self.lane.is_copied(&first.body) {
                self.copies_next = 1;
                self.exposed_since = Instant::now();
            } else if is_last || self.exposed_since.elapsed() >= LATE {
                let withdrawn = first.piece.read(|bytes| self.lane.withdraw(&first.body, bytes));
                if !withdrawn.ok_or(LaneStop::NoMemory { send: first.send })? {
                    // The reader copies it now.
                    break;
                }
                self.copies = self.copies_next;
                self.copies_next = (2 * self.copies_next).min(COPIES_MAX);
            } else {
                break;
            }
            any = true;
            sent.extend(self.exposed.pop_front().map(|first| first.send));
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
