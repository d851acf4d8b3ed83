//! Content of replies that the core itself reads.

use crate::client::memory::Extent;
use crate::pickled::PickledBody;
use hotlease_wire::task::{TaskReply, reply};

/// Limit of the bytes of an initializer's exception that are reported.
const TOLD_BYTES: usize = 2000;

/// Returns a result that stayed in the memory of its request, laid out as a reply: head and pickle are put before the
/// result. Returns `None` if that is impossible.
pub(super) fn in_request(extent: &Extent, bytes: &[u8]) -> Option<Extent> {
    let number = |at: usize| usize::try_from(word(bytes, at)?).ok();
    let (at, length) = (number(0)?, number(8)?);
    let is_inside = at.checked_add(length)? <= extent.bytes().len();
    if !is_inside || extent.memory().is_given() {
        return None;
    }
    let pickle = bytes.get(reply::HEAD_BYTES + reply::IN_REQUEST_BYTES..)?;
    let reply = PickledBody::reply(pickle, &[length])?;
    Some(extent.put_before(at, &reply.front()?)?.truncated(reply.layout.end))
}

/// Whether a reply of this kind says that the worker lacked something, and did not run the task.
pub(super) fn lacks_something(kind: u8) -> bool {
    matches!(kind, reply::UNKNOWN_FUNCTION | reply::NOT_HAD)
}

/// Number at an offset behind the head of a reply.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(reply::HEAD_BYTES + at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

/// Reason why a worker refused to hand out a result.
pub(super) fn refusal(bytes: &[u8]) -> Option<String> {
    let reply = TaskReply::decode(bytes).ok()?;
    let text = || bytes.get(reply.body.pickle..)?.get(..reply.body.pickle_bytes);
    (reply.kind == reply::REFUSED).then(|| String::from_utf8_lossy(text().unwrap_or_default()).into_owned())
}

/// Error text in an initializer's reply.
pub(super) fn initializer_error(bytes: &[u8]) -> Option<String> {
    let text = |from: usize, length: usize| {
        let bytes = bytes.get(from..)?.get(..length)?;
        Some(String::from_utf8_lossy(&bytes[length.saturating_sub(TOLD_BYTES)..]).into_owned())
    };
    match TaskReply::decode(bytes) {
        Ok(reply) => match reply.kind {
            reply::EXCEPTION | reply::EXCEPTION_TEXT => {
                text(reply.body.pickle - reply.traceback_bytes, reply.traceback_bytes)
            }
            reply::REFUSED => text(reply.body.pickle, reply.body.pickle_bytes),
            _ => None,
        },
        Err(error) => Some(error.to_string()),
    }
}
