//! Types of the elements of a buffer: named by a datatype, by a numpy code, or by the buffer itself.

use super::datatype::Datatype;
use super::layout::ElementLayout;
use hotlease_comm::Datatype as Kind;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Type of the elements of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ElementType {
    /// Type for collectives. For a derived datatype: the type of its basic elements if all have the same type, else
    /// bytes.
    pub kind: Kind,
    /// Layout of a derived datatype; `None` if the elements are of `kind`.
    layout: Option<Arc<ElementLayout>>,
    /// Numpy's code of the type by which numpy reduces the elements, if the communication library cannot reduce them.
    /// For pairs of a value and its index: both codes, with `=` before them if the pairs are packed.
    pub reduced_as: Option<&'static str>,
}

impl From<Kind> for ElementType {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            layout: None,
            reduced_as: None,
        }
    }
}

impl ElementType {
    /// Makes a derived type of basic elements of the type `kind`, with this layout.
    pub fn derived(kind: Kind, layout: ElementLayout) -> Self {
        Self {
            layout: Some(Arc::new(layout)),
            ..kind.into()
        }
    }

    fn reduced_as(size: usize, code: &'static str) -> Option<Self> {
        Some(Self {
            reduced_as: Some(code),
            ..record(size)?
        })
    }

    /// Layout of elements that have to be packed, because they have gaps; `None` for other elements.
    pub fn gaps(&self) -> Option<&Arc<ElementLayout>> {
        self.layout.as_ref().filter(|layout| !layout.is_dense())
    }

    pub fn layout(&self) -> Cow<'_, ElementLayout> {
        match &self.layout {
            Some(layout) => Cow::Borrowed(layout),
            None => Cow::Owned(ElementLayout::basic(self.kind)),
        }
    }

    /// Bytes from one element to the next.
    pub fn extent(&self) -> i64 {
        self.layout
            .as_ref()
            .map_or_else(|| self.kind.size() as i64, |layout| layout.extent)
    }

    /// Bytes of data of an element.
    pub fn size(&self) -> usize {
        self.layout
            .as_ref()
            .map_or_else(|| self.kind.size(), |layout| layout.size)
    }

    /// Number of elements of `kind` in one element of this type.
    pub fn kinds(&self) -> usize {
        self.size() / self.kind.size()
    }

    /// Code of a pair of a value and its index; empty for other types.
    fn pair(&self) -> &'static str {
        match self.kind {
            _ if self.layout.is_some() => "",
            Kind::I32Index => "ii",
            Kind::I64Index => "li",
            Kind::F32Index => "fi",
            Kind::F64Index => "di",
            _ => self.reduced_as.filter(|code| code.ends_with('i')).unwrap_or(""),
        }
    }

    /// Chooses between the type that a program names and the buffer's own type. The named type is chosen, with one
    /// exception: a packed array of pairs keeps its own type if the program names C's type of such pairs, which may
    /// have gaps.
    pub fn chosen(named: Option<Self>, own: Option<Self>) -> Option<Self> {
        match (named, own) {
            (Some(named), Some(own)) if own.pair().strip_prefix('=') == Some(named.pair()) => Some(own),
            (named, own) => named.or(own),
        }
    }
}

/// Reads a type from an `MPI.Datatype` or a code such as "d".
pub fn element_type(object: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    if let Ok(datatype) = object.cast::<Datatype>() {
        return datatype.get().element().cloned();
    }
    let text = object.cast::<PyString>().ok();
    let element = text.and_then(|text| of_code(text.to_str().ok()?));
    element.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{object:?} is no datatype: MPI.DOUBLE, MPI.INT, ..., or a code of numpy's such as \"d\""
        ))
    })
}

/// Whether the object names a type.
pub fn is_type(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<Datatype>() || object.is_instance_of::<PyString>()
}

/// Type of records of this many bytes; `None` for 0 bytes, or 4 GiB and more.
pub fn record(size: usize) -> Option<ElementType> {
    NonZeroU32::new(u32::try_from(size).ok()?).map(|size| Kind::Record(size).into())
}

/// Type of one code of `struct`, or of numpy (numpy's `char`, or kind and size).
pub fn of_code(code: &str) -> Option<ElementType> {
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
        "e" | "f2" => return ElementType::reduced_as(2, "e"),
        "w" => return record(4),
        "g" => return ElementType::reduced_as(16, "g"),
        "G" | "Zg" => return ElementType::reduced_as(32, "G"),
        "hi" => return ElementType::reduced_as(8, "hi"),
        "gi" => return ElementType::reduced_as(32, "gi"),
        _ => return None,
    };
    Some(kind.into())
}

/// Code of a type in `struct` and numpy; `None` if the type has no code.
pub fn code_of(kind: Kind) -> Option<&'static str> {
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

/// Type of the elements of a buffer; `None` if they are objects, or not in the byte order of this host. Elements that
/// are not numbers are records.
pub fn of_format(format: &[u8], size: usize) -> Option<ElementType> {
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
        // References to objects, also as a field. A format with an `O` in the name of a field is rejected, too; the
        // program then has to copy the array.
        _ if rest.contains(&b'O') => return None,
        _ if rest.contains(&b'>') && size > 1 => return None,
        (b"e", 2) => return ElementType::reduced_as(2, "e"),
        (b"g", 16) => return ElementType::reduced_as(16, "g"),
        (b"Zg" | b"G", 32) => return ElementType::reduced_as(32, "G"),
        _ => return pair_of(rest, size).or_else(|| record(size)),
    };
    Some(kind.into())
}

/// Type of a record of a value and its index, in C's layout or packed.
fn pair_of(format: &[u8], size: usize) -> Option<ElementType> {
    let fields = format.strip_prefix(b"T{")?.strip_suffix(b"}")?;
    // Leaves out byte orders, padding, and the names of the fields, which are between colons.
    let parts = fields.split(|byte| *byte == b':').step_by(2).flatten();
    let is_type = |byte: &u8| !byte.is_ascii_digit() && !b"=<@^x".contains(byte);
    let types: Vec<u8> = parts.copied().filter(is_type).collect();
    let kind = match (types.as_slice(), size) {
        (b"ii", 8) => Kind::I32Index,
        (b"li" | b"qi", 16) => Kind::I64Index,
        (b"fi", 8) => Kind::F32Index,
        (b"di", 16) => Kind::F64Index,
        (b"li" | b"qi", 12) => return ElementType::reduced_as(size, "=li"),
        (b"di", 12) => return ElementType::reduced_as(size, "=di"),
        (b"hi", 8) => return ElementType::reduced_as(size, "hi"),
        (b"hi", 6) => return ElementType::reduced_as(size, "=hi"),
        (b"gi", 32) => return ElementType::reduced_as(size, "gi"),
        (b"gi", 20) => return ElementType::reduced_as(size, "=gi"),
        _ => return None,
    };
    Some(kind.into())
}
