//! Layout of a remote memory over several blocks: stripes of equal size, in turn on each block.

use std::ops::Range;

/// Layout of a remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Size of the remote memory, bytes.
    pub size_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Size of a stripe, bytes.
    pub stripe_bytes: u64,
}

/// A part of a span that is contiguous in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The block.
    pub block: usize,
    /// First byte in the block.
    pub offset: u64,
    /// Bytes of the span.
    pub of_span: Range<usize>,
}

impl Layout {
    /// Size of each block, bytes: the number of its stripes, the last of which may be partly unused.
    pub fn block_bytes(&self) -> u64 {
        match self.blocks {
            1 => self.size_bytes,
            blocks => {
                let stripes = self.size_bytes.div_ceil(self.stripe_bytes);
                stripes.div_ceil(blocks).saturating_mul(self.stripe_bytes)
            }
        }
    }

    /// Whether these bytes are all inside the remote memory.
    pub fn holds(&self, offset: u64, length: usize) -> bool {
        let end = offset.checked_add(length as u64);
        end.is_some_and(|end| end <= self.size_bytes)
    }

    /// The pieces of a span that is inside the remote memory, in order.
    pub fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = Piece> {
        let layout = *self;
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = length - done;
            if left == 0 {
                return None;
            }
            let at = offset + done as u64;
            let (block, within, room) = match layout.blocks {
                1 => (0, at, u64::MAX),
                blocks => {
                    let (stripe, within) = (at / layout.stripe_bytes, at % layout.stripe_bytes);
                    let start = (stripe / blocks) * layout.stripe_bytes;
                    (stripe % blocks, start + within, layout.stripe_bytes - within)
                }
            };
            let bytes = left.min(usize::try_from(room).unwrap_or(usize::MAX));
            let piece = Piece {
                block: block as usize,
                offset: within,
                of_span: done..done + bytes,
            };
            done += bytes;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Checks that each byte of a memory has one place inside a block, the same in each span that it is part of.
    fn check(layout: Layout) {
        let size = layout.size_bytes;
        let mut taken = vec![vec![None; layout.block_bytes() as usize]; layout.blocks as usize];
        for offset in 0..=size {
            for length in 0..=(size - offset) as usize {
                let mut end = 0;
                for piece in layout.pieces(offset, length) {
                    assert_eq!(piece.of_span.start, end, "{layout:?}: a gap");
                    assert!(!piece.of_span.is_empty());
                    end = piece.of_span.end;
                    for (number, of_span) in piece.of_span.enumerate() {
                        let byte = offset + of_span as u64;
                        let cell = &mut taken[piece.block][piece.offset as usize + number];
                        assert_eq!(*cell.get_or_insert(byte), byte, "{layout:?}: two bytes in one place");
                    }
                }
                assert_eq!(end, length, "{layout:?}");
            }
        }
        let places = taken.iter().flatten().flatten().count();
        assert_eq!(places as u64, size, "{layout:?}: a byte in two places");
    }

    #[test]
    fn every_byte_has_one_place_in_all_spans_that_it_is_part_of() {
        for size_bytes in 1..50 {
            for blocks in 1..=4 {
                for stripe_bytes in [1, 4, 16] {
                    check(Layout {
                        size_bytes,
                        blocks,
                        stripe_bytes,
                    });
                }
            }
        }
    }

    #[test]
    fn spans_that_end_outside_are_not_held() {
        let layout = Layout {
            size_bytes: 10,
            blocks: 1,
            stripe_bytes: 4096,
        };
        assert!(layout.holds(10, 0) && layout.holds(0, 10));
        for (offset, length) in [(10, 1), (11, 0), (u64::MAX, 1), (u64::MAX, 0), (1, 10)] {
            assert!(!layout.holds(offset, length), "{offset}+{length}");
        }
    }
}
