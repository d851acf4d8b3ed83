//! Internal registered memory for inputs and outputs that are larger than a ring entry.

use crate::Error;
use crate::buffer::Buffer;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Size in bytes of the smallest piece; each larger size class doubles the size.
const PIECE_BYTES_MIN: usize = 64 * 1024;
/// Largest number of idle pieces that are kept.
const IDLE_PIECES_MAX: usize = 32;
/// Largest number of bytes of all idle pieces together.
const IDLE_BYTES_MAX: usize = 256 << 20;

/// Pieces of registered memory, kept for the next use because registering is slow.
#[derive(Default)]
pub(crate) struct Staging {
    idle: Mutex<Vec<Buffer<u8>>>,
}

impl Staging {
    /// A piece of at least this many bytes; its contents are arbitrary.
    pub(crate) fn piece(self: &Arc<Self>, bytes: usize) -> Result<StagedPiece, Error> {
        let class = bytes
            .checked_next_power_of_two()
            .map_or(bytes, |class| class.max(PIECE_BYTES_MIN));
        let reused = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // The newest piece of the class: its pages are most likely in a cache.
            let found = idle.iter().rposition(|buffer| buffer.len() == class);
            found.map(|index| idle.remove(index))
        };
        let buffer = match reused {
            Some(buffer) => buffer,
            None => Buffer::new(class)?,
        };
        Ok(StagedPiece {
            buffer: Some(buffer),
            staging: self.clone(),
        })
    }
}

/// A piece in use; it returns to the pool when dropped.
pub(crate) struct StagedPiece {
    /// `Some` until the piece is dropped or discarded.
    buffer: Option<Buffer<u8>>,
    staging: Arc<Staging>,
}

impl StagedPiece {
    /// Drops the piece instead of returning it to the pool, because a worker may still write to it.
    pub(crate) fn discard(mut self) {
        self.buffer = None;
    }
}

impl Deref for StagedPiece {
    type Target = Buffer<u8>;

    fn deref(&self) -> &Buffer<u8> {
        self.buffer.as_ref().expect("there until dropped")
    }
}

impl DerefMut for StagedPiece {
    fn deref_mut(&mut self) -> &mut Buffer<u8> {
        self.buffer.as_mut().expect("there until dropped")
    }
}

impl Drop for StagedPiece {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut idle = self.staging.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() > IDLE_BYTES_MAX {
            return;
        }
        idle.push(buffer);
        // Drops the oldest pieces: those that were used most recently are the likeliest to be requested next.
        let mut bytes: usize = idle.iter().map(|buffer| buffer.len()).sum();
        let dropped = idle.iter().take_while(|oldest| {
            let over = bytes > IDLE_BYTES_MAX;
            bytes -= if over { oldest.len() } else { 0 };
            over
        });
        let dropped = dropped.count().max(idle.len().saturating_sub(IDLE_PIECES_MAX));
        idle.drain(..dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_used_again_and_the_idle_ones_are_bounded() {
        let staging = Arc::new(Staging::default());
        let first = staging.piece(100_000).unwrap();
        let region = Arc::as_ptr(first.region());
        assert_eq!(first.len(), 131_072);
        drop(first);
        let again = staging.piece(70_000).unwrap();
        assert_eq!(
            Arc::as_ptr(again.region()),
            region,
            "the same memory, registered already"
        );
        let pieces: Vec<StagedPiece> = (0..IDLE_PIECES_MAX + 5).map(|_| staging.piece(1).unwrap()).collect();
        drop(pieces);
        assert_eq!(staging.idle.lock().unwrap().len(), IDLE_PIECES_MAX);
        drop(staging.piece(IDLE_BYTES_MAX + 1).unwrap());
        assert_eq!(staging.idle.lock().unwrap().len(), IDLE_PIECES_MAX, "too large to keep");
        drop(staging.piece(IDLE_BYTES_MAX).unwrap());
        assert_eq!(
            staging.idle.lock().unwrap().len(),
            1,
            "the newest stays, the oldest make room"
        );
        staging.piece(IDLE_BYTES_MAX).unwrap().discard();
        assert_eq!(staging.idle.lock().unwrap().len(), 0, "discarded, not given back");
    }
}
