//! Buffer arguments of a call, in mpi4py's forms:
//!
//! | argument | meaning |
//! |---|---|
//! | `array` | all of it, of its own type |
//! | `[array, MPI.DOUBLE]`, `[array, "d"]` | all of it, as if it were of this type |
//! | `[array, count]`, `[array, count, type]` | this many elements |
//! | `[array, (count, displacement), type]`, `[array, count, displacement, type]` | this many elements from the displacement on |
//! | `[array, counts, displacements, type]`, `[array, (counts, displacements), type]` | a block for each rank |
//! | `[array, counts]` | a block for each rank, one after the other |
//! | `None` | nothing |
//! | `MPI.IN_PLACE` | the caller's data is in the receive buffer |

use super::datatype;
use super::pinned_buffer::{BufferAccess, PinnedBuffer};
use hotlease_comm::{Blocks, Datatype as Kind, LentBytes, LentBytesMut};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// Memory of one operation.
pub struct BufferPart {
    pinned: Option<PinnedBuffer>,
    /// Offset of the first element, in bytes.
    offset: usize,
    /// Number of elements; of blocks, in each.
    pub count: usize,
    pub kind: Kind,
}

/// A block of memory for each rank.
pub struct BufferBlocks {
    pub part: BufferPart,
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

/// A parsed buffer argument.
struct BufferSpec<'py> {
    memory: Option<Bound<'py, PyAny>>,
    count: Option<Bound<'py, PyAny>>,
    displacement: Option<Bound<'py, PyAny>>,
    kind: Option<Kind>,
}

impl<'py> BufferSpec<'py> {
    fn whole(memory: Option<Bound<'py, PyAny>>) -> Self {
        Self {
            memory,
            count: None,
            displacement: None,
            kind: None,
        }
    }

