//! The coding of small plain values: `None`, `bool`, `int`, `float`, `str`, `bytes`, and tuples of these. For them a pickle
//! costs several times as much (and on the way back, runs code).

use crate::format::FormatError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

/// Tuples in tuples.
const DEPTH_MAX: usize = 16;

mod tag {
    pub const NONE: u8 = 0;
    pub const FALSE: u8 = 1;
    pub const TRUE: u8 = 2;
    pub const INT64: u8 = 3;
    pub const INT8: u8 = 4;
    pub const FLOAT: u8 = 5;
    pub const STR: u8 = 6;
    pub const BYTES: u8 = 7;
    pub const TUPLE: u8 = 8;
    /// Added to the three before: its length has one byte.
    pub const SHORT: u8 = 3;
    /// The result of another task.
    pub const RESULT: u8 = 12;
}

/// What stands in the place of a value that is not plain.
pub enum Instead<'py> {
    /// The result of another task, of this number.
    Result(u16),
    /// Another value.
    Value(Bound<'py, PyAny>),
}

/// Appends the value, if it is plain and what is appended stays below `limit` bytes. Otherwise what was appended so far is
/// rubbish.
pub fn encode(value: &Bound<'_, PyAny>, into: &mut Vec<u8>, limit: usize) -> bool {
    append(value, into, limit, DEPTH_MAX, &mut |_| None)
}

/// The same, with something else in the place of some values that are not plain.
pub fn encode_with<'py>(
    value: &Bound<'py, PyAny>,
    into: &mut Vec<u8>,
    limit: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Instead<'py>>,
) -> bool {
    append(value, into, limit, DEPTH_MAX, instead)
}

/// Appends a tuple of these values, as [`encode_with`] does.
pub fn encode_tuple<'py>(
    values: &Bound<'py, PyTuple>,
    into: &mut Vec<u8>,
    limit: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Instead<'py>>,
) -> bool {
    append_tuple(values, into, limit, DEPTH_MAX, instead)
}

fn append_tuple<'py>(
    values: &Bound<'py, PyTuple>,
    into: &mut Vec<u8>,
    limit: usize,
    depth: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Instead<'py>>,
) -> bool {
    if depth == 0 {
        return false;
    }
    sized(tag::TUPLE, values.len(), into)
        && values
            .iter_borrowed()
            .all(|value| append(&value, into, limit, depth - 1, instead))
        && into.len() <= limit
}

fn append<'py>(
    value: &Bound<'py, PyAny>,
    into: &mut Vec<u8>,
    limit: usize,
    depth: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Instead<'py>>,
) -> bool {
    if value.is_none() {
        into.push(tag::NONE);
    } else if let Ok(value) = value.cast_exact::<PyInt>() {
        let mut overflow = 0;
        // SAFETY: an int, as just seen; it cannot fail then but by overflow, which sets no error.
        let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &mut overflow) };
        if overflow != 0 {
            return false;
        }
        match i8::try_from(number) {
            Ok(small) => into.extend([tag::INT8, small as u8]),
            Err(_) => {
                into.push(tag::INT64);
                into.extend(number.to_le_bytes());
            }
        }
    } else if let Ok(value) = value.cast_exact::<PyString>() {
        // Not of lone surrogates.
        let Ok(text) = value.to_str() else { return false };
        return text.len() <= limit
            && sized(tag::STR, text.len(), into)
            && push(text.as_bytes(), into, limit);
    } else if let Ok(value) = value.cast_exact::<PyFloat>() {
        into.push(tag::FLOAT);
        into.extend(value.value().to_le_bytes());
    } else if let Ok(value) = value.cast_exact::<PyBool>() {
        into.push(if value.is_true() { tag::TRUE } else { tag::FALSE });
    } else if let Ok(value) = value.cast_exact::<PyBytes>() {
        let bytes = value.as_bytes();
        return bytes.len() <= limit && sized(tag::BYTES, bytes.len(), into) && push(bytes, into, limit);
    } else if let Ok(value) = value.cast_exact::<PyTuple>() {
        return append_tuple(value, into, limit, depth, instead);
    } else if depth > 0 {
        match instead(value) {
            Some(Instead::Result(number)) => {
                into.push(tag::RESULT);
                into.extend(number.to_le_bytes());
            }
            Some(Instead::Value(value)) => return append(&value, into, limit, depth - 1, instead),
            None => return false,
        }
    } else {
        return false;
    }
    into.len() <= limit
}

