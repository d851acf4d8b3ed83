//! Receive side of one member: takes in frames, and writes bodies straight into their memory.

use crate::link::Sink;
use crate::memory::Piece;
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;

/// Body that continues in the next message.
struct OfiPartialBody {
    /// `None` if the body is discarded.
    into: Option<Piece>,
    at: usize,
    total: usize,
}

#[derive(Default)]
pub(super) struct OfiReceiver {
    coming: Option<OfiPartialBody>,
}

impl OfiReceiver {
    /// Takes in a message, which contains whole frames and pieces of bodies.
    pub(super) fn message(&mut self, from: Rank, content: &[u8], sink: &mut dyn Sink) -> Result<(), Loss> {
        let mut rest = content;
        while !rest.is_empty() {
            if let Some(coming) = &mut self.coming {
                let (piece, behind) = rest.split_at(rest.len().min(coming.total - coming.at));
                if let Some(into) = &coming.into {
                    let range = coming.at..coming.at + piece.len();
                    // No effect if the memory was taken back.
                    into.part(range).write(|body| body.copy_from_slice(piece));
                }
                coming.at += piece.len();
                rest = behind;
                if coming.at < coming.total {
                    return Ok(());
                }
                let total = coming.total as u64;
                self.coming = None;
                sink.body(from, total);
                continue;
            }
            let (head, behind) = rest.split_first_chunk().ok_or(Loss::Protocol)?;
            let frame = MemberFrame::decode(head).map_err(|_| Loss::Protocol)?;
            rest = behind;
            if !frame.has_body() {
                sink.frame(from, frame)?;
                continue;
            }
            let total = frame.body_bytes() as usize;
            if let Some((body, behind)) = rest.split_at_checked(total) {
                sink.whole(from, frame, &mut |into| {
                    into.copy_from_slice(body);
                    Ok(())
                })?;
                rest = behind;
            } else {
                let into = sink.frame(from, frame)?;
                self.coming = Some(OfiPartialBody { into, at: 0, total });
            }
        }
        Ok(())
    }
}
