//! Message passing between functions: how members of a communicator find each other, and what they send.
//!
//! * [`greeting`] — the first bytes of every connection, before anybody is known.
//! * [`rendezvous`] — a member ↔ the rendezvous: join, and where the others are.
//! * [`seat`] — the client of a gang → its slots: where they find each other.
//! * [`frame`] — member ↔ member: messages, and what keeps them in bounds.
//!
//! A connection begins with the calling side's [`greeting::Greeting`] and the first message of a Noise handshake
//! (`NNpsk0`), whose key is drawn from the secret that all have. It is answered with a [`greeting::Verdict`], and where that
//! is a yes with the second message. On a connection to the rendezvous the messages of [`rendezvous`] follow, each in
//! a record of Noise; between members, once the calling side has sent a record too, [`frame`]s: plain, or in
//! records where the members have agreed on that, or the rendezvous relays what they send.
//!
//! Of two members the lower rank calls, on every connection that comes about between them: on its own, on those on which the
//! higher one has knocked ([`greeting::Knock`]), and on one that the rendezvous relays. The record is its choice: it
//! sends one, on the first connection on which it was answered, and both close the others.

pub mod frame;
pub mod greeting;
pub mod rendezvous;
pub mod seat;

use serde::{Deserialize, Serialize};
use std::fmt;

/// Members of one communicator.
pub const RANKS_MAX: u32 = 2048;
/// Bytes of a communicator's name.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest record of Noise on a connection, bytes, without the two of its length.
pub const RECORD_BYTES_MAX: usize = 65_535;
/// Of these, what is added to the content.
pub const SEAL_BYTES: usize = 16;

/// A group of members that came together at a rendezvous. Random: groups of one name are told apart by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub [u8; 16]);

impl GroupId {
    /// Of no group: a connection to the rendezvous.
    pub const NONE: Self = Self([0; 16]);
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Why one member holds that another is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Loss {
    /// Its connection was closed, without a word: its process has ended.
    Closed = 1,
    /// Nothing was heard of it for too long: it stands still, or cannot be reached.
    Silent = 2,
    /// It sent what is no frame, or not allowed.
    Protocol = 3,
    /// It gave up: its program panicked, or dropped its communicator in the middle of something.
    GaveUp = 4,
    /// Other members hold that it has failed.
    Declared = 5,
    /// The connection through the rendezvous, which relays, was closed, without a word.
    Unrelayed = 6,
    /// It cannot be reached over libfabric any more, though its connection is open.
    Unreached = 7,
}

impl Loss {
    /// Of its number.
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
                "libfabric reaches it no more, though its connection is open: the network between the two has failed"
            }
        })
    }
}