fn sized(tag: u8, length: usize, into: &mut Vec<u8>) -> bool {
    match u8::try_from(length) {
        Ok(length) => into.extend([tag + tag::SHORT, length]),
        Err(_) => {
            let Ok(length) = u32::try_from(length) else {
                return false;
            };
            into.push(tag);
            into.extend(length.to_le_bytes());
        }
    }
    true
}

fn push(bytes: &[u8], into: &mut Vec<u8>, limit: usize) -> bool {
    into.extend_from_slice(bytes);
    into.len() <= limit
}

/// Reads values one after the other.
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// What values may name by number.
    results: &'a [Py<PyAny>],
}

impl<'a> Reader<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, results: &[] }
    }

    /// Of these bytes, which may name results of other tasks.
    pub fn with_results(bytes: &'a [u8], results: &'a [Py<PyAny>]) -> Self {
        Self { bytes, results }
    }

    /// Whether nothing is left.
    pub fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next value.
    pub fn value<'py>(&mut self, py: Python<'py>) -> Result<Bound<'py, PyAny>, FormatError> {
        self.read(py, DEPTH_MAX)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.bytes.split_at_checked(bytes).ok_or(FormatError::Plain)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(FormatError::Plain)?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn length(&mut self, short: bool) -> Result<usize, FormatError> {
        Ok(match short {
            true => self.array::<1>()?[0].into(),
            false => u32::from_le_bytes(self.array()?) as usize,
        })
    }

    fn read<'py>(&mut self, py: Python<'py>, depth: usize) -> Result<Bound<'py, PyAny>, FormatError> {
        let [tag] = self.array()?;
        if tag == tag::RESULT {
            let number = usize::from(u16::from_le_bytes(self.array()?));
            let result = self.results.get(number).ok_or(FormatError::Plain)?;
            return Ok(result.bind(py).clone());
        }
        let short = tag > tag::TUPLE;
        Ok(match if short { tag - tag::SHORT } else { tag } {
            tag::NONE => py.None().into_bound(py),
            tag::FALSE => PyBool::new(py, false).to_owned().into_any(),
            tag::TRUE => PyBool::new(py, true).to_owned().into_any(),
            tag::INT64 => int(py, i64::from_le_bytes(self.array()?)),
            tag::INT8 => int(py, i8::from_le_bytes(self.array()?).into()),
            tag::FLOAT => PyFloat::new(py, f64::from_le_bytes(self.array()?)).into_any(),
            tag::STR => {
                let length = self.length(short)?;
                let text = std::str::from_utf8(self.take(length)?).map_err(|_| FormatError::Text)?;
                PyString::new(py, text).into_any()
            }
            tag::BYTES => {
                let length = self.length(short)?;
                PyBytes::new(py, self.take(length)?).into_any()
            }
            tag::TUPLE if depth > 0 => {
                let length = self.length(short)?;
                // Each value has a byte at least.
                if length > self.bytes.len() {
                    return Err(FormatError::Plain);
                }
                let values = (0..length).map(|_| self.read(py, depth - 1));
                let values = values.collect::<Result<Vec<_>, _>>()?;
                PyTuple::new(py, values)
                    .map_err(|_| FormatError::Plain)?
                    .into_any()
            }
            _ => return Err(FormatError::Plain),
        })
    }
}

fn int(py: Python<'_>, number: i64) -> Bound<'_, PyAny> {
    let Ok(int) = number.into_pyobject(py);
    int.into_any()
}
