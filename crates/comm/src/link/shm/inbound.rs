//! Receive side of one lane: takes in frames, and copies bodies straight into their memory.

use crate::link::Sink;
use crate::memory::Piece;
use hotlease_collectives::Rank;
use hotlease_fabric::lane::{BodyPlace, BodySource, INLINE_BYTES, LaneLine, LaneReader, PeerBell};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;

/// Number of lines after which the other lanes are read.
pub(super) const TURN_LINES: u32 = 64;
/// Number of turns that empty a lane: each turn reads at least one line.
const LAST_TURNS: u32 = 256;

/// Body that is being received.
struct LanePartialBody {
    /// `None` if the body is discarded.
    into: Option<Piece>,
    at: u64,
    total: u64,
}

pub(super) struct LaneReceiver {
    lane: LaneReader,
    coming: Option<LanePartialBody>,
    /// Frame that is held back until a thread has provided memory for its body.
    held: Option<(MemberFrame, LaneLine)>,
    /// Whether this is the last read, in which no frame is held back.
    is_last: bool,
}

impl LaneReceiver {
    pub(super) fn new(lane: LaneReader) -> Self {
        Self {
            lane,
            coming: None,
            held: None,
            is_last: false,
        }
    }

    /// Reads everything in the lane. Stops where the writer broke the protocol.
    pub(super) fn read_rest(&mut self, from: Rank, sink: &mut dyn Sink) {
        self.is_last = true;
        (0..LAST_TURNS).all(|_| self.read(from, sink, None, TURN_LINES) == Ok(true));
    }

    /// Whether there is anything to read.
    pub(super) fn has_line(&self) -> bool {
        self.held.is_some() || self.lane.has_line()
    }

    /// Reads until nothing is left or the turn is over; returns whether anything was read. The turn also ends when the
    /// sink is satisfied, and after a body that arrived in pieces: the thread that waited for this body may then
    /// provide memory for the next one. Rings the doorbell of a writer that waits for room. A turn has at most `lines`.
    pub(super) fn read(
        &mut self,
        from: Rank,
        sink: &mut dyn Sink,
        writer: Option<&PeerBell>,
        lines: u32,
    ) -> Result<bool, Loss> {
        for turn in 0..lines {
            let is_over = if let Some((frame, line)) = self.held.take() {
                self.first(frame, line, from, sink, writer)?
            } else {
                let Some(line) = self.lane.next_line() else {
                    return Ok(turn > 0);
                };
                match self.coming.take() {
                    Some(coming) => self.piece(coming, line.next_piece(), from, sink)?,
                    None => {
                        let frame = MemberFrame::decode(&line.head()).map_err(|_| Loss::Protocol)?;
                        if matches!(frame, MemberFrame::Eager { .. } | MemberFrame::Data { .. }) {
                            self.first(frame, line, from, sink, writer)?
                        } else {
                            sink.frame(from, frame)?;
                            false
                        }
                    }
                }
            };
            if self.held.is_some() {
                // The line is released when the sink takes its frame.
                return Ok(true);
            }
            if self.lane.release()
                && let Some(writer) = writer
            {
                writer.ring();
            }
            if is_over || sink.is_satisfied() {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Takes the line of a frame that has a body; returns whether the turn is over.
    #[inline]
    fn first(
        &mut self,
        frame: MemberFrame,
        line: LaneLine,
        from: Rank,
        sink: &mut dyn Sink,
        writer: Option<&PeerBell>,
    ) -> Result<bool, Loss> {
        let (total, piece) = (frame.body_bytes(), line.first_piece());
        if total <= INLINE_BYTES as u64 {
            let inline = line.inline();
            let mut copy = |into: &mut [u8]| {
                into.copy_from_slice(&inline[..into.len()]);
                Ok(())
            };
            return sink.whole(from, frame, &mut copy).map(|()| false);
        }
        if piece == total && total <= self.lane.capacity() as u64 {
            return self.whole(frame, from, sink).map(|()| false);
        }
        if let Some(source) = line.source() {
            return self.exposed(source, frame, from, sink, writer).map(|()| true);
        }
        if !self.is_last && sink.hold(from, &frame) {
            self.held = Some((frame, line));
            return Ok(true);
        }
        let into = sink.frame(from, frame)?;
        let coming = LanePartialBody { into, at: 0, total };
        self.piece(coming, piece, from, sink)
    }

    /// Takes a frame whose body its writer has exposed.
    fn exposed(
        &mut self,
        source: BodySource,
        frame: MemberFrame,
        from: Rank,
        sink: &mut dyn Sink,
        writer: Option<&PeerBell>,
    ) -> Result<(), Loss> {
        let length = frame.body_bytes() as usize;
        if length > self.lane.capacity() {
            return Err(Loss::Protocol);
        }
        let lane = &mut self.lane;
        if lane.claim().map_err(|_| Loss::Protocol)? == BodyPlace::Source {
            // Mostly the member was killed. Other members find the same, by its connections.
            let mut copy = |into: &mut [u8]| lane.read_source(source, into).map_err(|_| Loss::Closed);
            sink.whole(from, frame, &mut copy)?;
            lane.finish(length);
            if let Some(writer) = writer {
                writer.ring();
            }
            return Ok(());
        }
        self.whole(frame, from, sink)
    }

    /// Takes a frame whose whole body is in the lane.
    #[inline]
    fn whole(&mut self, frame: MemberFrame, from: Rank, sink: &mut dyn Sink) -> Result<(), Loss> {
        let lane = &mut self.lane;
        let mut is_taken = false;
        sink.whole(from, frame, &mut |into| {
            lane.take(into);
            is_taken = true;
            Ok(())
        })?;
        if !is_taken {
            lane.skip(frame.body_bytes() as usize);
        }
        Ok(())
    }

    /// Takes a piece of a body; returns whether the turn is over.
    fn piece(
        &mut self,
        mut coming: LanePartialBody,
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
            // Dropped first, because the sink may hand the memory to the caller.
            drop(coming);
            sink.body(from, total);
        } else {
            self.coming = Some(coming);
        }
        Ok(is_over)
    }
}
