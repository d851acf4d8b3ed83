//! Layouts: offsets of the bytes of an element of a derived datatype, relative to the element's address.
//!
//! Uses nothing of Python, so that the tests below run: `tests/python` includes this file.

use hotlease_comm::Datatype as Kind;

/// Limit of the runs of bytes in a layout. The offsets of more runs would need more memory than most messages.
const RUNS_MAX: usize = 1 << 22;
const TOO_LARGE: &str = "a datatype whose places do not fit in 64 bits";

/// Layout of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ElementLayout {
    /// Offset and length of each run of bytes, in the order in which they are sent.
    runs: Vec<(i64, usize)>,
    /// Bytes of data.
    pub size: usize,
    pub lower: i64,
    /// Bytes from one element to the next.
    pub extent: i64,
    /// Alignment of the basic types. The extent of a structure is rounded up to the alignment, as in C.
    alignment: usize,
    /// Whether the program has set the extent.
    is_resized: bool,
}

/// Part of a layout that is being built: the layout of its elements, their number, and the offset of the first element.
pub type Part<'a> = (&'a ElementLayout, usize, i64);

fn alignment_of(kind: Kind) -> usize {
    match kind {
        Kind::Complex64 | Kind::I32Index | Kind::F32Index => 4,
        Kind::Complex128 | Kind::I64Index | Kind::F64Index => 8,
        Kind::Record(size) => (1 << size.get().trailing_zeros()).min(16),
        kind => kind.size(),
    }
}

impl ElementLayout {
    /// Layout of a basic type.
    pub fn basic(kind: Kind) -> Self {
        Self {
            runs: vec![(0, kind.size())],
            size: kind.size(),
            lower: 0,
            extent: kind.size() as i64,
            alignment: alignment_of(kind),
            is_resized: false,
        }
    }

    /// Makes a layout of parts, in the order in which they are sent. `is_structure`: the extent is rounded up, as in C.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = Part<'a>>, is_structure: bool) -> Result<Self, String> {
        let too_large = || TOO_LARGE.to_owned();
        let mut made = Self {
            runs: Vec::new(),
            size: 0,
            lower: 0,
            extent: 0,
            alignment: 1,
            is_resized: false,
        };
        let mut bounds: Option<(i64, i64)> = None;
        for (element, count, offset) in parts {
            made.alignment = made.alignment.max(element.alignment);
            made.is_resized |= element.is_resized;
            let Some(before_last) = count.checked_sub(1) else {
                continue;
            };
            let span = i64::try_from(before_last)
                .ok()
                .and_then(|n| element.extent.checked_mul(n));
            let last = span.and_then(|span| offset.checked_add(span)).ok_or_else(too_large)?;
            let (low, high) = (offset.min(last), offset.max(last));
            let low = low.checked_add(element.lower).ok_or_else(too_large)?;
            let high = high.checked_add(element.upper()).ok_or_else(too_large)?;
            bounds = Some(bounds.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
            made.push(element, count, offset)?;
        }
        let (lower, upper) = bounds.unwrap_or((0, 0));
        made.lower = lower;
        made.extent = upper.checked_sub(lower).ok_or_else(too_large)?;
        if is_structure && !made.is_resized {
            let alignment = made.alignment as i64;
            made.extent += (alignment - made.extent.rem_euclid(alignment)) % alignment;
        }
        Ok(made)
    }

    fn push(&mut self, element: &Self, count: usize, offset: i64) -> Result<(), String> {
        let size = element
            .size
            .checked_mul(count)
            .and_then(|size| self.size.checked_add(size));
        self.size = size.filter(|size| i64::try_from(*size).is_ok()).ok_or(TOO_LARGE)?;
        if element.is_dense() {
            return self.push_run(offset, element.size * count);
        }
        // Without data there is nothing to repeat, however large the count is.
        let count = if element.runs.is_empty() { 0 } else { count };
        for index in 0..count {
            let offset = offset + index as i64 * element.extent;
            for (start, length) in &element.runs {
                self.push_run(offset.checked_add(*start).ok_or(TOO_LARGE)?, *length)?;
            }
        }
        Ok(())
    }

