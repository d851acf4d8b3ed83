//! What comes over one lane: frames, and bodies straight into the memory that they are for.

use crate::link::Sink;
use crate::memory::Piece;
use crate::schedule::Rank;
use hotlease_fabric::lane::{FarBell, INLINE_BYTES, Message, Reader};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::Frame;

/// After so many lines it is the turn of the other lanes.
const TURN_LINES: u32 = 64;
/// So many turns empty a lane: each takes a line at least.
const LAST_TURNS: u32 = 256;

/// A body that comes.
struct Coming {
    /// Nowhere, if nobody wants it.
    into: Option<Piece>,
    at: u64,
    total: u64,
}

pub(super) struct Inbound {
    lane: Reader,
    coming: Option<Coming>,
    /// Until somebody has said where its body goes.
    held: Option<(Frame, Message)>,
    /// Nobody has time to say that any more.
    is_last: bool,
}

impl Inbound {
    pub(super) fn new(lane: Reader) -> Self {
        Self {
            lane,
            coming: None,
            held: None,
            is_last: false,
        }
    }

    /// As much as a lane holds: its writer is gone, or breaks the protocol.
    pub(super) fn read_rest(&mut self, from: Rank, sink: &mut dyn Sink) {
        self.is_last = true;
        (0..LAST_TURNS).all(|_| self.read(from, sink, None) == Ok(true));
    }

    /// Reads until there is no more, or others should have their turn; whether there was anything. Behind a body that came in pieces the
    /// turn is over: whoever waited for it may say where the next one goes. Rings the bell of a writer that waits for room.
    pub(super) fn read(
        &mut self,
        from: Rank,
        sink: &mut dyn Sink,
        writer: Option<&FarBell>,
    ) -> Result<bool, Loss> {
        for turn in 0..TURN_LINES {
            let is_over = if let Some((frame, line)) = self.held.take() {
                self.first(frame, line, from, sink)?
            } else {
                let Some(line) = self.lane.next_line() else {
                    return Ok(turn > 0);
                };
                match self.coming.take() {
                    Some(coming) => self.piece(coming, line.next_piece(), from, sink)?,
                    None => {
                        let frame = Frame::decode(&line.head()).map_err(|_| Loss::Protocol)?;
                        if matches!(frame, Frame::Eager { .. } | Frame::Data { .. }) {
                            self.first(frame, line, from, sink)?
                        } else {
                            sink.frame(from, frame)?;
                            false
                        }
                    }
                }
            };
            if self.held.is_some() {
                // It is not released before it is taken.
                return Ok(true);
            }
            if self.lane.release()
                && let Some(writer) = writer
            {
                writer.ring();
            }
            if is_over {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// The line of a frame that has a body; whether the turn is over.
    #[inline]
    fn first(&mut self, frame: Frame, line: Message, from: Rank, sink: &mut dyn Sink) -> Result<bool, Loss> {
        let (total, piece) = (frame.body_bytes(), line.first_piece());
        if total <= INLINE_BYTES as u64 {
            let inline = line.inline();
            let mut copy = |into: &mut [u8]| into.copy_from_slice(&inline[..into.len()]);
            return sink.whole(from, frame, &mut copy).map(|()| false);
        }
        if piece == total && total <= self.lane.capacity() as u64 {
            let mut is_taken = false;
            let lane = &mut self.lane;
            sink.whole(from, frame, &mut |into| {
                lane.take(into);
                is_taken = true;
            })?;
            if !is_taken {
                self.lane.skip(total as usize);
            }
            return Ok(false);
        }
        if !self.is_last && sink.holds(from, &frame) {
            self.held = Some((frame, line));
            return Ok(true);
        }
        let into = sink.frame(from, frame)?;
        let coming = Coming { into, at: 0, total };
        self.piece(coming, piece, from, sink)
    }

    /// Whether the turn is over.
    fn piece(
        &mut self,
        mut coming: Coming,
        bytes: u64,
        from: Rank,
        sink: &mut dyn Sink,
    ) -> Result<bool, Loss> {
        let longest = (coming.total - coming.at).min(self.lane.capacity() as u64);
        if !(1..=longest).contains(&bytes) {
            return Err(Loss::Protocol);
        }
        let (at, bytes) = (coming.at as usize, bytes as usize);
        let taken = coming
            .into
            .as_ref()
            .and_then(|into| into.part(at..at + bytes).write(|body| self.lane.take(body)));
        if taken.is_none() {
            self.lane.skip(bytes);
        }
        coming.at += bytes as u64;
        let is_over = coming.at == coming.total;
        if is_over {
            let total = coming.total;
            // The memory may be given away now.
            drop(coming);
            sink.body(from, total);
        } else {
            self.coming = Some(coming);
        }
        Ok(is_over)
    }
}
