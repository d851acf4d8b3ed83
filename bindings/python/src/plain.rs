//! Encoding of small plain values: `None`, `bool`, `int`, `float`, `str`, `bytes`, and tuples of these. A pickle of
//! such a value costs several times as much, and runs code when it is read. `hotlease_wire::task::plain` defines the
//! bytes.

use hotlease_wire::task::FormatError;
use hotlease_wire::task::plain::{self, DEPTH_MAX, PlainItem, tag};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

/// Replacement for a value that is not plain.
pub enum Replacement<'py> {
    /// The result of another task, with this number.
    Result(u16),
    /// Another value.
    Value(Bound<'py, PyAny>),
}

/// Appends the value, if it is plain and the buffer stays within `limit` bytes. Otherwise returns `false`, and the
/// bytes appended so far are meaningless.
pub fn encode(value: &Bound<'_, PyAny>, into: &mut Vec<u8>, limit: usize) -> bool {
    append(value, into, limit, DEPTH_MAX, &mut |_| None)
}

/// Appends the value like [`encode`]; `instead` may replace values that are not plain.
pub fn encode_with<'py>(
    value: &Bound<'py, PyAny>,
    into: &mut Vec<u8>,
    limit: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Replacement<'py>>,
) -> bool {
    append(value, into, limit, DEPTH_MAX, instead)
}

/// Appends a tuple of these values, like [`encode_with`].
pub fn encode_tuple<'py>(
    values: &Bound<'py, PyTuple>,
    into: &mut Vec<u8>,
    limit: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Replacement<'py>>,
) -> bool {
    append_tuple(values, into, limit, DEPTH_MAX, instead)
}

fn append_tuple<'py>(
    values: &Bound<'py, PyTuple>,
    into: &mut Vec<u8>,
    limit: usize,
    depth: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Replacement<'py>>,
) -> bool {
    if depth == 0 {
        return false;
    }
    append_length(tag::TUPLE, values.len(), into)
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
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<Replacement<'py>>,
) -> bool {
    if value.is_none() {
        into.push(tag::NONE);
    } else if let Ok(value) = value.cast_exact::<PyInt>() {
        let mut overflow = 0;
        // SAFETY: an int, as just checked; the call can only fail by overflow, which sets no error.
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
        // Text with lone surrogates is not plain.
        let Ok(text) = value.to_str() else { return false };
        return text.len() <= limit && append_length(tag::STR, text.len(), into) && push(text.as_bytes(), into, limit);
    } else if let Ok(value) = value.cast_exact::<PyFloat>() {
        into.push(tag::FLOAT);
        into.extend(value.value().to_le_bytes());
    } else if let Ok(value) = value.cast_exact::<PyBool>() {
        into.push(if value.is_true() { tag::TRUE } else { tag::FALSE });
    } else if let Ok(value) = value.cast_exact::<PyBytes>() {
        let bytes = value.as_bytes();
        return bytes.len() <= limit && append_length(tag::BYTES, bytes.len(), into) && push(bytes, into, limit);
    } else if let Ok(value) = value.cast_exact::<PyTuple>() {
        return append_tuple(value, into, limit, depth, instead);
    } else if depth > 0 {
        match instead(value) {
            Some(Replacement::Result(number)) => {
                into.push(tag::RESULT);
                into.extend(number.to_le_bytes());
            }
            Some(Replacement::Value(value)) => return append(&value, into, limit, depth - 1, instead),
            None => return false,
        }
    } else {
        return false;
    }
    into.len() <= limit
}

fn append_length(tag: u8, length: usize, into: &mut Vec<u8>) -> bool {
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

/// Reader of values, one after the other.
pub struct ValueReader<'a> {
    items: plain::PlainReader<'a>,
    /// Results that values may refer to by number.
    results: &'a [Py<PyAny>],
}

impl<'a> ValueReader<'a> {
    /// Reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::with_results(bytes, &[])
    }

    /// Reader of these bytes, which may refer to results of other tasks.
    pub fn with_results(bytes: &'a [u8], results: &'a [Py<PyAny>]) -> Self {
        let items = plain::PlainReader::new(bytes);
        Self { items, results }
    }

    /// Whether no value is left.
    pub fn is_at_end(&self) -> bool {
        self.items.is_at_end()
    }

    /// Reads the next value.
    pub fn value<'py>(&mut self, py: Python<'py>) -> Result<Bound<'py, PyAny>, FormatError> {
        self.read(py, DEPTH_MAX)
    }

    fn read<'py>(&mut self, py: Python<'py>, depth: usize) -> Result<Bound<'py, PyAny>, FormatError> {
        Ok(match self.items.item(depth)? {
            PlainItem::None => py.None().into_bound(py),
            PlainItem::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
            PlainItem::Int(value) => int(py, value),
            PlainItem::Float(value) => PyFloat::new(py, value).into_any(),
            PlainItem::Str(text) => PyString::new(py, text).into_any(),
            PlainItem::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            PlainItem::Tuple(length) => {
                let values = (0..length).map(|_| self.read(py, depth - 1));
                let values = values.collect::<Result<Vec<_>, _>>()?;
                PyTuple::new(py, values).map_err(|_| FormatError::Plain)?.into_any()
            }
            PlainItem::Result(number) => {
                let result = self.results.get(usize::from(number)).ok_or(FormatError::Plain)?;
                result.bind(py).clone()
            }
        })
    }
}

fn int(py: Python<'_>, number: i64) -> Bound<'_, PyAny> {
    let Ok(int) = number.into_pyobject(py);
    int.into_any()
}
