//! The one codec of the control messages: postcard, with a size limit and no trailing bytes. Also the macro `mirror!`,
//! which defines a struct from a message.

use crate::limits::MESSAGE_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// Reason why bytes from another process cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is longer than the limit.
    #[error("message of {size} bytes is over the limit of {MESSAGE_BYTES_MAX}")]
    TooLong {
        /// Number of received bytes.
        size: usize,
    },
    /// The bytes are no encoding of the expected message.
    #[error("malformed {what}")]
    Malformed {
        /// Name of the message or field.
        what: &'static str,
    },
}

/// Encodes a control message.
///
/// # Panics
/// Never for the message types of this crate: they contain no map or sequence of unknown length.
pub fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    postcard::to_stdvec(message).expect("hotlease messages have known lengths")
}

/// Decodes a control message; total on any bytes.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong { size: bytes.len() });
    }
    decode_of_any_length(bytes)
}

/// Decodes a message that has a bound of its own, which the caller has checked.
pub(crate) fn decode_of_any_length<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    let malformed = DecodeError::Malformed {
        what: std::any::type_name::<M>(),
    };
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(malformed),
    }
}

/// Defines a struct and its conversion from a message. A field gets the value of the expression after it, or else the
/// value of the message's field of the same name.
///
/// ```
/// struct Reply {
///     id: u64,
///     took_ns: Option<u64>,
/// }
/// hotlease_wire::mirror! {
///     /// Row of a table.
///     struct Row from(reply: Reply) {
///         id: u64,
///         took_us: u64 = reply.took_ns.unwrap_or(0) / 1000,
///     }
/// }
/// let row = Row::from(Reply { id: 7, took_ns: Some(5000) });
/// assert_eq!((row.id, row.took_us), (7, 5));
/// ```
#[macro_export]
macro_rules! mirror {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident from($message:ident: $from:ty) {
            $($(#[$note:meta])* $shown:vis $field:ident: $type:ty $(= $value:expr)?),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visible struct $name {
            $($(#[$note])* $shown $field: $type,)*
        }

        impl From<$from> for $name {
            fn from($message: $from) -> Self {
                Self { $($field: $crate::mirror!(@value $message $field $($value)?),)* }
            }
        }
    };
    (@value $message:ident $field:ident) => { $message.$field };
    (@value $message:ident $field:ident $value:expr) => { $value };
}
