//! Buffer arguments with a block for each rank.

use super::buffer_spec::{BufferPart, BufferSpec, elements, index, segment};
use super::element::{self, ElementType};
use super::packed::{PackedBuffer, Segment};
use super::pinned_buffer::{BufferAccess, PinnedBuffer};
use hotlease_comm::{Blocks, Datatype as Kind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// A block of memory for each rank.
pub struct BufferBlocks {
    pub part: BufferPart,
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl BufferBlocks {
    /// No blocks.
    pub const fn none() -> Self {
        Self {
            part: BufferPart::none(),
            counts: Vec::new(),
            displacements: Vec::new(),
        }
    }

    /// Takes the memory, and leaves the counts and displacements of the blocks.
    pub fn take_part(&mut self) -> BufferPart {
        std::mem::replace(&mut self.part, BufferPart::none())
    }

    /// Reads a block for each rank.
    pub fn of(spec: &Bound<'_, PyAny>, access: BufferAccess, ranks: usize, what: &str) -> PyResult<Self> {
        let mut spec = BufferSpec::of(spec, what, |count| count.is_instance_of::<PyTuple>())?;
        let (pinned, element) = spec.pin(access, what)?;
        let mut counts = match &spec.count {
            None => {
                let all = elements(pinned.as_ref(), &element, what)?;
                (0..ranks)
                    .map(|rank| all / ranks + usize::from(rank < all % ranks))
                    .collect()
            }
            Some(given) => read_each(given, "count", ranks, what)?.unwrap_or_else(|count| vec![count; ranks]),
        };
        let mut displacements: Vec<usize> = match &spec.displacement {
            None => Blocks::consecutive_starts(&counts),
            Some(given) => read_each(given, "displacement", ranks, what)?
                .unwrap_or_else(|apart| (0..ranks).map(|rank| rank.saturating_mul(apart)).collect()),
        };
        if element.gaps().is_some() {
            let segments = counts.iter().zip(&displacements);
            let segments = segments.filter_map(|(count, place)| segment(&element, *count, *place));
            let packed = PackedBuffer::of(pinned.as_ref(), segments.collect(), what)?;
            return Ok(Self::packed(pinned, packed, counts, &element));
        }
        for number in counts.iter_mut().chain(&mut displacements) {
            *number = number.saturating_mul(element.kinds());
        }
        let kind = element.kind;
        let room = pinned.as_ref().map_or(0, PinnedBuffer::bytes) / kind.size();
        for (rank, (count, place)) in counts.iter().zip(&displacements).enumerate() {
            if *count > 0 && place.checked_add(*count).is_none_or(|end| end > room) {
                return Err(PyValueError::new_err(format!(
                    "{what} has {room} elements, and the block of rank {rank} has {count} elements from {place} on"
                )));
            }
        }
        Ok(Self {
            part: BufferPart::of_memory(pinned, None, &element),
            counts,
            displacements,
        })
    }

    /// Makes blocks that were packed one after the other; `counts` has the number of elements of each block.
    fn packed(
        pinned: Option<PinnedBuffer>,
        packed: PackedBuffer,
        mut counts: Vec<usize>,
        element: &ElementType,
    ) -> Self {
        counts.iter_mut().for_each(|count| *count *= element.kinds());
        Self {
            part: BufferPart::of_memory(pinned, Some(packed), element),
            displacements: Blocks::consecutive_starts(&counts),
            counts,
        }
    }

    /// Reads a block for each rank, each of its own type, as bytes: `[array, counts, displacements, types]`.
    pub fn of_types(spec: &Bound<'_, PyAny>, access: BufferAccess, ranks: usize, what: &str) -> PyResult<Self> {
        let wrong = || PyValueError::new_err(format!("{what}: [array, counts, displacements in bytes, types]"));
        let mut items = spec.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let types = items.pop().ok_or_else(wrong)?;
        if let Some(pair) = items.get(1).filter(|_| items.len() == 2) {
            let pair = pair.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            items.truncate(1);
            items.extend(pair);
        }
        let (memory, counts, places) = match items.as_slice() {
            [memory] => (memory, None, None),
            [memory, counts, places] => (memory, Some(counts), Some(places)),
            _ => return Err(wrong()),
        };
        let numbers = |given: Option<&Bound<'_, PyAny>>, name, usual| match given.filter(|given| !given.is_none()) {
            None => Ok(vec![usual; ranks]),
            Some(given) => Ok(read_each(given, name, ranks, what)?.unwrap_or_else(|one| vec![one; ranks])),
        };
        let counts: PyResult<Vec<usize>> = numbers(counts, "count", 1);
        let (counts, places) = (counts?, numbers(places, "displacement", 0)?);
        let types = types
            .try_iter()?
            .map(|kind| element::element_type(&kind?))
            .collect::<PyResult<Vec<_>>>()?;
        if types.len() != ranks {
            let given = types.len();
            return Err(PyValueError::new_err(format!(
                "{what}: {given} types for {ranks} ranks"
            )));
        }
        let pinned = (!memory.is_none())
            .then(|| PinnedBuffer::of(memory, access, what))
            .transpose()?;
        let (mut segments, mut bytes) = (Vec::new(), Vec::new());
        for ((element, count), place) in types.iter().zip(counts).zip(places) {
            bytes.push(element.size().saturating_mul(count));
            segments.push(Segment {
                layout: Arc::new(element.layout().into_owned()),
                at: i64::try_from(place).unwrap_or(i64::MAX),
                count,
            });
        }
        let packed = PackedBuffer::of(pinned.as_ref(), segments, what)?;
        Ok(Self::packed(pinned, packed, bytes, &Kind::Bytes.into()))
    }

    /// The blocks in the library's form.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks::Each {
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }

    /// Converts the counts and displacements of the blocks to bytes.
    pub fn into_bytes(mut self) -> Self {
        let size = self.part.kind.size();
        for number in self.counts.iter_mut().chain(&mut self.displacements) {
            *number = number.saturating_mul(size);
        }
        self.part.kind = Kind::Bytes;
        self
    }
}

/// Reads one number for each rank. Returns a single number for all ranks as the inner `Err`.
fn read_each(given: &Bound<'_, PyAny>, name: &str, ranks: usize, what: &str) -> PyResult<Result<Vec<usize>, usize>> {
    if let Ok(one) = given.extract::<i64>() {
        return usize::try_from(one)
            .map(Err)
            .or_else(|_| index(given, name, what).map(Err));
    }
    let numbers = given
        .try_iter()?
        .map(|number| index(&number?, name, what))
        .collect::<PyResult<Vec<_>>>()?;
    if numbers.len() == ranks {
        return Ok(Ok(numbers));
    }
    Err(PyValueError::new_err(format!(
        "{what}: {} {name}s for {ranks} ranks; one for each, or one number for all",
        numbers.len()
    )))
}
