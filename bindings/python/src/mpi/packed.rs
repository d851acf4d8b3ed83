//! Packed elements: a copy without gaps of elements of a derived datatype. An operation sends the copy. Or it receives
//! into the copy, and the elements are unpacked afterwards.

use super::element::ElementType;
use super::layout::ElementLayout;
use super::pinned_buffer::{BufferAccess, PinnedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Elements of one type, one after the other in a buffer.
pub struct Segment {
    pub layout: Arc<ElementLayout>,
    /// Offset of the first element, bytes.
    pub at: i64,
    pub count: usize,
}

/// Elements that were packed; see the module.
pub struct PackedBuffer {
    /// The memory of a vector may be used through a pointer while the vector itself is moved.
    bytes: Vec<u8>,
    segments: Vec<Segment>,
}

/// Checks that elements from an offset on lie in a buffer of this length.
pub fn check_bounds(layout: &ElementLayout, count: usize, at: i64, bytes: usize, what: &str) -> PyResult<()> {
    let bounds = layout.true_bounds(count);
    let bounds = bounds.and_then(|(low, high)| Some((low.checked_add(at)?, high.checked_add(at)?)));
    let is_inside = |(low, high): (i64, i64)| low >= 0 && usize::try_from(high).is_ok_and(|high| high <= bytes);
    if layout.size == 0 || count == 0 || bounds.is_some_and(is_inside) {
        return Ok(());
    }
    let (low, high) = bounds.unwrap_or((i64::MIN, i64::MAX));
    Err(PyValueError::new_err(format!(
        "{what} has {bytes} bytes, and {count} elements of this datatype lie at bytes {low} to {high} of it"
    )))
}

/// Bytes of a pinned buffer.
fn bytes_of(pinned: &PinnedBuffer) -> &[u8] {
    match pinned.bytes() {
        0 => &[],
        // SAFETY: the memory of the buffer, which stays as long as it is pinned.
        bytes => unsafe { std::slice::from_raw_parts(pinned.start(), bytes) },
    }
}

/// Copies runs of bytes to a buffer that was pinned for writing; `from` contains the runs one after the other.
fn scatter(pinned: &PinnedBuffer, runs: impl Iterator<Item = Range<usize>>, mut from: &[u8]) {
    for run in runs {
        let Some((bytes, rest)) = from.split_at_checked(run.len()) else {
            return;
        };
        assert!(run.end <= pinned.bytes(), "the bounds were checked");
        // SAFETY: the run is inside the buffer, as just checked, and `from` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.start().add(run.start), run.len()) };
        from = rest;
    }
}

impl PackedBuffer {
    /// Packs elements of a buffer. Elements that will be received are packed as well, because a message may be shorter
    /// than the buffer, and the rest keeps its content.
    pub fn of(pinned: Option<&PinnedBuffer>, segments: Vec<Segment>, what: &str) -> PyResult<Self> {
        let from = pinned.map_or(&[][..], bytes_of);
        for Segment { layout, at, count } in &segments {
            check_bounds(layout, *count, *at, from.len(), what)?;
        }
        let sizes = segments
            .iter()
            .map(|segment| segment.layout.size.checked_mul(segment.count));
        let size = sizes.reduce(|sum, size| sum?.checked_add(size?)).unwrap_or(Some(0));
        let mut bytes = Vec::new();
        let has_room = size.is_some_and(|size| bytes.try_reserve_exact(size).is_ok());
        if !has_room {
            return Err(PyValueError::new_err(format!("{what}: no memory to pack its elements")));
        }
        let runs = segments.iter().filter(|segment| segment.layout.size > 0);
        for run in runs.flat_map(|segment| segment.layout.runs(segment.count, segment.at)) {
            bytes.extend_from_slice(&from[run]);
        }
        Ok(Self { bytes, segments })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub const fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Puts the elements back into a buffer that was pinned for writing.
    pub fn unpack(&self, pinned: &PinnedBuffer) {
        let mut from = &self.bytes[..];
        for Segment { layout, at, count } in &self.segments {
            let (own, rest) = from.split_at(layout.size * count);
            scatter(pinned, layout.runs(*count, *at), own);
            from = rest;
        }
    }
}

/// Number of whole elements in a buffer.
fn count_in(layout: &ElementLayout, bytes: usize) -> usize {
    usize::try_from(layout.extent)
        .ok()
        .filter(|extent| *extent > 0)
        .map_or(0, |extent| bytes / extent)
}

/// Packs all elements of a buffer into another buffer, from a position on; returns the position of their end.
pub fn pack(
    element: &ElementType,
    from: &Bound<'_, PyAny>,
    into: &Bound<'_, PyAny>,
    position: usize,
) -> PyResult<usize> {
    let from = PinnedBuffer::of(from, BufferAccess::Read, "the buffer to pack")?;
    let layout = element.layout();
    let count = count_in(&layout, from.bytes());
    check_bounds(&layout, count, 0, from.bytes(), "the buffer to pack")?;
    let into = PinnedBuffer::of(into, BufferAccess::Write, "the buffer to pack into")?;
    let packed: Vec<u8> = layout
        .runs(count, 0)
        .flat_map(|run| bytes_of(&from)[run].to_vec())
        .collect();
    let end = position.saturating_add(packed.len());
    if end > into.bytes() {
        let (room, size) = (into.bytes(), packed.len());
        return Err(PyValueError::new_err(format!(
            "the buffer to pack into has {room} bytes, and {size} are to go there from {position} on"
        )));
    }
    scatter(&into, std::iter::once(position..end), &packed);
    Ok(end)
}

/// Fills the buffer `into` with elements that it unpacks from the buffer `from`, from a position on; returns the
/// position of their end.
pub fn unpack(
    element: &ElementType,
    from: &Bound<'_, PyAny>,
    position: usize,
    into: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let from = PinnedBuffer::of(from, BufferAccess::Read, "the buffer to unpack")?;
    let into = PinnedBuffer::of(into, BufferAccess::Write, "the buffer to unpack into")?;
    let layout = element.layout();
    let count = count_in(&layout, into.bytes());
    check_bounds(&layout, count, 0, into.bytes(), "the buffer to unpack into")?;
    let end = position.saturating_add(layout.size.saturating_mul(count));
    let Some(bytes) = bytes_of(&from).get(position..end) else {
        let has = from.bytes();
        return Err(PyValueError::new_err(format!(
            "the buffer to unpack has {has} bytes, and {count} elements end at byte {end}"
        )));
    };
    scatter(&into, layout.runs(count, 0), bytes);
    Ok(end)
}
