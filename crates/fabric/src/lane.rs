//! A lane: a pipe of messages in shared memory from one process of a node to another. Each message is a head of 32
//! bytes and a body of any length; messages stay in order.
//!
//! ```text
//! control  | key |  how far the reader has read  |  whether the writer waits for that |
//! lines    | LINES lines of 64 bytes: sequence word, head, and up to 24 bytes of body, or where the body is, or the
//!          | length of the next piece |
//! bytes    | longer bodies, in pieces |
//! ```
//!
//! A line is published as in [`crate::ring`], so a short message is one cache line that goes from one core to the
//! other. The pieces of a longer body follow each other in the bytes, and a line is published for each piece, so that
//! the reader copies one piece out while the writer copies the next piece in. Writer and reader each count lines and
//! bytes, and the reader reports its progress from time to time:
//!
//! ```text
//!  writer                              reader
//!  no room: stalled = 1                copy out; taken = ... (Release)
//!  fence(SeqCst) ────── either ─────── fence(SeqCst)
//!  read taken again (Acquire)          if stalled: stalled = 0, wake the writer
//! ```
//!
//! Either the writer sees the new room, or the reader sees that the writer waits. The acquire pairs with the release,
//! so the writer overwrites only bytes that have been read.
//!
//! A longer body can also stay in the writer's memory, from where the reader copies it itself (`exposed`).
//!
//! Neither side trusts a number from the other side. A reader works on private copies of lines and on positions of its
//! own; its caller checks that each length is as expected. A writer refuses progress that is impossible. A hostile
//! writer can change bytes while they are copied; the reader then gets the changed bytes.

#[cfg(not(loom))]
mod bell;
mod exposed;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod peer_memory;
mod progress;

#[cfg(not(loom))]
pub use bell::{Bell, BellAddress, PeerBell};
pub use exposed::BodyPlace;
#[cfg(not(loom))]
pub use memory::{LANE_BYTES_MAX, LANE_BYTES_MIN};
pub use progress::LaneError;
#[cfg(not(loom))]
pub use reader_writer::{
    BodySource, ExposedBody, HEAD_BYTES, INLINE_BYTES, LaneLine, LaneReader, LaneWriter, SourceLost,
};

/// Number of lines of a lane.
const LINES: u64 = 128;
/// Alignment of the first byte of a piece.
#[cfg(not(loom))]
const PIECE_ALIGN: u64 = 64;

#[cfg(not(loom))]
mod reader_writer;
