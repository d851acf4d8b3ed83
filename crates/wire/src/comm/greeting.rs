//! The first bytes of a connection: for whom it is, and which secret its other side is to have.
//!
//! ```text
//! byte  0        4         5        6      8             24            40
//!       | "HLCM" | version | purpose| zero | key         | group       |
//! ```
//!
//! After a greeting, and all through the handshake, what is sent is a length (16 bits, little endian) and as many bytes.

use super::GroupId;
use crate::DecodeError;

/// Version of everything in [`crate::comm`]; both ends must have the same.
pub const VERSION: u8 = 5;
/// Bytes before each part of a handshake: its length.
pub const PREFIX_BYTES: usize = 2;
/// Longest part of a handshake, bytes: no stranger can make anybody keep more.
pub const PART_BYTES_MAX: usize = 256;

const MAGIC: [u8; 4] = *b"HLCM";

/// Which secret somebody has: a digest of it, from which it cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 16]);

/// Whom a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// The rendezvous.
    Rendezvous = 1,
    /// A member of the group.
    Member = 2,
    /// A member that is asked to call back over this connection: see [`Knock`].
    Knock = 3,
    /// The second port of the rendezvous. In the place of the group stands the number that the first one gave, and nothing follows.
    Mapping = 4,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Greeting {
    /// Whom it is for.
    pub purpose: Purpose,
    /// The secret of whoever connects.
    pub key: KeyId,
    /// Of both members; [`GroupId::NONE`] at the rendezvous.
    pub group: GroupId,
}

impl Greeting {
    /// Encoded size.
    pub const BYTES: usize = 40;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.purpose as u8;
        bytes[8..24].copy_from_slice(&self.key.0);
        bytes[24..].copy_from_slice(&self.group.0);
        bytes
    }

    /// Of the first bytes of a connection; total on any bytes. Another version is malformed as well: see
    /// [`Greeting::version`].
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "greeting" };
        let purpose = match bytes[5] {
            1 => Purpose::Rendezvous,
            2 => Purpose::Member,
            3 => Purpose::Knock,
            4 => Purpose::Mapping,
            _ => return Err(malformed),
        };
        if bytes[..4] != MAGIC || bytes[4] != VERSION || bytes[6..8] != [0; 2] {
            return Err(malformed);
        }
        let (mut key, mut group) = ([0; 16], [0; 16]);
        key.copy_from_slice(&bytes[8..24]);
        group.copy_from_slice(&bytes[24..]);
        Ok(Self {
            purpose,
            key: KeyId(key),
            group: GroupId(group),
        })
    }

    /// The version of a greeting of this family, also where it is not ours.
    pub fn version(bytes: &[u8; Self::BYTES]) -> Option<u8> {
        (bytes[..4] == MAGIC).then_some(bytes[4])
    }
}

/// What a greeting is answered with, in one byte and in the clear: nobody has proved anything yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// The handshake goes on.
    Welcome = 0,
    /// Here is another secret.
    OtherSecret = 1,
    /// Here is another version of hotlease.
    OtherVersion = 2,
    /// Here is nobody of that group.
    OtherGroup = 3,
    /// This is the other kind of port: that of a member, or of a rendezvous.
    OtherPurpose = 4,
    /// Too many are connecting.
    Busy = 5,
    /// Here frames are encrypted and there they are not, or the other way round.
    OtherSealing = 6,
    /// Each has chosen another provider of libfabric.
    OtherLink = 7,
}

impl Verdict {
    /// As a byte.
    pub fn encode(self) -> u8 {
        self as u8
    }

    /// Of a byte.
    pub fn decode(byte: u8) -> Result<Self, DecodeError> {
        let all = [
            Self::Welcome,
            Self::OtherSecret,
            Self::OtherVersion,
            Self::OtherGroup,
            Self::OtherPurpose,
            Self::Busy,
            Self::OtherSealing,
            Self::OtherLink,
        ];
        let found = all.into_iter().find(|verdict| *verdict as u8 == byte);
        found.ok_or(DecodeError::Malformed { what: "verdict" })
    }
}

