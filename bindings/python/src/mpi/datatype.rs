//! Datatypes: `MPI.Datatype`, and the meaning of buffer formats.

use hotlease_comm::Datatype as Kind;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::num::NonZeroU32;

/// Type of the elements of a buffer.
#[pyclass(frozen, eq, hash, module = "hotlease.MPI", from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Datatype {
    pub kind: Kind,
    name: String,
    code: Option<String>,
}

impl Datatype {
    /// Datatype that is passed to a function of the program.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            name: String::new(),
            code: code_of(kind).map(Into::into),
        }
    }
}

#[pymethods]
impl Datatype {
    /// Datatype of this name, for elements of this format (of `struct`, or a numpy code such as "f8").
    #[new]
    #[pyo3(signature = (name, code, size=None))]
    fn new(name: &str, code: &str, size: Option<u32>) -> PyResult<Self> {
        let kind = match size {
            Some(size) => record(size as usize),
            None => of_code(code),
        };
        let kind = kind.ok_or_else(|| PyValueError::new_err(format!("no datatype has the code {code:?}")))?;
        Ok(Self {
            kind,
            name: name.into(),
            code: (!code.is_empty()).then(|| code.into()),
        })
    }

    /// Bytes of an element.
    fn Get_size(&self) -> usize {
        self.kind.size()
    }

    /// Lower bound, which is 0, and bytes from one element to the next.
    fn Get_extent(&self) -> (usize, usize) {
        (0, self.kind.size())
    }

    fn Get_name(&self) -> &str {
        &self.name
    }

    /// Datatype for records of `count` elements of this type.
    fn Create_contiguous(&self, count: u32) -> PyResult<Self> {
        let size = count.checked_mul(self.kind.size() as u32).and_then(NonZeroU32::new);
        let size = size.ok_or_else(|| PyValueError::new_err(format!("{count} elements make no record")))?;
        Ok(Self {
            kind: if count == 1 { self.kind } else { Kind::Record(size) },
            name: String::new(),
            code: None,
        })
    }

    /// Does nothing: a datatype is ready when it is made. For programs that call it.
    fn Commit<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    fn Free(&self) {}

    #[getter]
    fn size(&self) -> usize {
        self.kind.size()
    }

    #[getter]
    fn extent(&self) -> usize {
        self.kind.size()
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn is_predefined(&self) -> bool {
        !self.name.is_empty()
    }

    /// Code of the type in `struct` and numpy.
    fn tocode(&self) -> PyResult<&str> {
        self.code
            .as_deref()
            .ok_or_else(|| PyValueError::new_err("this datatype has no code"))
    }

    #[staticmethod]
    fn fromcode(code: &str) -> PyResult<Self> {
        Self::new("", code, None)
    }

    #[getter]
    fn typechar(&self) -> Option<&str> {
        self.code.as_deref()
    }

    fn __getattr__(&self, name: &str) -> PyResult<()> {
        Err(PyAttributeError::new_err(if name.starts_with("Create_") {
            format!(
                "hotlease has no Datatype.{name}: send a contiguous copy (numpy.ascontiguousarray), or pickled objects by the \
                 lower-case calls"
            )
        } else {
            format!("'Datatype' has no attribute {name:?}")
        }))
    }

    fn __repr__(&self) -> String {
        match self.name.as_str() {
            "" => format!("MPI.Datatype({})", self.kind),
            name => name.replacen('_', ".", 1),
        }
    }
}

/// Reads a type from an `MPI.Datatype` or a code such as "d".
pub fn named(object: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if let Ok(datatype) = object.cast::<Datatype>() {
        return Ok(datatype.get().kind);
    }
    let text = object.cast::<PyString>().ok();
    let kind = text.and_then(|text| of_code(text.to_str().ok()?));
    kind.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{object:?} is no datatype: MPI.DOUBLE, MPI.INT, ..., or a code of numpy's such as \"d\""
        ))
    })
}

/// Whether the object names a type.
pub fn is_type(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<Datatype>() || object.is_instance_of::<PyString>()
}

fn record(size: usize) -> Option<Kind> {
    NonZeroU32::new(u32::try_from(size).ok()?).map(Kind::Record)
}

/// Type of one code of `struct` or numpy (its `char`, or kind and size).
fn of_code(code: &str) -> Option<Kind> {
    let kind = match code {
        "b" | "c" | "i1" => Kind::I8,
        "B" | "u1" => Kind::U8,
        "h" | "i2" => Kind::I16,
        "H" | "u2" => Kind::U16,
        "i" | "i4" => Kind::I32,
        "I" | "u4" => Kind::U32,
        "l" | "q" | "p" | "n" | "i8" => Kind::I64,
        "L" | "Q" | "P" | "N" | "u8" => Kind::U64,
        "f" | "f4" => Kind::F32,
        "d" | "f8" => Kind::F64,
        "F" | "Zf" | "c8" => Kind::Complex64,
        "D" | "Zd" | "c16" => Kind::Complex128,
        "?" | "b1" => Kind::Bool,
        "V" | "x" => Kind::Bytes,
        "S" | "S1" => Kind::I8,
        "ii" => Kind::I32Index,
        "li" => Kind::I64Index,
        "fi" => Kind::F32Index,
        "di" => Kind::F64Index,
        "e" | "f2" => return record(2),
        "w" => return record(4),
        "g" => return record(16),
        "G" | "Zg" => return record(32),
        _ => return None,
    };
    Some(kind)
}

fn code_of(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::I8 => "b",
        Kind::U8 | Kind::Bytes => "B",
        Kind::I16 => "h",
        Kind::U16 => "H",
        Kind::I32 => "i",
        Kind::U32 => "I",
        Kind::I64 => "l",
        Kind::U64 => "L",
        Kind::F32 => "f",
        Kind::F64 => "d",
        Kind::Complex64 => "F",
        Kind::Complex128 => "D",
        Kind::Bool => "?",
        _ => return None,
    })
}

/// Type of the elements of a buffer; None if they are objects, or in the other byte order. Elements that are not
/// numbers are records.
pub fn of_format(format: &[u8], size: usize) -> Option<Kind> {
    let (order, rest) = match format {
        [order @ (b'@' | b'=' | b'<' | b'>' | b'!'), rest @ ..] => (*order, rest),
        _ => (b'@', format),
    };
    if matches!(order, b'>' | b'!') && size > 1 {
        return None;
    }
    let kind = match (rest, size) {
        (b"?", 1) => Kind::Bool,
        (b"c" | b"b", 1) => Kind::I8,
        (b"B", 1) => Kind::U8,
        (b"h" | b"i" | b"l" | b"q" | b"n", 2) => Kind::I16,
        (b"h" | b"i" | b"l" | b"q" | b"n", 4) => Kind::I32,
        (b"h" | b"i" | b"l" | b"q" | b"n", 8) => Kind::I64,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => Kind::U16,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => Kind::U32,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => Kind::U64,
        (b"f", 4) => Kind::F32,
        (b"d" | b"g", 8) => Kind::F64,
        (b"Zf" | b"F", 8) => Kind::Complex64,
        (b"Zd" | b"D", 16) => Kind::Complex128,
        // References to objects, also as a field. A format that has an `O` in a field name is rejected, too; only a
        // copy helps there.
        _ if rest.contains(&b'O') => return None,
        _ if rest.contains(&b'>') && size > 1 => return None,
        _ => return record(size),
    };
    Some(kind)
}
