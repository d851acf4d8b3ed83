//! Buffer arguments of a call, in mpi4py's forms:
//!
//! | argument | meaning |
//! |---|---|
//! | `array` | the whole array, of its own type |
//! | `[array, MPI.DOUBLE]`, `[array, "d"]` | the whole array, as elements of this type |
//! | `[array, count]`, `[array, count, type]` | this many elements |
//! | `[array, (count, displacement), type]`, `[array, count, displacement, type]` | this many elements from the displacement on |
//! | `[array, counts, displacements, type]`, `[array, (counts, displacements), type]` | a block for each rank |
//! | `[array, counts]` | a block for each rank, one after the other |
//! | `[array, counts, displacements, types]` | a block for each rank, each of its type, at offsets in bytes (`Alltoallw`) |
//! | `None` | nothing |
//! | `MPI.IN_PLACE` | the caller's data is in the receive buffer |

use super::element::{self, ElementType};
use super::packed::{PackedBuffer, Segment};
use super::pinned_buffer::{BufferAccess, PinnedBuffer};
use hotlease_comm::{Datatype as Kind, LentBytes, LentBytesMut};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::Arc;

/// Memory of one operation.
pub struct BufferPart {
    pinned: Option<PinnedBuffer>,
    /// Offset of the first element, in bytes.
    offset: usize,
    /// Number of elements. If the memory holds a block for each rank, number of elements in each block.
    pub count: usize,
    pub kind: Kind,
    /// Type by which numpy reduces the elements ([`ElementType::reduced_as`]).
    pub reduced_as: Option<&'static str>,
    /// Copy without gaps that is used instead of elements with gaps; the offset is then 0.
    packed: Option<Box<PackedBuffer>>,
}

/// A parsed buffer argument.
pub struct BufferSpec<'py> {
    memory: Option<Bound<'py, PyAny>>,
    pub count: Option<Bound<'py, PyAny>>,
    pub displacement: Option<Bound<'py, PyAny>>,
    element: Option<ElementType>,
}

impl<'py> BufferSpec<'py> {
    fn whole(memory: Option<Bound<'py, PyAny>>) -> Self {
        Self {
            memory,
            count: None,
            displacement: None,
            element: None,
        }
    }

    /// Parses a buffer argument. `is_pair`: whether the object in the place of a count is a pair of count and
    /// displacement.
    pub fn of(spec: &Bound<'py, PyAny>, what: &str, is_pair: impl Fn(&Bound<'py, PyAny>) -> bool) -> PyResult<Self> {
        if spec.is_none() {
            return Ok(Self::whole(None));
        }
        let items: Vec<_> = if let Ok(list) = spec.cast::<PyList>() {
            list.iter().collect()
        } else if let Ok(tuple) = spec.cast::<PyTuple>() {
            tuple.iter().collect()
        } else {
            return Ok(Self::whole(Some(spec.clone())));
        };
        let given = |item: &Bound<'py, PyAny>| (!item.is_none()).then(|| item.clone());
        let Some(memory) = items.first() else {
            return Err(wrong_length(what));
        };
        let mut said = Self::whole(given(memory));
        let mut counts = None;
        match &items[1..] {
            [] => {}
            [kind] if element::is_type(kind) => said.element = Some(element::element_type(kind)?),
            [count] => counts = given(count),
            [count, kind] => {
                counts = given(count);
                said.element = given(kind).map(|kind| element::element_type(&kind)).transpose()?;
            }
            [count, displacement, kind] => {
                counts = given(count);
                said.displacement = given(displacement);
                said.element = given(kind).map(|kind| element::element_type(&kind)).transpose()?;
            }
            _ => return Err(wrong_length(what)),
        }
        if let Some(pair) = counts.as_ref().filter(|counts| is_pair(counts)) {
            if pair.len()? != 2 {
                return Err(PyValueError::new_err(format!(
                    "{what}: {} is no pair of a count and a displacement, or of the counts and displacements of all ranks",
                    pair.repr()?
                )));
            }
            said.count = given(&pair.get_item(0)?);
            said.displacement = given(&pair.get_item(1)?);
        } else {
            said.count = counts;
        }
        Ok(said)
    }

    /// Pins the whole memory; also returns the type of its elements.
    pub fn pin(&mut self, access: BufferAccess, what: &str) -> PyResult<(Option<PinnedBuffer>, ElementType)> {
        let Some(memory) = &self.memory else {
            return Ok((None, self.element.take().unwrap_or_else(|| Kind::Bytes.into())));
        };
        let pinned = PinnedBuffer::of(memory, access, what)?;
        let own = element::of_format(pinned.format(), pinned.element_bytes());
        let Some(element) = ElementType::chosen(self.element.take(), own) else {
            let format = String::from_utf8_lossy(pinned.format()).into_owned();
            let kind = memory.get_type().qualname()?;
            return Err(PyTypeError::new_err(format!(
                "{what}: elements of the format {format:?} of this {kind} are references to objects, or not in the byte order of \
                 this host; convert it (array.astype(float)), send it by a lower-case call, or say what it is: \
                 [array, MPI.BYTE]"
            )));
        };
        Ok((Some(pinned), element))
    }
}