/// Members of which this is the same run on the same processors, and can reach each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// Of a member that cannot tell.
    pub const UNKNOWN: Self = Self([0; 16]);
}

/// Where a member is. The answering side sends its own as the payload of the second message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Home {
    /// With whom it shares processors.
    pub node: NodeId,
    /// And memory, too.
    pub shares_memory: bool,
    /// How many of the node's processors it may use; 0: it cannot tell.
    pub processors: u16,
}

impl Home {
    /// Of a member that cannot tell.
    pub const UNKNOWN: Self = Self {
        node: NodeId::UNKNOWN,
        shares_memory: false,
        processors: 0,
    };
    /// Encoded size.
    pub const BYTES: usize = 19;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.shares_memory);
        bytes[1..3].copy_from_slice(&self.processors.to_le_bytes());
        bytes[3..].copy_from_slice(&self.node.0);
        bytes
    }

    /// Of a payload; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "home" };
        let Ok([shares, low, high, node @ ..]) = <[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(malformed);
        };
        let shares_memory = match shares {
            0 => false,
            1 => true,
            _ => return Err(malformed),
        };
        Ok(Self {
            node: NodeId(node),
            shares_memory,
            processors: u16::from_le_bytes([low, high]),
        })
    }
}

/// Who connects to whom: the payload of the first message of a handshake between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// The rank of the side that connects.
    pub from: u32,
    /// The rank that it takes the other side for.
    pub to: u32,
    /// Whether frames are to be in records.
    pub is_sealed: bool,
    /// What frames are to go over: a digest of its name, 0 for nothing but this connection and memory of the node.
    pub link: u32,
    /// Of the side that connects.
    pub home: Home,
}

impl Introduction {
    /// Encoded size.
    pub const BYTES: usize = 13 + Home::BYTES;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.from.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.to.to_le_bytes());
        bytes[8] = u8::from(self.is_sealed);
        bytes[9..13].copy_from_slice(&self.link.to_le_bytes());
        bytes[13..].copy_from_slice(&self.home.encode());
        bytes
    }

    /// Of bytes; total on any.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "introduction" };
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(malformed);
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let introduction = Self {
            from: word(0),
            to: word(4),
            is_sealed: match bytes[8] {
                0 => false,
                1 => true,
                _ => return Err(malformed),
            },
            link: word(9),
            home: Home::decode(&bytes[13..])?,
        };
        let ranks = 0..super::RANKS_MAX;
        if !ranks.contains(&introduction.from)
            || !ranks.contains(&introduction.to)
            || introduction.from == introduction.to
        {
            return Err(malformed);
        }
        Ok(introduction)
    }
}

/// The first bytes of a connection that the higher of two ranks makes: the lower one is to begin the handshake on it, as it does on
/// those that it makes itself, so that on whichever connections two members reach each other, one of both chooses.
/// In the clear, and believed by nobody: the handshake proves it, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Knock {
    /// The secret of whoever knocks.
    pub key: KeyId,
    /// Of both members.
    pub group: GroupId,
    /// Who knocks: the higher rank, where: the lower one.
    pub introduction: Introduction,
}

impl Knock {
    /// Encoded size.
    pub const BYTES: usize = Greeting::BYTES + Introduction::BYTES;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let greeting = Greeting {
            purpose: Purpose::Knock,
            key: self.key,
            group: self.group,
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..Greeting::BYTES].copy_from_slice(&greeting.encode());
        bytes[Greeting::BYTES..].copy_from_slice(&self.introduction.encode());
        bytes
    }

    /// Of bytes; total on any.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "knock" };
        let Some((greeting, introduction)) = bytes.split_first_chunk() else {
            return Err(malformed);
        };
        let greeting = Greeting::decode(greeting)?;
        let introduction = Introduction::decode(introduction)?;
        if greeting.purpose != Purpose::Knock || introduction.from < introduction.to {
            return Err(malformed);
        }
        Ok(Self {
            key: greeting.key,
            group: greeting.group,
            introduction,
        })
    }
}
