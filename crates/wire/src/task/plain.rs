//! Small plain values: `None`, `bool`, `int`, `float`, `str`, `bytes`, and tuples of these, one after the other.

use super::FormatError;

/// Greatest depth of nested tuples.
pub const DEPTH_MAX: usize = 16;

/// The first byte of a value.
pub mod tag {
    /// `None`.
    pub const NONE: u8 = 0;
    /// `False`.
    pub const FALSE: u8 = 1;
    /// `True`.
    pub const TRUE: u8 = 2;
    /// An integer of 8 bytes.
    pub const INT64: u8 = 3;
    /// An integer of one byte.
    pub const INT8: u8 = 4;
    /// A float of 8 bytes.
    pub const FLOAT: u8 = 5;
    /// A text.
    pub const STR: u8 = 6;
    /// Bytes.
    pub const BYTES: u8 = 7;
    /// A tuple: the number of its values, and then the values.
    pub const TUPLE: u8 = 8;
    /// Added to one of the three tags above: the length of the text, bytes or tuple then has one byte instead of four.
    pub const SHORT: u8 = 3;
    /// The result of another task.
    pub const RESULT: u8 = 12;
}

/// A value, or the beginning of a tuple.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PlainItem<'a> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An `int`.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// A `str`.
    Str(&'a str),
    /// A `bytes`.
    Bytes(&'a [u8]),
    /// A `tuple`: this many values follow; at least this many bytes are left.
    Tuple(usize),
    /// The result of the task of this number; the caller checks that there is such a result.
    Result(u16),
}

/// Reads values one after the other.
#[derive(Debug)]
pub struct PlainReader<'a> {
    bytes: &'a [u8],
}

impl<'a> PlainReader<'a> {
    /// Reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads the next value. It may be a tuple only if `depth` is not 0; the caller passes one less for the values in
    /// it.
    ///
    /// # Errors
    ///
    /// [`FormatError::Plain`] and [`FormatError::Text`]; after an error nothing more can be read.
    #[inline]
    pub fn item(&mut self, depth: usize) -> Result<PlainItem<'a>, FormatError> {
        let [tag] = self.array()?;
        if tag == tag::RESULT {
            return Ok(PlainItem::Result(u16::from_le_bytes(self.array()?)));
        }
        let short = tag > tag::TUPLE;
        Ok(match if short { tag - tag::SHORT } else { tag } {
            tag::NONE => PlainItem::None,
            tag::FALSE => PlainItem::Bool(false),
            tag::TRUE => PlainItem::Bool(true),
            tag::INT64 => PlainItem::Int(i64::from_le_bytes(self.array()?)),
            tag::INT8 => PlainItem::Int(i8::from_le_bytes(self.array()?).into()),
            tag::FLOAT => PlainItem::Float(f64::from_le_bytes(self.array()?)),
            tag::STR => {
                let length = self.length(short)?;
                let text = std::str::from_utf8(self.take(length)?);
                PlainItem::Str(text.map_err(|_| FormatError::Text)?)
            }
            tag::BYTES => {
                let length = self.length(short)?;
                PlainItem::Bytes(self.take(length)?)
            }
            tag::TUPLE if depth > 0 => {
                let length = self.length(short)?;
                // Each value has a byte at least.
                if length > self.bytes.len() {
                    return Err(FormatError::Plain);
                }
                PlainItem::Tuple(length)
            }
            _ => return Err(FormatError::Plain),
        })
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.bytes.split_at_checked(bytes).ok_or(FormatError::Plain)?;
        self.bytes = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(FormatError::Plain)?;
        self.bytes = rest;
        Ok(*taken)
    }

    #[inline]
    fn length(&mut self, short: bool) -> Result<usize, FormatError> {
        Ok(match short {
            true => self.array::<1>()?[0].into(),
            false => u32::from_le_bytes(self.array()?) as usize,
        })
    }
}
