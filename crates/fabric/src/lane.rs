//! A lane: what one process of a node says to another one, in shared memory: heads of 32 bytes, each with a body of any length,
//! in order.
//!
//! ```text
//! control  | key |  what the reader has taken  |  whether the writer waits for that |
//! lines    | LINES lines of 64 bytes: sequence word, head and up to 24 bytes of body, or the length of the next piece |
//! bytes    | longer bodies, in pieces |
//! ```
//!
//! A line is published as [`crate::ring`] says; so a short message is one cache line that goes from one core to the other.
//! Pieces of a body follow each other in the bytes, and a line is published for each, so that the reader copies one out while the
//! writer copies the next one in. Writer and reader count lines and bytes for themselves, and the reader says now and
//! then how far it is:
//!
//! ```text
//!  writer                              reader
//!  no room: stalled = 1                copy out; taken = ... (Release)
//!  fence(SeqCst) ────── either ─────── fence(SeqCst)
//!  read taken again (Acquire)          if stalled: stalled = 0, wake the writer
//! ```
//!
//! Either the writer sees the new room, or the reader sees that it waits. The acquire pairs with the release: what is written again
//! has been read.
//!
//! No number of the other side is believed: a reader works on private copies of lines, positions are its own, and
//! a length is the caller's to check against what it waits for; a writer refuses progress that it cannot have made. Bytes may change
//! while they are copied if the writer is hostile, and are then what a hostile writer sends.

#[cfg(not(loom))]
mod bell;
mod progress;

#[cfg(not(loom))]
pub use bell::{Bell, BellPlace, FarBell};
#[cfg(not(loom))]
pub use ends::{HEAD_BYTES, INLINE_BYTES, LANE_BYTES_MAX, LANE_BYTES_MIN, Message, Reader, Writer};
pub use progress::Broken;

/// Lines of a lane.
const LINES: u64 = 128;
/// Pieces begin at multiples of this.
#[cfg(not(loom))]
const PIECE_ALIGN: u64 = 64;

#[cfg(not(loom))]
mod ends;
