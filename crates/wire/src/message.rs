//! The one codec of the control messages: postcard, with a size limit and no trailing bytes.

use crate::limits::MESSAGE_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// Reason why bytes from another process cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is longer than any may be.
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
/// Never for the message types of this crate: they hold no map or sequence of unknown length.
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