    fn push_run(&mut self, start: i64, length: usize) -> Result<(), String> {
        i64::try_from(length)
            .ok()
            .and_then(|length| start.checked_add(length))
            .ok_or(TOO_LARGE)?;
        let is_full = self.runs.len() == RUNS_MAX;
        match self.runs.last_mut() {
            _ if length == 0 => {}
            Some((before, so_far)) if *before + *so_far as i64 == start => *so_far += length,
            _ if is_full => {
                return Err(format!(
                    "a datatype of more than {RUNS_MAX} separate runs of bytes: send a copy"
                ));
            }
            _ => self.runs.push((start, length)),
        }
        Ok(())
    }

    /// Returns a layout of the same bytes with other bounds.
    pub fn resized(&self, lower: i64, extent: i64) -> Self {
        Self {
            lower,
            extent,
            is_resized: true,
            ..self.clone()
        }
    }

    pub const fn upper(&self) -> i64 {
        self.lower.saturating_add(self.extent)
    }

    /// Whether elements lie one after the other without gaps.
    pub fn is_dense(&self) -> bool {
        self.size == 0 || self.runs == [(0, self.size)] && self.lower == 0 && self.extent == self.size as i64
    }

    /// Offsets of the beginning and the end of the data of this many elements; `None` if they do not fit in 64 bits.
    pub fn true_bounds(&self, count: usize) -> Option<(i64, i64)> {
        let low = self.runs.iter().map(|(start, _)| *start).min();
        let high = self.runs.iter().map(|(start, length)| start + *length as i64).max();
        let (Some(low), Some(high), Some(before_last)) = (low, high, count.checked_sub(1)) else {
            return Some((0, 0));
        };
        let last = i64::try_from(before_last).ok()?.checked_mul(self.extent)?;
        Some((low.checked_add(last.min(0))?, high.checked_add(last.max(0))?))
    }

    /// Runs of this many elements from an offset on. The caller has checked them against the memory with
    /// [`Self::true_bounds`].
    pub fn runs(&self, count: usize, offset: i64) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..count as i64).flat_map(move |index| {
            let at = offset + index * self.extent;
            self.runs.iter().map(move |(start, length)| {
                let start = (at + start) as usize;
                start..start + length
            })
        })
    }
}

/// Way in which the indices of a dimension are distributed over processes. Its kinds have the numbers of
/// `_constants.py`.
#[derive(Debug, Clone, Copy)]
pub struct Distribution {
    /// Number of indices.
    size: usize,
    /// Number of processes in the dimension, and the place of the process whose indices these are.
    processes: usize,
    place: usize,
    /// Number of consecutive indices that one process has.
    block: usize,
}

impl Distribution {
    const BLOCK: i64 = 0;
    const CYCLIC: i64 = 1;
    const NONE: i64 = 2;
    const DEFAULT: i64 = -1;

    /// Distribution of this kind, with its argument (`DISTRIBUTE_DFLT_DARG`: the default).
    pub fn new(kind: i64, argument: i64, size: usize, processes: usize, place: usize) -> Result<Self, String> {
        let given = match argument {
            Self::DEFAULT => None,
            blocks => match usize::try_from(blocks) {
                Ok(blocks) if blocks > 0 => Some(blocks),
                _ => return Err(format!("an argument of {argument} for a distribution")),
            },
        };
        let block = match kind {
            Self::NONE if processes == 1 => size,
            Self::NONE => {
                return Err(format!(
                    "a dimension that is not distributed, over {processes} processes"
                ));
            }
            Self::BLOCK => given.unwrap_or(size.div_ceil(processes)),
            Self::CYCLIC => given.unwrap_or(1),
            _ => {
                return Err(format!(
                    "a distribution of {kind}: MPI.DISTRIBUTE_BLOCK, _CYCLIC or _NONE"
                ));
            }
        };
        if kind == Self::BLOCK && block.checked_mul(processes).is_some_and(|room| room < size) {
            return Err(format!(
                "blocks of {block} over {processes} processes, for {size} indices"
            ));
        }
        Ok(Self {
            size,
            processes,
            place,
            block: block.max(1),
        })
    }

