//! Elements of typed calls: numbers, truth values, and plain records of the user.

use crate::datatype::Datatype;
use bytemuck::{NoUninit, Pod};

/// Elements for which any bytes are a valid value: numbers, complex numbers as `[f32; 2]` and `[f64; 2]`, and types
/// that users declare.
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use hotlease_collectives::{Datatype, Plain};
///
/// // Like `MPI_DOUBLE_INT`: a value and its index, for `Operator::MinLoc` and `Operator::MaxLoc`.
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Nearest { distance: f64, index: i32, unused: u32 }
/// impl Plain for Nearest { const DATATYPE: Datatype = Datatype::F64Index; }
///
/// // A record that only the user's own operators understand.
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Pixel { red: u8, green: u8, blue: u8 }
/// impl Plain for Pixel { const DATATYPE: Datatype = Datatype::record::<Pixel>(); }
/// ```
pub trait Plain: Pod + Send + Sync {
    /// Datatype of these elements in buffers. It must have the size of the type: otherwise code that uses the type
    /// does not compile.
    const DATATYPE: Datatype;
}

macro_rules! plain {
    ($($type:ty: $datatype:ident),* $(,)?) => {
        $(
            impl Plain for $type {
                const DATATYPE: Datatype = Datatype::$datatype;
            }
        )*
    };
}

plain! {
    i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64, f32: F32, f64: F64,
    [f32; 2]: Complex64, [f64; 2]: Complex128,
}

/// Elements that typed calls accept: all [`Plain`] types and `bool`. A `bool` is received into a copy, because not
/// every byte is a valid `bool`.
pub trait Element: NoUninit + Send + Sync + sealed::Sealed {
    /// Datatype in buffers.
    #[doc(hidden)]
    const KIND: Datatype;
    /// Type of the same size for which any bytes are valid.
    #[doc(hidden)]
    type Bits: Plain;
    /// Calls `write` with a buffer of the bytes of the elements; afterwards the elements have the values in the buffer.
    #[doc(hidden)]
    fn write<R>(elements: &mut [Self], write: impl FnOnce(&mut [u8]) -> R) -> R;
    #[doc(hidden)]
    fn into_bits(elements: Vec<Self>) -> Vec<Self::Bits>;
    #[doc(hidden)]
    fn of_bits(bits: Vec<Self::Bits>) -> Vec<Self>;
}

mod sealed {
    pub trait Sealed {}
    impl<T: super::Plain> Sealed for T {}
    impl Sealed for bool {}
}

impl<T: Plain> Element for T {
    const KIND: Datatype = {
        assert!(
            size_of::<T>() == T::DATATYPE.size(),
            "the datatype is of another size than the type"
        );
        T::DATATYPE
    };
    type Bits = Self;

    fn write<R>(elements: &mut [Self], write: impl FnOnce(&mut [u8]) -> R) -> R {
        write(bytemuck::cast_slice_mut(elements))
    }

    fn into_bits(elements: Vec<Self>) -> Vec<Self> {
        elements
    }

    fn of_bits(bits: Vec<Self>) -> Vec<Self> {
        bits
    }
}

impl Element for bool {
    const KIND: Datatype = Datatype::Bool;
    type Bits = u8;

    fn write<R>(elements: &mut [Self], write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = bytemuck::cast_slice::<bool, u8>(elements).to_vec();
        let result = write(&mut bytes);
        for (element, byte) in elements.iter_mut().zip(bytes) {
            *element = byte != 0;
        }
        result
    }

    fn into_bits(elements: Vec<Self>) -> Vec<u8> {
        elements.into_iter().map(u8::from).collect()
    }

    fn of_bits(bits: Vec<u8>) -> Vec<Self> {
        bits.into_iter().map(|byte| byte != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_but_zero_is_true() {
        let mut truths = [true, false, false];
        bool::write(&mut truths, |bytes| bytes.copy_from_slice(&[0, 1, 255]));
        assert_eq!(truths, [false, true, true]);
        assert_eq!(bool::of_bits(bool::into_bits(truths.to_vec())), truths);
    }
}
