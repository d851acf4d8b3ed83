//! Sizes of the replies of native functions, computed from the requests. Pure.

use super::ROOM_MIN;
use hotlease_wire::task::native::{AS_INPUT, NativeArguments};
use hotlease_wire::task::{TaskLayout, TaskReply, TaskRequest, reply, request};

/// Allowance for the bytes of a recipe that a worker makes.
const RECIPE_BYTES: usize = 1024;

/// Returns the layout of a reply, in which the result follows its recipe. Returns `None` if the reply is larger than
/// any memory.
pub fn reply_layout(recipe_bytes: usize, room: usize) -> Option<TaskLayout> {
    let lengths = [room.max(ROOM_MIN)];
    let head = TaskReply::head(reply::PICKLED, 0, recipe_bytes, &lengths)?;
    TaskLayout::new(head.len(), recipe_bytes, lengths)
}

/// Returns the limit of the bytes of the reply to this request; `None` if the request is not native.
#[inline]
pub fn reply_bytes(bytes: &[u8]) -> Option<usize> {
    match bytes.first() {
        Some(&request::NATIVE) => native_reply_bytes(bytes),
        _ => None,
    }
}

fn native_reply_bytes(bytes: &[u8]) -> Option<usize> {
    let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
    let request = TaskRequest::decode(bytes.len(), at).ok()?;
    let layout = &request.arguments;
    let arguments = NativeArguments::decode(&bytes[layout.pickle..][..layout.pickle_bytes]).ok()?;
    let reply = match arguments.room {
        // The reply of the input task is longer than its result, so this is an upper estimate. If the estimate is too
        // small nevertheless, the worker keeps the reply until the client fetches it.
        AS_INPUT => reply_layout(RECIPE_BYTES, request.results.first()?.1)?,
        room => reply_layout(arguments.recipe.len(), usize::try_from(room).ok()?)?,
    };
    Some(reply.end)
}
