//! Member ↔ member: half a cache line before each piece of a message.
//!
//! ```text
//! byte  0     1      2      4      8          16        24        32
//!       | kind| class| zero | tag  | context  | length  | number  | body ...
//! ```
//!
//! A message that is short enough is sent with its frame ([`MemberFrame::Eager`]): if no receive waits for the message,
//! the receiver stores it, within the credit that the receiver gave. A longer message is announced, and is sent when
//! the receiver has memory for it:
//!
//! ```text
//!   sender                                  receiver
//!     │ ── Announce { id, length } ──────────► │  kept until a receive matches it
//!     │ ◄────────── Grant { id, landing } ──── │
//!     │ ── Data { landing } + body ──────────► │  straight into the receiving caller's memory,
//!     │ ── Data { landing } + body ──────────► │  in pieces, between which small messages pass
//! ```
//!
//! Numbers that the receiver of a frame assigned (`landing` of a grant) are checked when the other side sends them
//! back. If a grant is for a message that the sender has given up meanwhile, the sender answers with
//! [`MemberFrame::Withdraw`].
//!
//! Two members of one node switch from their connection to lanes in shared memory. Each direction switches separately,
//! at a definite place in the order of its messages. The connection stays open, because its end shows that the other
//! member is gone:
//!
//! ```text
//!   writes                                  reads
//!     │ ── Offer { memory, bell } ───────────► │  opens both
//!     │ ◄────────── Accept { bell }, Decline ─ │
//!     │ ── Switch ───────────────────────────► │  the last frame of this direction on the connection
//!     │ ══ frames in the lane ═══════════════► │
//! ```
//!
//! Members that use libfabric exchange only their addresses on the connection:
//!
//! ```text
//!     │ ── Inbox + its content ──────────────► │
//!     │ ◄───────────────────────────── Switch ─ │  recorded: later messages may come over libfabric
//! ```

use super::{Loss, RANKS_MAX};
use crate::DecodeError;
use crate::fabric::Inbox;

/// Longest message that is sent with its frame, bytes.
pub const EAGER_BYTES_MAX: u64 = 256 * 1024;
/// Longest message that waits for credit to be sent with its frame, bytes; a longer message is announced instead.
pub const SMALL_BYTES_MAX: u64 = 16 * 1024;
/// Longest piece of a large message, bytes.
pub const DATA_BYTES_MAX: u64 = 1 << 20;
/// Longest message, bytes: the greatest signed number of 64 bits.
pub const MESSAGE_BYTES_MAX: u64 = i64::MAX as u64;
/// Credit that each unexpected message costs, besides its bytes.
pub const ENTRY_COST: u64 = 128;
/// Largest credit that a frame may return.
pub const CREDIT_MAX: u64 = 1 << 40;

/// Class of messages. Messages of users and messages of collectives have separate credit and separate order, so that
/// unreceived messages do not delay a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MessageClass {
    /// Messages of users.
    Message = 0,
    /// Messages of collectives; the tag is the number of the collective.
    Collective = 1,
}

impl MessageClass {
    /// Both classes.
    pub const ALL: [Self; 2] = [Self::Message, Self::Collective];
}

/// Class, communicator and tag of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageAddress {
    /// Class, which has its own credit and order.
    pub class: MessageClass,
    /// Number of the communicator, among the communicators that share connections.
    pub context: u64,
    /// Tag of the user, or number of the collective.
    pub tag: u32,
}

/// Address of a process's bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BellLocation {
    /// Process id.
    pub process: u32,
    /// Descriptor of a page, in that process.
    pub memory: u32,
    /// Descriptor of a pipe, in that process.
    pub pipe: u32,
    /// Key at the beginning of all memory that this process uses for lanes.
    pub key: u64,
}

