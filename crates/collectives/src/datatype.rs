//! Types of the elements of a buffer.

use std::fmt;
use std::num::NonZeroU32;

/// Type of the elements of a buffer, in the byte order of the host. Buffers need not be aligned to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Datatype {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    /// Two `f32`: real and imaginary part.
    Complex64,
    /// Two `f64`.
    Complex128,
    /// A byte that is a truth value: any value except 0 is true.
    Bool,
    /// Single bytes that are not numbers.
    Bytes,
    /// An `i32` and its `i32` index: C's `struct { int value; int index; }`, as in `MPI_2INT`.
    I32Index,
    /// An `i64`, its `i32` index, and 4 bytes of any content, as in `MPI_LONG_INT`.
    I64Index,
    /// An `f32` and its `i32` index, as in `MPI_FLOAT_INT`.
    F32Index,
    /// An `f64`, its `i32` index, and 4 bytes of any content, as in `MPI_DOUBLE_INT`.
    F64Index,
    /// A record of this many bytes, which is never split. Only user-defined operators interpret its content.
    Record(NonZeroU32),
}

impl Datatype {
    /// Record type with the size of `T`.
    ///
    /// # Panics
    ///
    /// If `T` has no size or more than 4 GiB; in a constant, this is a compile error.
    pub const fn record<T>() -> Self {
        let bytes = size_of::<T>();
        assert!(bytes <= u32::MAX as usize, "a record is at most 4 GiB long");
        match NonZeroU32::new(bytes as u32) {
            Some(bytes) => Datatype::Record(bytes),
            None => panic!("a record has a byte at least"),
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Datatype::I8 | Datatype::U8 | Datatype::Bool | Datatype::Bytes => 1,
            Datatype::I16 | Datatype::U16 => 2,
            Datatype::I32 | Datatype::U32 | Datatype::F32 => 4,
            Datatype::I64 | Datatype::U64 | Datatype::F64 | Datatype::Complex64 => 8,
            Datatype::I32Index | Datatype::F32Index => 8,
            Datatype::Complex128 | Datatype::I64Index | Datatype::F64Index => 16,
            Datatype::Record(bytes) => bytes.get() as usize,
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Datatype::I8 => "i8",
            Datatype::U8 => "u8",
            Datatype::I16 => "i16",
            Datatype::U16 => "u16",
            Datatype::I32 => "i32",
            Datatype::U32 => "u32",
            Datatype::I64 => "i64",
            Datatype::U64 => "u64",
            Datatype::F32 => "f32",
            Datatype::F64 => "f64",
            Datatype::Complex64 => "complex64",
            Datatype::Complex128 => "complex128",
            Datatype::Bool => "bool",
            Datatype::Bytes => "bytes",
            Datatype::I32Index => "i32 with index",
            Datatype::I64Index => "i64 with index",
            Datatype::F32Index => "f32 with index",
            Datatype::F64Index => "f64 with index",
            Datatype::Record(bytes) => return write!(f, "records of {bytes} bytes"),
        };
        f.pad(name)
    }
}