    /// Blocks of the process, in order: first index and length of each.
    pub fn blocks(self) -> impl Iterator<Item = (usize, usize)> {
        let round = self.block.saturating_mul(self.processes);
        let first = self.block.saturating_mul(self.place).min(self.size);
        let length = move |start: usize| self.block.min(self.size - start);
        (first..self.size)
            .step_by(round)
            .map(move |start| (start, length(start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_a_matrix_is_every_third_number() {
        let number = ElementLayout::basic(Kind::F64);
        let column = ElementLayout::of_parts((0..3).map(|row| (&number, 1, row * 24)), false).expect("three numbers");
        assert_eq!((column.size, column.lower, column.extent), (24, 0, 56));
        let next = column.resized(0, 8);
        let runs: Vec<_> = next.runs(2, 0).collect();
        assert_eq!(runs, [0..8, 24..32, 48..56, 8..16, 32..40, 56..64]);
        assert_eq!(next.true_bounds(2), Some((0, 64)));
        assert!(!next.is_dense() && number.is_dense());
        let pair = ElementLayout::of_parts([(&number, 2, 0)], false).expect("two numbers");
        assert!(pair.is_dense() && pair.size == 16, "runs that touch are one");
    }

    #[test]
    fn a_structure_is_as_long_as_in_c() {
        let (number, letter) = (ElementLayout::basic(Kind::F64), ElementLayout::basic(Kind::I8));
        let both = ElementLayout::of_parts([(&number, 1, 0), (&letter, 1, 8)], true).expect("nine bytes");
        assert_eq!((both.size, both.extent), (9, 16));
        let resized = both.resized(0, 9);
        let twice = ElementLayout::of_parts([(&resized, 2, 0)], true).expect("eighteen bytes");
        assert_eq!(twice.extent, 18, "the program has set it");
    }

    #[test]
    fn each_index_of_a_distribution_is_at_one_process() {
        let at = |kind, argument, size, processes, place| {
            let blocks = Distribution::new(kind, argument, size, processes, place)?.blocks();
            Ok::<_, String>(
                blocks
                    .flat_map(|(start, length)| start..start + length)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(at(1, 2, 9, 2, 0).unwrap(), [0, 1, 4, 5, 8]);
        assert_eq!(at(0, -1, 5, 3, 2).unwrap(), [4]);
        assert!(at(0, 4, 5, 3, 2).unwrap().is_empty() && at(0, -1, 0, 3, 1).unwrap().is_empty());
        for (kind, argument) in [(0, -1), (0, 7), (1, -1), (1, 3), (1, 100)] {
            let mut all: Vec<usize> = (0..4)
                .flat_map(|place| at(kind, argument, 25, 4, place).unwrap())
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..25).collect::<Vec<_>>());
        }
        for (kind, argument, processes) in [(2, -1, 2), (0, 1, 3), (1, 0, 2), (3, -1, 1)] {
            assert!(at(kind, argument, 5, processes, 0).is_err(), "{kind} {argument}");
        }
    }

    #[test]
    fn places_that_do_not_fit_are_refused() {
        let number = ElementLayout::basic(Kind::F64);
        assert!(ElementLayout::of_parts([(&number, 2, i64::MAX - 3)], false).is_err());
        assert!(ElementLayout::of_parts([(&number, usize::MAX, 0)], false).is_err());
        let gap = number.resized(0, 16);
        assert!(ElementLayout::of_parts([(&gap, RUNS_MAX + 1, 0)], false).is_err());
        let empty = ElementLayout::of_parts([(&number, 0, 8)], false).expect("nothing");
        assert_eq!((empty.size, empty.extent, empty.runs(3, 0).count()), (0, 0, 0));
    }
}