/// A frame between members; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberFrame {
    /// A message; its body follows.
    Eager {
        /// Destination of the message.
        to: MessageAddress,
        /// Length of the message, at most [`EAGER_BYTES_MAX`].
        length: u64,
    },
    /// Announces a message of this length.
    Announce {
        /// Destination of the message.
        to: MessageAddress,
        /// 1 to [`MESSAGE_BYTES_MAX`].
        length: u64,
        /// The sender's number for the message.
        id: u64,
    },
    /// Grants an announced message: the sender may send it.
    Grant {
        /// The sender's number of the message, as announced.
        id: u64,
        /// The receiver's number of the message.
        landing: u64,
    },
    /// The next piece of a granted message; its body follows.
    Data {
        /// The receiver's number of the message.
        landing: u64,
        /// 1 to [`DATA_BYTES_MAX`].
        length: u64,
    },
    /// Reports that a granted message will not be sent: the sender had given it up before.
    Withdraw {
        /// The receiver's number of the message.
        landing: u64,
    },
    /// Returns credit, after kept messages were received.
    Credit {
        /// Class of the credit.
        class: MessageClass,
        /// Amount of the credit, at most [`CREDIT_MAX`].
        amount: u64,
    },
    /// Offers a lane for the messages of this member.
    Offer {
        /// Bell that wakes the sender when there is room in the lane.
        bell: BellLocation,
        /// Descriptor of the lane's memory, in the sender's process.
        memory: u32,
        /// Capacity of the lane, bytes.
        bytes: u32,
    },
    /// Accepts an offered lane: it is open.
    Accept {
        /// Bell that wakes the lane's reader.
        bell: BellLocation,
    },
    /// Declines an offered lane: it cannot be opened.
    Decline,
    /// Marks the switch: later frames arrive over the lane, or libfabric.
    Switch,
    /// Address for messages to the sender of this frame over libfabric: an [`Inbox`] follows.
    Inbox {
        /// 1 to [`Inbox::BYTES_MAX`].
        length: u64,
    },
    /// Sign of life, without content.
    Alive,
    /// The sender has finished: it sends no more messages, and receives none.
    Goodbye,
    /// Answer to a goodbye: everything that was sent before the goodbye has been read.
    Farewell,
    /// The sender considers a member lost.
    Lost {
        /// Rank of the lost member.
        rank: u32,
        /// Reason.
        loss: Loss,
    },
    /// A collective of this communicator ended with an error that other members cannot detect, so no further
    /// collectives begin. Earlier collectives go on.
    Broken {
        /// The communicator.
        context: u64,
        /// Rank of the member with the error.
        rank: u32,
        /// Number of the collective.
        number: u32,
    },
    /// The sender leaves this communicator: it sends no more messages there, and receives none.
    Leave {
        /// The communicator.
        context: u64,
    },
}

mod kind {
    pub const EAGER: u8 = 1;
    pub const ANNOUNCE: u8 = 2;
    pub const GRANT: u8 = 3;
    pub const DATA: u8 = 4;
    pub const CREDIT: u8 = 5;
    pub const ALIVE: u8 = 6;
    pub const GOODBYE: u8 = 7;
    pub const FAREWELL: u8 = 8;
    pub const LOST: u8 = 9;
    pub const BROKEN: u8 = 10;
    pub const LEAVE: u8 = 11;
    pub const OFFER: u8 = 12;
    pub const ACCEPT: u8 = 13;
    pub const DECLINE: u8 = 14;
    pub const SWITCH: u8 = 15;
    pub const WITHDRAW: u8 = 16;
    pub const INBOX: u8 = 17;
}

/// The fields in their order.
#[derive(Default, PartialEq)]
struct FrameFields {
    kind: u8,
    class: u8,
    tag: u32,
    context: u64,
    length: u64,
    number: u64,
}

impl MemberFrame {
    /// Encoded size.
    pub const BYTES: usize = 32;

    /// Number of bytes that follow the frame.
    pub fn body_bytes(&self) -> u64 {
        match self {
            Self::Eager { length, .. } | Self::Data { length, .. } | Self::Inbox { length } => *length,
            _ => 0,
        }
    }

    /// Whether a body follows, even if it may be empty.
    #[inline]
    pub fn has_body(&self) -> bool {
        matches!(self, Self::Eager { .. } | Self::Data { .. } | Self::Inbox { .. })
    }

