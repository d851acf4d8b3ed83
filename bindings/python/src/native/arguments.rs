//! What a request says beside the input of a native function; in words: `FORMAT.md`. Pure.

use super::ROOM_MIN;
use hotlease_wire::limits::FUNCTION_NAME_BYTES_MAX;
use hotlease_wire::task::{FormatError, Layout, Reply, Request, reply, request};

/// Instead of the room: as many items as the input has.
pub const AS_INPUT: u64 = u64::MAX;
/// Bytes of a recipe that a worker makes, taken to be enough.
const RECIPE_BYTES: usize = 1024;
const HEAD_BYTES: usize = 10;

/// Which function of the library, and what its result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arguments<'a> {
    /// Bytes for the result; or [`AS_INPUT`].
    pub room: u64,
    /// Its symbol.
    pub name: &'a str,
    /// The pickle that makes an object of the result; of [`AS_INPUT`] the pickle of the result's dtype.
    pub recipe: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// Of these bytes.
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

    /// Its bytes. No library has longer names than fit.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.name.len() + self.recipe.len());
        bytes.extend(self.room.to_le_bytes());
        bytes.extend((self.name.len() as u16).to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(self.recipe);
        bytes
    }
}

/// Where the result is in a reply: behind its recipe. `None` where that is larger than any memory.
pub fn reply_layout(recipe_bytes: usize, room: usize) -> Option<Layout> {
    let lengths = [room.max(ROOM_MIN)];
    let head = Reply::head(reply::PICKLED, 0, recipe_bytes, &lengths)?;
    Layout::new(head.len(), recipe_bytes, lengths)
}

/// Bytes that the reply to this request may have; `None`: it is none of a native function.
#[inline]
pub fn reply_bytes(bytes: &[u8]) -> Option<usize> {
    match bytes.first() {
        Some(&request::NATIVE) => native_reply_bytes(bytes),
        _ => None,
    }
}

fn native_reply_bytes(bytes: &[u8]) -> Option<usize> {
    let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
    let request = Request::decode(bytes.len(), at).ok()?;
    let layout = &request.arguments;
    let arguments = Arguments::decode(&bytes[layout.pickle..][..layout.pickle_bytes]).ok()?;
    let reply = match arguments.room {
        // A result's reply has more bytes than the result. Where that is not enough, the worker keeps its reply until it is fetched.
        AS_INPUT => reply_layout(RECIPE_BYTES, request.results.first()?.1)?,
        room => reply_layout(arguments.recipe.len(), usize::try_from(room).ok()?)?,
    };
    Some(reply.end)
}
