//! Data for a native function in a request, besides the function's input.

use super::FormatError;
use crate::limits::FUNCTION_NAME_BYTES_MAX;

/// Value of `room`: the result has as many items as the input.
pub const AS_INPUT: u64 = u64::MAX;
/// Bytes of the room and of the name's length.
const HEAD_BYTES: usize = 10;

/// Function of the library, and form of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeArguments<'a> {
    /// Size of the result in bytes, or [`AS_INPUT`].
    pub room: u64,
    /// Symbol of the function.
    pub name: &'a str,
    /// Pickle that makes an object of the result; with [`AS_INPUT`] the pickle of the result's dtype.
    pub recipe: &'a [u8],
}

impl<'a> NativeArguments<'a> {
    /// Decodes the arguments.
    ///
    /// # Errors
    ///
    /// [`FormatError::Short`], and [`FormatError::Text`] for bytes that are no name of a function.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let (room, rest) = bytes.split_first_chunk().ok_or(FormatError::Short)?;
        let (length, rest) = rest.split_first_chunk().ok_or(FormatError::Short)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (name, recipe) = rest.split_at_checked(length).ok_or(FormatError::Short)?;
        if length > FUNCTION_NAME_BYTES_MAX {
            return Err(FormatError::Text);
        }
        Ok(Self {
            room: u64::from_le_bytes(*room),
            name: std::str::from_utf8(name).map_err(|_| FormatError::Text)?,
            recipe,
        })
    }

    /// Encodes the arguments. The length of each name in a library fits into 16 bits.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.name.len() + self.recipe.len());
        bytes.extend(self.room.to_le_bytes());
        bytes.extend((self.name.len() as u16).to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(self.recipe);
        bytes
    }
}