fn wrong_length(what: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{what} must be [array, type], [array, count, type] or [array, count, displacement, type]"
    ))
}

pub fn index(number: &Bound<'_, PyAny>, name: &str, what: &str) -> PyResult<usize> {
    number.extract().map_err(|_| {
        let number = number.repr().map_or_else(|_| "?".into(), |text| text.to_string());
        PyValueError::new_err(format!(
            "{what}: {number} is no {name}: a {name} is a number of elements, 0 or more"
        ))
    })
}

/// Segment of `count` elements that begins at element `place`; `None` if elements of this type have no gaps.
pub fn segment(element: &ElementType, count: usize, place: usize) -> Option<Segment> {
    let layout = Arc::clone(element.gaps()?);
    let at = i64::try_from(place)
        .ok()
        .and_then(|place| layout.extent.checked_mul(place));
    Some(Segment {
        // An offset that is too large is replaced by this value, which is beyond the end of any buffer.
        at: at.unwrap_or(i64::MAX),
        layout,
        count,
    })
}

/// Number of elements in some memory.
pub fn elements(pinned: Option<&PinnedBuffer>, element: &ElementType, what: &str) -> PyResult<usize> {
    let (bytes, extent) = (pinned.map_or(0, PinnedBuffer::bytes), element.extent());
    match usize::try_from(extent) {
        _ if bytes == 0 => Ok(0),
        Ok(extent) if extent > 0 && bytes.is_multiple_of(extent) => Ok(bytes / extent),
        _ => Err(PyValueError::new_err(format!(
            "{what} has {bytes} bytes, which is no multiple of the {extent} bytes from one element of {} to the next; say how \
             many: [array, count, type]",
            element.kind
        ))),
    }
}

impl BufferPart {
    /// No memory.
    pub const fn none() -> Self {
        Self {
            pinned: None,
            offset: 0,
            count: 0,
            kind: Kind::Bytes,
            reduced_as: None,
            packed: None,
        }
    }

    /// Reads one run of elements.
    pub fn of(spec: &Bound<'_, PyAny>, access: BufferAccess, what: &str) -> PyResult<Self> {
        Self::of_blocks(spec, access, 1, what)
    }

    /// Reads one run of elements for each rank; the runs are of equal length, one after the other.
    pub fn of_blocks(spec: &Bound<'_, PyAny>, access: BufferAccess, ranks: usize, what: &str) -> PyResult<Self> {
        let mut said = BufferSpec::of(spec, what, |count| {
            count.is_instance_of::<PyTuple>() || count.is_instance_of::<PyList>()
        })?;
        let (pinned, element) = said.pin(access, what)?;
        if element.gaps().is_some() {
            return Self::packed(&said, pinned, &element, ranks, what);
        }
        let kind = element.kind;
        let all = match said.count {
            // If a count is given, a remainder at the end is no error.
            Some(_) => pinned.as_ref().map_or(0, PinnedBuffer::bytes) / kind.size(),
            None => elements(pinned.as_ref(), &element, what)? * element.kinds(),
        };
        let displacement = said
            .displacement
            .map_or(Ok(0), |given| index(&given, "displacement", what))?
            .saturating_mul(element.kinds());
        let Some(room) = all.checked_sub(displacement) else {
            return Err(PyValueError::new_err(format!(
                "{what} has {all} elements, and is to be used from {displacement} on"
            )));
        };
        let count = match said.count {
            Some(given) => index(&given, "count", what)?.saturating_mul(element.kinds()),
            None if room.is_multiple_of(ranks) => room / ranks,
            None => {
                return Err(PyValueError::new_err(format!(
                    "{what} has {room} elements, which are not {ranks} equal blocks, one for each rank; Gatherv, Scatterv, \
                     Allgatherv and Alltoallv take blocks of any length"
                )));
            }
        };
        if count.checked_mul(ranks).is_none_or(|needed| needed > room) {
            let blocks = if ranks == 1 {
                String::new()
            } else {
                format!(" for each of {ranks} ranks")
            };
            return Err(PyValueError::new_err(format!(
                "{what} has {room} elements, and {count}{blocks} are asked for"
            )));
        }
        Ok(Self {
            offset: displacement * kind.size(),
            count,
            ..Self::of_memory(pinned, None, &element)
        })
    }

    /// Packs one run of elements with gaps for each rank.
    fn packed(
        said: &BufferSpec<'_>,
        pinned: Option<PinnedBuffer>,
        element: &ElementType,
        ranks: usize,
        what: &str,
    ) -> PyResult<Self> {
        let place = said.displacement.as_ref();
        let place = place.map_or(Ok(0), |given| index(given, "displacement", what))?;
        let count = match &said.count {
            Some(given) => index(given, "count", what)?.saturating_mul(ranks),
            None => elements(pinned.as_ref(), element, what)?.saturating_sub(place),
        };
        if !count.is_multiple_of(ranks) {
            return Err(PyValueError::new_err(format!(
                "{what} has {count} elements, which are not {ranks} equal blocks, one for each rank"
            )));
        }
        let segments = segment(element, count, place).into_iter().collect();
        let packed = PackedBuffer::of(pinned.as_ref(), segments, what)?;
        Ok(Self {
            count: count / ranks * element.kinds(),
            ..Self::of_memory(pinned, Some(packed), element)
        })
    }

