//! The first bytes of a connection: its purpose, and the id of the secret that the caller uses.
//!
//! ```text
//! byte  0        4         5        6      8             24            40
//!       | "HLCM" | version | purpose| zero | key         | group       |
//! ```
//!
//! After the greeting, each part of the handshake is a length (16 bits, little endian) and that many bytes.

use super::GroupId;
use crate::DecodeError;

/// Version of everything in [`crate::comm`]; both ends must have the same.
pub const VERSION: u8 = 5;
/// Bytes of the length before each part of a handshake.
pub const PREFIX_BYTES: usize = 2;
/// Longest part of a handshake, bytes: a stranger cannot make a process store more.
pub const PART_BYTES_MAX: usize = 256;

const MAGIC: [u8; 4] = *b"HLCM";

/// Id of a secret: a digest that does not reveal the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 16]);

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Call of the rendezvous.
    Rendezvous = 1,
    /// Call of a member of the group.
    Member = 2,
    /// Request that a member call back over this connection: see [`Knock`].
    Knock = 3,
    /// Call of the rendezvous's second port. The field of the group has the number that the first port gave, and
    /// nothing follows.
    Mapping = 4,
}

/// A greeting: the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Greeting {
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// Id of the caller's secret.
    pub key: KeyId,
    /// Group of both members; [`GroupId::NONE`] at the rendezvous.
    pub group: GroupId,
}

impl Greeting {
    /// Encoded size.
    pub const BYTES: usize = 40;

    /// Encodes the greeting.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.purpose as u8;
        bytes[8..24].copy_from_slice(&self.key.0);
        bytes[24..].copy_from_slice(&self.group.0);
        bytes
    }

    /// Decodes the first bytes of a connection; total on any bytes. A greeting of another version is malformed as well:
    /// see [`Greeting::version`].
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

    /// Version of a greeting of this family, even if it is not [`VERSION`].
    pub fn version(bytes: &[u8; Self::BYTES]) -> Option<u8> {
        (bytes[..4] == MAGIC).then_some(bytes[4])
    }
}

/// Answer to a greeting, in one byte and in the clear: neither side is authenticated yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// The handshake goes on.
    Welcome = 0,
    /// This side has another secret.
    OtherSecret = 1,
    /// This side has another version of hotlease.
    OtherVersion = 2,
    /// This side has no member of that group.
    OtherGroup = 3,
    /// This port serves another purpose: a member's instead of a rendezvous's, or the other way round.
    OtherPurpose = 4,
    /// Too many connections are in their handshake.
    Busy = 5,
    /// One side encrypts frames and the other does not.
    OtherSealing = 6,
    /// The sides have chosen different providers of libfabric.
    OtherLink = 7,
}

impl Verdict {
    /// Encodes the verdict.
    pub fn encode(self) -> u8 {
        self as u8
    }

    /// Decodes a verdict.
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

/// Id of a node: equal for members that run on the same processors, in the same boot, and that can reach each other's
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// Value for a member that cannot determine its node.
    pub const UNKNOWN: Self = Self([0; 16]);
}

/// A member's node and resources. The answering side sends its own in the payload of the handshake's second message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemberNode {
    /// Node whose processors the member shares.
    pub node: NodeId,
    /// Whether the member can share memory with others on the node.
    pub shares_memory: bool,
    /// How many of the node's processors it may use; 0: unknown.
    pub processors: u16,
}

impl MemberNode {
    /// The value for a member that cannot determine its node.
    pub const UNKNOWN: Self = Self {
        node: NodeId::UNKNOWN,
        shares_memory: false,
        processors: 0,
    };
    /// Encoded size.
    pub const BYTES: usize = 19;

    /// Encodes the node and resources.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.shares_memory);
        bytes[1..3].copy_from_slice(&self.processors.to_le_bytes());
        bytes[3..].copy_from_slice(&self.node.0);
        bytes
    }

    /// Decodes a payload; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "member node" };
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

/// Caller and callee: the payload of the first message of a handshake between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Introduction {
    /// Rank of the caller.
    pub from: u32,
    /// Rank that the caller expects of the callee.
    pub to: u32,
    /// Whether frames are in records.
    pub is_sealed: bool,
    /// Digest of the link's name; 0: no link, only this connection and shared memory of the node.
    pub link: u32,
    /// The caller's node and resources.
    pub member_node: MemberNode,
}

impl Introduction {
    /// Encoded size.
    pub const BYTES: usize = 13 + MemberNode::BYTES;

    /// Encodes the introduction.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.from.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.to.to_le_bytes());
        bytes[8] = u8::from(self.is_sealed);
        bytes[9..13].copy_from_slice(&self.link.to_le_bytes());
        bytes[13..].copy_from_slice(&self.member_node.encode());
        bytes
    }

    /// Decodes an introduction; total on any bytes.
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
            member_node: MemberNode::decode(&bytes[13..])?,
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

/// The first bytes of a connection that the higher of two ranks makes. The lower rank then begins the handshake on it,
/// as on its own connections: so the same member always chooses among the connections between the two. A knock is sent
/// in the clear and is not trusted: the handshake confirms it, or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Knock {
    /// Id of the knocking member's secret.
    pub key: KeyId,
    /// Group of both members.
    pub group: GroupId,
    /// The knocking member (the higher rank) as caller, and the lower rank as callee.
    pub introduction: Introduction,
}

impl Knock {
    /// Encoded size.
    pub const BYTES: usize = Greeting::BYTES + Introduction::BYTES;

    /// Encodes the knock.
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

    /// Decodes a knock; total on any bytes.
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
