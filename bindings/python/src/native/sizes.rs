//! How large the reply of a native function is, which its request says. Pure.

use super::ROOM_MIN;
use hotlease_wire::task::native::{AS_INPUT, Arguments};
use hotlease_wire::task::{Layout, Reply, Request, reply, request};

/// Bytes of a recipe that a worker makes, taken to be enough.
const RECIPE_BYTES: usize = 1024;

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
