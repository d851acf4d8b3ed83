//! One block of elements for each rank: where they are in a buffer, and how they are packed on the way.

use crate::schedule::Span;
use std::ops::Range;

/// One block for each rank, in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// Of this many elements each, one after the other in rank order.
    Equal(usize),
    /// Each of its own length, at a place of its own; both in elements, one entry for each rank.
    Each {
        /// How long.
        counts: &'a [usize],
        /// Where it begins.
        displacements: &'a [usize],
    },
}

impl Blocks<'_> {
    /// How many elements the block of a rank has.
    pub fn count(&self, rank: usize) -> usize {
        match self {
            Blocks::Equal(count) => *count,
            Blocks::Each { counts, .. } => counts[rank],
        }
    }

    /// Where the block of a rank begins.
    pub fn offset(&self, rank: usize) -> usize {
        match self {
            Blocks::Equal(count) => rank * count,
            Blocks::Each { displacements, .. } => displacements[rank],
        }
    }

    /// How many elements all blocks of so many ranks have.
    pub fn total(&self, ranks: usize) -> usize {
        match self {
            Blocks::Equal(count) => count.saturating_mul(ranks),
            Blocks::Each { counts, .. } => counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        }
    }

    /// How long a buffer must be for all of them.
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

    /// How many elements the longest block has.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Blocks::Equal(count) => *count,
            Blocks::Each { counts, .. } => counts.iter().copied().max().unwrap_or(0),
        }
    }

    /// The block of a rank, in a buffer of such blocks.
    pub(crate) fn of(&self, buffer: Span, rank: usize) -> Span {
        match self.count(rank) {
            0 => Span { count: 0, ..buffer },
            count => buffer.part(self.offset(rank), count),
        }
    }

    /// All blocks of these ranks as one span, if they follow each other in the buffer.
    pub(crate) fn joined(&self, buffer: Span, ranks: Range<usize>) -> Option<Span> {
        let mut joined = Span { count: 0, ..buffer };
        if let Blocks::Equal(count) = self {
            return Some(buffer.part(ranks.start * count, ranks.len() * count));
        }
        for block in ranks
            .map(|rank| self.of(buffer, rank))
            .filter(|block| block.count > 0)
        {
            if joined.count > 0 && joined.end() != block.offset {
                return None;
            }
            joined = if joined.count > 0 {
                Span {
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

/// The same blocks one after the other without gaps, from that of rank `first` around the circle.
pub(crate) enum Packed {
    Equal(usize),
    Each(Vec<usize>),
}

impl Packed {
    pub fn new(blocks: &Blocks, first: usize, ranks: usize) -> Self {
        match blocks {
            Blocks::Equal(count) => Packed::Equal(*count),
            Blocks::Each { counts, .. } => {
                let mut starts = Vec::with_capacity(ranks + 1);
                let mut start = 0;
                for place in 0..ranks {
                    starts.push(start);
                    start += counts[(first + place) % ranks];
                }
                starts.push(start);
                Packed::Each(starts)
            }
        }
    }

    fn start(&self, place: usize) -> usize {
        match self {
            Packed::Equal(count) => place * count,
            Packed::Each(starts) => starts[place],
        }
    }

    /// How many elements these places have together.
    pub fn count(&self, places: Range<usize>) -> usize {
        self.start(places.end) - self.start(places.start)
    }

    /// These places, in a buffer that begins with place 0.
    pub fn of(&self, buffer: Span, places: Range<usize>) -> Span {
        buffer.part(self.start(places.start), self.count(places))
    }
}
