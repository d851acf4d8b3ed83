//! Message passing between functions: how members of a communicator find each other, and the messages between them.
//!
//! * [`greeting`] — the first bytes of every connection, before either side is authenticated.
//! * [`rendezvous`] — a member ↔ the rendezvous: joining, and the addresses of the other members.
//! * [`seat`] — the client of a gang → its slots: the rendezvous of the gang.
//! * [`frame`] — member ↔ member: messages, and their flow control.
//!
//! A connection begins with the calling side's [`greeting::Greeting`] and the first message of a Noise handshake
//! (`NNpsk0`), whose key is derived from the secret that all members share. The answer is a [`greeting::Verdict`]. If
//! it is `Welcome`, the second message of the handshake follows. On a connection to the rendezvous the messages of
//! [`rendezvous`] follow, each in a record of Noise. Between members [`frame`]s follow, once the calling side has sent
//! a record, too. Frames are plain, or in records if the members have agreed on records or the rendezvous relays the
//! connection.
//!
//! Of two members the lower rank is the caller on every connection between them: on connections that it made, on
//! connections on which the higher rank has knocked ([`greeting::Knock`]), and on a connection that the rendezvous
//! relays. The caller chooses the connection: it sends one record, on the first connection on which it got an answer,
//! and both members close the other connections.

pub mod frame;
pub mod greeting;
pub mod rendezvous;
pub mod seat;

use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of members of one communicator.
pub const RANKS_MAX: u32 = 2048;
/// Longest name of a communicator, bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest record of Noise on a connection, bytes, without the two bytes of its length.
pub const RECORD_BYTES_MAX: usize = 65_535;
/// Number of bytes that a record adds to its content.
pub const SEAL_BYTES: usize = 16;

/// Id of a group of members that met at a rendezvous. Random: it distinguishes groups of one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub [u8; 16]);

impl GroupId {
    /// No group: used on a connection to the rendezvous.
    pub const NONE: Self = Self([0; 16]);
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupId({})", hex::encode(self.0))
    }
}

/// Reason for which one member considers another lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Loss {
    /// The member's connection was closed without a goodbye: its process has ended.
    Closed = 1,
    /// Nothing was received from the member for too long: it hangs, or cannot be reached.
    Silent = 2,
    /// The member sent a malformed or forbidden frame.
    Protocol = 3,
    /// The member gave up: its program panicked, or dropped its communicator in the middle of an operation.
    GaveUp = 4,
    /// Other members consider the member failed.
    Declared = 5,
    /// The connection that the rendezvous relays was closed without a goodbye.
    Unrelayed = 6,
    /// The member cannot be reached over libfabric any more, though its connection is open.
    Unreached = 7,
}

impl Loss {
    /// The loss of this number.
    pub(crate) fn of(number: u64) -> Option<Self> {
        let all = [
            Self::Closed,
            Self::Silent,
            Self::Protocol,
            Self::GaveUp,
            Self::Declared,
            Self::Unrelayed,
            Self::Unreached,
        ];
        all.into_iter().find(|loss| *loss as u64 == number)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "its connection was closed: its process has ended",
            Self::Silent => "nothing was heard of it: it stands still or cannot be reached",
            Self::Protocol => "it broke the protocol",
            Self::GaveUp => "it gave up: it panicked, or dropped its communicator in the middle of something",
            Self::Declared => "other members hold that it has failed",
            Self::Unrelayed => {
                "its connection through the rendezvous was closed: its process has ended, or the rendezvous has"
            }
            Self::Unreached => {
                "libfabric no longer reaches it, although its connection is open: the network between the two has failed"
            }
        })
    }
}