    /// `is_pair`: whether the object in the place of a count is a pair of count and displacement.
    fn of(spec: &Bound<'py, PyAny>, what: &str, is_pair: impl Fn(&Bound<'py, PyAny>) -> bool) -> PyResult<Self> {
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
            [kind] if datatype::is_type(kind) => said.kind = Some(datatype::named(kind)?),
            [count] => counts = given(count),
            [count, kind] => {
                counts = given(count);
                said.kind = given(kind).map(|kind| datatype::named(&kind)).transpose()?;
            }
            [count, displacement, kind] => {
                counts = given(count);
                said.displacement = given(displacement);
                said.kind = given(kind).map(|kind| datatype::named(&kind)).transpose()?;
            }
            _ => return Err(wrong_length(what)),
        }
        if let Some(pair) = counts.as_ref().filter(|counts| is_pair(counts)) {
            if pair.len()? != 2 {
                return Err(PyValueError::new_err(format!(
                    "{what}: a count and a displacement, or those of all ranks, are two; not {}",
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

    /// Pins all of the memory; also returns the type of its elements.
    fn pin(&self, access: BufferAccess, what: &str) -> PyResult<(Option<PinnedBuffer>, Kind)> {
        let Some(memory) = &self.memory else {
            return Ok((None, self.kind.unwrap_or(Kind::Bytes)));
        };
        let pinned = PinnedBuffer::of(memory, access, what)?;
        let own = || datatype::of_format(pinned.format(), pinned.element_bytes());
        let Some(kind) = self.kind.or_else(own) else {
            let format = String::from_utf8_lossy(pinned.format()).into_owned();
            let kind = memory.get_type().qualname()?;
            return Err(PyTypeError::new_err(format!(
                "{what}: elements of the format {format:?} of this {kind} are references to objects, or not in the byte order of \
                 this machine; convert it (array.astype(float)), send it by a lower-case call, or say what it is: \
                 [array, MPI.BYTE]"
            )));
        };
        Ok((Some(pinned), kind))
    }
}

fn wrong_length(what: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{what}: [array, type], [array, count, type] or [array, count, displacement, type]"
    ))
}

fn index(number: &Bound<'_, PyAny>, name: &str, what: &str) -> PyResult<usize> {
    number.extract().map_err(|_| {
        let number = number.repr().map_or_else(|_| "?".into(), |text| text.to_string());
        PyValueError::new_err(format!(
            "{what}: a {name} of {number}: it is a number of elements, 0 or more"
        ))
    })
}

/// Number of elements in some memory.
fn elements(pinned: Option<&PinnedBuffer>, kind: Kind, what: &str) -> PyResult<usize> {
    let (bytes, size) = (pinned.map_or(0, PinnedBuffer::bytes), kind.size());
    if bytes.is_multiple_of(size) {
        return Ok(bytes / size);
    }
    Err(PyValueError::new_err(format!(
        "{what} has {bytes} bytes, which is no multiple of the {size} bytes of {kind}"
    )))
}

impl BufferPart {
    /// No memory.
    pub const fn none() -> Self {
        Self {
            pinned: None,
            offset: 0,
            count: 0,
            kind: Kind::Bytes,
        }
    }

    /// Reads one run of elements.
    pub fn of(spec: &Bound<'_, PyAny>, access: BufferAccess, what: &str) -> PyResult<Self> {
        Self::of_blocks(spec, access, 1, what)
    }

    /// Reads as many runs as there are ranks, of one length, one after the other.
    pub fn of_blocks(spec: &Bound<'_, PyAny>, access: BufferAccess, ranks: usize, what: &str) -> PyResult<Self> {
        let said = BufferSpec::of(spec, what, |count| {
            count.is_instance_of::<PyTuple>() || count.is_instance_of::<PyList>()
        })?;
        let (pinned, kind) = said.pin(access, what)?;
        let all = match said.count {
            // If a count is given, a remainder at the end is no error.
            Some(_) => pinned.as_ref().map_or(0, PinnedBuffer::bytes) / kind.size(),
            None => elements(pinned.as_ref(), kind, what)?,
        };
        let displacement = said
            .displacement
            .map_or(Ok(0), |given| index(&given, "displacement", what))?;
        let Some(room) = all.checked_sub(displacement) else {
            return Err(PyValueError::new_err(format!(
                "{what} has {all} elements, and is to be used from {displacement} on"
            )));
        };
        let count = match said.count {
            Some(given) => index(&given, "count", what)?,
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
            pinned,
            offset: displacement * kind.size(),
            count,
            kind,
        })
    }

    /// Address of the first element, to see whether two parts are the same.
    pub fn address(&self) -> Option<usize> {
        self.pinned.as_ref().map(|pinned| pinned.start() as usize + self.offset)
    }

    /// Bytes of one run.
    pub fn bytes(&self) -> usize {
        self.count * self.kind.size()
    }

    /// Counts the part in bytes.
    pub fn as_bytes(&mut self) {
        (self.count, self.kind) = (self.bytes(), Kind::Bytes);
    }

    /// Bytes of the part, if it is one run.
    pub fn slice(&self) -> &[u8] {
        match &self.pinned {
            // SAFETY: this many bytes were counted there, which stay as long as they are pinned.
            Some(pinned) if self.count > 0 => unsafe {
                std::slice::from_raw_parts(pinned.start().add(self.offset), self.bytes())
            },
            _ => &[],
        }
    }

    fn start(&self, bytes: usize) -> *mut u8 {
        match &self.pinned {
            Some(pinned) if bytes > 0 => {
                assert!(self.offset + bytes <= pinned.bytes(), "elements were counted");
                pinned.start().wrapping_add(self.offset)
            }
            _ => {
                assert_eq!(bytes, 0, "nothing has no bytes");
                std::ptr::NonNull::dangling().as_ptr()
            }
        }
    }

    /// Lends the first bytes for reading, until the loan is dropped.
    pub fn lend(self, bytes: usize) -> Loan<LentBytes> {
        let start = self.start(bytes);
        // SAFETY: the loan holds the pin, and releases it after the memory was taken back.
        let lent = unsafe { LentBytes::from_raw(start, bytes) };
        Loan {
            lent,
            _pinned: self.pinned,
        }
    }

    /// Lends the first bytes for writing, until the loan is dropped.
    pub fn lend_mut(self, bytes: usize) -> Loan<LentBytesMut> {
        let start = self.start(bytes);
        // SAFETY: the loan holds the pin, and releases it after the memory was taken back; it was pinned writable.
        let lent = unsafe { LentBytesMut::from_raw(start, bytes) };
        Loan {
            lent,
            _pinned: self.pinned,
        }
    }
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

    /// Takes the memory; the blocks stay.
    pub fn take_part(&mut self) -> BufferPart {
        std::mem::replace(&mut self.part, BufferPart::none())
    }

    /// A block for each rank.
    pub fn of(spec: &Bound<'_, PyAny>, access: BufferAccess, ranks: usize, what: &str) -> PyResult<Self> {
        let said = BufferSpec::of(spec, what, |count| count.is_instance_of::<PyTuple>())?;
        let (pinned, kind) = said.pin(access, what)?;
        let room = pinned.as_ref().map_or(0, PinnedBuffer::bytes) / kind.size();
        let counts = match &said.count {
            None => {
                let all = elements(pinned.as_ref(), kind, what)?;
                (0..ranks)
                    .map(|rank| all / ranks + usize::from(rank < all % ranks))
                    .collect()
            }
            Some(given) => read_each(given, "count", ranks, what)?.unwrap_or_else(|count| vec![count; ranks]),
        };
        let displacements: Vec<usize> = match &said.displacement {
            None => Blocks::consecutive_starts(&counts),
            Some(given) => read_each(given, "displacement", ranks, what)?
                .unwrap_or_else(|apart| (0..ranks).map(|rank| rank.saturating_mul(apart)).collect()),
        };
        for (rank, (count, place)) in counts.iter().zip(&displacements).enumerate() {
            if *count > 0 && place.checked_add(*count).is_none_or(|end| end > room) {
                return Err(PyValueError::new_err(format!(
                    "{what} has {room} elements, and the block of rank {rank} is {count} from {place} on"
                )));
            }
        }
        let part = BufferPart {
            pinned,
            offset: 0,
            count: 0,
            kind,
        };
        Ok(Self {
            part,
            counts,
            displacements,
        })
    }

    /// The blocks in the library's form.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks::Each {
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }

    /// Counts the blocks in bytes.
    pub fn into_bytes(mut self) -> Self {
        let size = self.part.kind.size();
        for number in self.counts.iter_mut().chain(&mut self.displacements) {
            *number = number.saturating_mul(size);
        }
        self.part.kind = Kind::Bytes;
        self
    }
}

/// Reads one number for each rank, or (`Err`) one for all.
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

/// Memory that an operation uses, lent until this is dropped.
pub struct Loan<L: LoanHandle> {
    lent: L,
    /// Released after the loan: fields are dropped after `drop`.
    _pinned: Option<PinnedBuffer>,
}

impl<L: LoanHandle> Loan<L> {
    pub fn memory(&self) -> &L {
        &self.lent
    }
}

impl<L: LoanHandle> Drop for Loan<L> {
    fn drop(&mut self) {
        self.lent.take_back();
    }
}
