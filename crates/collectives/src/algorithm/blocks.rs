//! Blocks of elements, one for each rank: their positions in a buffer, and their packed form in messages.

use crate::schedule::AreaSpan;
use std::ops::Range;

/// Blocks in a buffer, one for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// Blocks of this many elements each, one after the other in rank order.
    Equal(usize),
    /// Blocks of individual lengths and positions; both in elements, one entry for each rank.
    Each {
        /// Length of each block.
        counts: &'a [usize],
        /// Start of each block.
        displacements: &'a [usize],
    },
}

impl Blocks<'_> {
    /// Number of elements in the block of a rank.
    pub fn count(&self, rank: usize) -> usize {
        match self {
            Blocks::Equal(count) => *count,
            Blocks::Each { counts, .. } => counts[rank],
        }
    }

    /// Start of the block of a rank, in elements.
    pub fn offset(&self, rank: usize) -> usize {
        match self {
            Blocks::Equal(count) => rank * count,
            Blocks::Each { displacements, .. } => displacements[rank],
        }
    }

    /// Total number of elements in the blocks of `ranks` ranks.
    pub fn total(&self, ranks: usize) -> usize {
        match self {
            Blocks::Equal(count) => count.saturating_mul(ranks),
            Blocks::Each { counts, .. } => counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        }
    }

    /// Length that a buffer needs for the blocks of all ranks, in elements.
    pub fn extent(&self, ranks: usize) -> usize {
        match self {
            Blocks::Equal(count) => count * ranks,
            Blocks::Each { .. } => (0..ranks)
                .filter(|&rank| self.count(rank) > 0)
                .map(|rank| self.offset(rank) + self.count(rank))
                .max()
                .unwrap_or(0),
        }
    }

    /// Start of each block, if blocks of these lengths follow each other.
    pub fn consecutive_starts(counts: &[usize]) -> Vec<usize> {
        let starts = counts.iter().scan(0usize, |next, count| {
            let start = *next;
            // Blocks that are too long are refused when all arguments are checked.
            *next = next.saturating_add(*count);
            Some(start)
        });
        starts.collect()
    }

    /// Number of elements in the longest block.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Blocks::Equal(count) => *count,
            Blocks::Each { counts, .. } => counts.iter().copied().max().unwrap_or(0),
        }
    }

    /// Block of a rank, in a buffer of these blocks.
    pub(crate) fn of(&self, buffer: AreaSpan, rank: usize) -> AreaSpan {
        match self.count(rank) {
            0 => AreaSpan { count: 0, ..buffer },
            count => buffer.part(self.offset(rank), count),
        }
    }

    /// Blocks of these ranks as one span, if they follow each other in the buffer.
    pub(crate) fn joined(&self, buffer: AreaSpan, ranks: Range<usize>) -> Option<AreaSpan> {
        let mut joined = AreaSpan { count: 0, ..buffer };
        if let Blocks::Equal(count) = self {
            return Some(buffer.part(ranks.start * count, ranks.len() * count));
        }
        for block in ranks.map(|rank| self.of(buffer, rank)).filter(|block| block.count > 0) {
            if joined.count > 0 && joined.end() != block.offset {
                return None;
            }
            joined = if joined.count > 0 {
                AreaSpan {
                    count: joined.count + block.count,
                    ..joined
                }
            } else {
                block
            };
        }
        Some(joined)
    }
}

/// Blocks packed one after the other without gaps, beginning with the block of rank `first` and going around the
/// circle.
pub(crate) enum PackedBlocks {
    Equal(usize),
    Each(Vec<usize>),
}

impl PackedBlocks {
    pub fn new(blocks: &Blocks, first: usize, ranks: usize) -> Self {
        match blocks {
            Blocks::Equal(count) => PackedBlocks::Equal(*count),
            Blocks::Each { counts, .. } => {
                let mut starts = Vec::with_capacity(ranks + 1);
                let mut start = 0;
                for place in 0..ranks {
                    starts.push(start);
                    start += counts[(first + place) % ranks];
                }
                starts.push(start);
                PackedBlocks::Each(starts)
            }
        }
    }

    fn start(&self, place: usize) -> usize {
        match self {
            PackedBlocks::Equal(count) => place * count,
            PackedBlocks::Each(starts) => starts[place],
        }
    }

    /// Total number of elements at these positions.
    pub fn count(&self, places: Range<usize>) -> usize {
        self.start(places.end) - self.start(places.start)
    }

    /// Span of these positions, in a buffer that begins with position 0.
    pub fn of(&self, buffer: AreaSpan, places: Range<usize>) -> AreaSpan {
        buffer.part(self.start(places.start), self.count(places))
    }
}
