//! Frames about lanes among the frames that arrive over connections.

use super::{InPath, NearMember};
use crate::link::Sink;
use crate::memory::Piece;
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;

/// Sink for connections: takes the frames about lanes, and passes on everything else.
pub(super) struct LaneFrameFilter<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) near: &'a [NearMember],
    pub(super) place_of: &'a [Option<usize>],
    pub(super) words: &'a mut Vec<(Rank, MemberFrame)>,
}

impl Sink for LaneFrameFilter<'_> {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        let near = self.place_of[from as usize].map(|place| &self.near[place]);
        // After `Switch` a member sends over its lane only.
        let has_switched = near.is_some_and(|near| matches!(near.inbound, InPath::Lane(_)))
            || self.words.contains(&(from, MemberFrame::Switch));
        match frame {
            MemberFrame::Accept { .. } | MemberFrame::Decline if near.is_some() => {}
            _ if has_switched => return Err(Loss::Protocol),
            MemberFrame::Offer { .. } | MemberFrame::Switch if near.is_some() => {}
            _ => return self.sink.frame(from, frame),
        }
        self.words.push((from, frame));
        Ok(None)
    }

    fn hold(&mut self, from: Rank, frame: &MemberFrame) -> bool {
        self.sink.hold(from, frame)
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        self.sink.body(from, bytes);
    }

    fn is_satisfied(&self) -> bool {
        self.sink.is_satisfied()
    }
}