    /// Encodes the frame.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let fields = self.fields();
        let mut bytes = [0; Self::BYTES];
        bytes[0] = fields.kind;
        bytes[1] = fields.class;
        bytes[4..8].copy_from_slice(&fields.tag.to_le_bytes());
        bytes[8..16].copy_from_slice(&fields.context.to_le_bytes());
        bytes[16..24].copy_from_slice(&fields.length.to_le_bytes());
        bytes[24..].copy_from_slice(&fields.number.to_le_bytes());
        bytes
    }

    /// Decodes a frame; total on any bytes, and strict: each accepted frame has one encoding only.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "frame" };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let fields = FrameFields {
            kind: bytes[0],
            class: bytes[1],
            tag: (word(0) >> 32) as u32,
            context: word(8),
            length: word(16),
            number: word(24),
        };
        if bytes[2..4] != [0; 2] {
            return Err(malformed);
        }
        match Self::of(&fields) {
            // Fields that a kind does not use must be zero.
            Some(frame) if frame.fields() == fields => Ok(frame),
            _ => Err(malformed),
        }
    }

    fn fields(&self) -> FrameFields {
        let none = FrameFields::default();
        let addressed = |to: &MessageAddress| FrameFields {
            class: to.class as u8,
            tag: to.tag,
            context: to.context,
            ..FrameFields::default()
        };
        let rung = |bell: &BellLocation| FrameFields {
            tag: bell.process,
            context: u64::from(bell.pipe) << 32 | u64::from(bell.memory),
            number: bell.key,
            ..FrameFields::default()
        };
        match *self {
            Self::Eager { ref to, length } => FrameFields {
                kind: kind::EAGER,
                length,
                ..addressed(to)
            },
            Self::Announce { ref to, length, id } => FrameFields {
                kind: kind::ANNOUNCE,
                length,
                number: id,
                ..addressed(to)
            },
            Self::Grant { id, landing } => FrameFields {
                kind: kind::GRANT,
                context: landing,
                number: id,
                ..none
            },
            Self::Data { landing, length } => FrameFields {
                kind: kind::DATA,
                length,
                number: landing,
                ..none
            },
            Self::Withdraw { landing } => FrameFields {
                kind: kind::WITHDRAW,
                number: landing,
                ..none
            },
            Self::Credit { class, amount } => FrameFields {
                kind: kind::CREDIT,
                class: class as u8,
                number: amount,
                ..none
            },
            Self::Offer {
                ref bell,
                memory,
                bytes,
            } => FrameFields {
                kind: kind::OFFER,
                length: u64::from(bytes) << 32 | u64::from(memory),
                ..rung(bell)
            },
            Self::Accept { ref bell } => FrameFields {
                kind: kind::ACCEPT,
                ..rung(bell)
            },
            Self::Decline => FrameFields {
                kind: kind::DECLINE,
                ..none
            },
            Self::Switch => FrameFields {
                kind: kind::SWITCH,
                ..none
            },
            Self::Inbox { length } => FrameFields {
                kind: kind::INBOX,
                length,
                ..none
            },
            Self::Alive => FrameFields {
                kind: kind::ALIVE,
                ..none
            },
            Self::Goodbye => FrameFields {
                kind: kind::GOODBYE,
                ..none
            },
            Self::Farewell => FrameFields {
                kind: kind::FAREWELL,
                ..none
            },
            Self::Lost { rank, loss } => FrameFields {
                kind: kind::LOST,
                tag: rank,
                number: loss as u64,
                ..none
            },
            Self::Broken { context, rank, number } => FrameFields {
                kind: kind::BROKEN,
                tag: rank,
                context,
                number: u64::from(number),
                ..none
            },
            Self::Leave { context } => FrameFields {
                kind: kind::LEAVE,
                context,
                ..none
            },
        }
    }

    fn of(fields: &FrameFields) -> Option<Self> {
        let class = MessageClass::ALL
            .into_iter()
            .find(|class| *class as u8 == fields.class)?;
        let to = MessageAddress {
            class,
            context: fields.context,
            tag: fields.tag,
        };
        let (length, number) = (fields.length, fields.number);
        let bell = BellLocation {
            process: fields.tag,
            memory: fields.context as u32,
            pipe: (fields.context >> 32) as u32,
            key: number,
        };
        Some(match fields.kind {
            kind::EAGER if length <= EAGER_BYTES_MAX => Self::Eager { to, length },
            kind::ANNOUNCE if (1..=MESSAGE_BYTES_MAX).contains(&length) => Self::Announce { to, length, id: number },
            kind::GRANT => Self::Grant {
                id: number,
                landing: fields.context,
            },
            kind::DATA if (1..=DATA_BYTES_MAX).contains(&length) => Self::Data {
                landing: number,
                length,
            },
            kind::WITHDRAW => Self::Withdraw { landing: number },
            kind::CREDIT if number <= CREDIT_MAX => Self::Credit { class, amount: number },
            kind::OFFER => Self::Offer {
                bell,
                memory: length as u32,
                bytes: (length >> 32) as u32,
            },
            kind::ACCEPT => Self::Accept { bell },
            kind::DECLINE => Self::Decline,
            kind::SWITCH => Self::Switch,
            kind::INBOX if (1..=Inbox::BYTES_MAX as u64).contains(&length) => Self::Inbox { length },
            kind::ALIVE => Self::Alive,
            kind::GOODBYE => Self::Goodbye,
            kind::FAREWELL => Self::Farewell,
            kind::LOST if fields.tag < RANKS_MAX => Self::Lost {
                rank: fields.tag,
                loss: Loss::of(number)?,
            },
            kind::BROKEN if fields.tag < RANKS_MAX => Self::Broken {
                context: fields.context,
                rank: fields.tag,
                number: u32::try_from(number).ok()?,
            },
            kind::LEAVE => Self::Leave {
                context: fields.context,
            },
            _ => return None,
        })
    }
}

/// Credit that each member of a communicator of `size` grants each other member, for each class. It is a constant of
/// the protocol, so that both sides compute the same value. The least credit is twice [`EAGER_BYTES_MAX`], the greatest
/// 4 MiB; between these bounds, all other members together have 128 MiB of each class at one member.
pub const fn credit_of(size: u32) -> u64 {
    let share = (128 << 20) / (size as u64 + 1);
    if share > 4 << 20 {
        4 << 20
    } else if share < 512 << 10 {
        512 << 10
    } else {
        share
    }
}