    /// Makes a part of this memory; the caller sets the number of elements.
    pub fn of_memory(pinned: Option<PinnedBuffer>, packed: Option<PackedBuffer>, element: &ElementType) -> Self {
        Self {
            packed: packed.map(Box::new),
            pinned,
            offset: 0,
            count: 0,
            kind: element.kind,
            reduced_as: element.reduced_as,
        }
    }

    /// Address of the first element, or of its copy if the elements were packed. Callers compare addresses to find out
    /// whether two parts are the same memory.
    pub fn address(&self) -> Option<usize> {
        let packed = self.packed.as_ref().map(|packed| packed.bytes().as_ptr() as usize);
        packed.or_else(|| self.pinned.as_ref().map(|pinned| pinned.start() as usize + self.offset))
    }

    /// Bytes of one run.
    pub fn bytes(&self) -> usize {
        self.count * self.kind.size()
    }

    /// Converts the count to bytes.
    pub fn as_bytes(&mut self) {
        (self.count, self.kind) = (self.bytes(), Kind::Bytes);
    }

    /// Bytes of the part, if it is one run.
    pub fn slice(&self) -> &[u8] {
        if let Some(packed) = &self.packed {
            return packed.bytes();
        }
        match &self.pinned {
            // SAFETY: the part was made with a check that this many bytes lie there; they stay as long as the buffer is
            // pinned.
            Some(pinned) if self.count > 0 => unsafe {
                std::slice::from_raw_parts(pinned.start().add(self.offset), self.bytes())
            },
            _ => &[],
        }
    }

    /// Start of the memory; the caller uses the first `bytes` bytes of it.
    pub fn start(&mut self, bytes: usize) -> *mut u8 {
        if let Some(packed) = &mut self.packed {
            assert!(bytes <= packed.bytes().len(), "elements were counted");
            return packed.bytes_mut().as_mut_ptr();
        }
        match &self.pinned {
            Some(pinned) if bytes > 0 => {
                assert!(self.offset + bytes <= pinned.bytes(), "elements were counted");
                pinned.start().wrapping_add(self.offset)
            }
            _ => {
                assert_eq!(bytes, 0, "an absent buffer has no bytes");
                std::ptr::NonNull::dangling().as_ptr()
            }
        }
    }

    /// If elements were received into a packed copy, writes them to the places in the memory where they belong. The
    /// memory was pinned for writing.
    pub fn unpack(&self) {
        if let (Some(packed), Some(pinned)) = (&self.packed, &self.pinned) {
            packed.unpack(pinned);
        }
    }

    /// Lends the first bytes for reading, until the loan is dropped.
    pub fn lend(mut self, bytes: usize) -> Loan<LentBytes> {
        let start = self.start(bytes);
        // SAFETY: the loan holds the pin, and releases it after the memory was taken back.
        let lent = unsafe { LentBytes::from_raw(start, bytes) };
        Loan {
            lent,
            packed: self.packed,
            pinned: self.pinned,
        }
    }

    /// Lends the first bytes for writing, until the loan is dropped.
    pub fn lend_mut(mut self, bytes: usize) -> Loan<LentBytesMut> {
        let start = self.start(bytes);
        // SAFETY: the loan holds the pin, and releases it after the memory was taken back; the memory was pinned
        // writable.
        let lent = unsafe { LentBytesMut::from_raw(start, bytes) };
        Loan {
            lent,
            packed: self.packed,
            pinned: self.pinned,
        }
    }
}

/// Memory that can be taken back.
pub trait LoanHandle {
    fn take_back(&self);
}

impl LoanHandle for LentBytes {
    fn take_back(&self) {
        self.take_back();
    }
}

impl LoanHandle for LentBytesMut {
    fn take_back(&self) {
        self.take_back();
    }
}

/// Memory that an operation uses, lent until the loan is dropped.
pub struct Loan<L: LoanHandle> {
    lent: L,
    /// Released after the loan, like `pinned`, because fields are dropped after `drop` has run.
    packed: Option<Box<PackedBuffer>>,
    pinned: Option<PinnedBuffer>,
}

impl<L: LoanHandle> Loan<L> {
    pub fn memory(&self) -> &L {
        &self.lent
    }
}

impl Loan<LentBytesMut> {
    /// Ends the loan of packed elements, and writes the elements to the places where they belong.
    pub fn unpack(&mut self) {
        if let (Some(packed), Some(pinned)) = (self.packed.take(), &self.pinned) {
            self.lent.take_back();
            packed.unpack(pinned);
        }
    }
}

impl<L: LoanHandle> Drop for Loan<L> {
    fn drop(&mut self) {
        self.lent.take_back();
    }
}
