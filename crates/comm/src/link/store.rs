//! Interface between the protocol and links through stores: the orders that such a link carries out, the names of its
//! objects, and [`StoreOpener`], by which another crate provides such links.
//!
//! Links through stores need clients of these stores, and the clients need an asynchronous runtime. So these links are
//! in a crate of their own, `hotlease_stores`; a program passes the openers of that crate as [`Options::stores`].

use super::Link;
use crate::arena::Key;
use crate::error::Error;
use crate::memory::Piece;
use crate::options::Options;
use hotlease_collectives::{LinkKind, Rank};
use hotlease_wire::comm::GroupId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Opens links through stores of one kind.
#[derive(Debug, Clone, Copy)]
pub struct StoreOpener {
    /// Kind of the stores.
    pub kind: LinkKind,
    /// Opens the store that the options name and waits for all members of the group.
    pub open: fn(&StoreJoin<'_>) -> Result<Box<dyn Link>, Error>,
}

/// Members that have met, and that are to communicate through a store.
#[derive(Debug)]
pub struct StoreJoin<'a> {
    /// Options of this member; their link is the store.
    pub options: &'a Options,
    /// Id of the group.
    pub group: GroupId,
    /// Rank of this member.
    pub me: Rank,
    /// Number of members.
    pub size: Rank,
    /// Time when this member began to join.
    pub began: Instant,
    /// Time by which all members must have joined.
    pub deadline: Instant,
    /// If `true`, members that are missing at the deadline count as failed, and the others go on. If `false`, a missing
    /// member is an error.
    pub is_partial: bool,
}

/// Order to a link through a store.
#[derive(Debug)]
pub enum StoreOrder {
    /// Writes an object, which these members will read.
    Put {
        /// Name of the object.
        name: ObjectName,
        /// Tag of the user; 0 in collectives.
        tag: u32,
        /// Number of members that will read the object.
        readers: u32,
        /// Members that will read the object.
        members: Arc<[Rank]>,
        /// Body of the object; stays valid until [`Link::take_sent`] or [`Link::take_unsendable`] returns `send`.
        body: Piece,
        /// Number of the send.
        send: Key,
    },
    /// Reads an object as soon as it exists: its head, and the first part of its body, which is stored with the head.
    /// Reported by [`Sink::object`](super::Sink::object).
    Get {
        /// Name of the object.
        name: ObjectName,
        /// Number of the read.
        get: Key,
    },
    /// Reads the rest of an object's body. Reported by [`Sink::rest_read`](super::Sink::rest_read).
    Rest {
        /// Name of the object.
        name: ObjectName,
        /// First byte of the body to read.
        first: usize,
        /// Memory for the whole body.
        into: Piece,
        /// Number of the read.
        get: Key,
    },
    /// Ends the wait for an object.
    Forget {
        /// Number of the read.
        get: Key,
    },
    /// Notes that this member has finished its part of a collective.
    Done {
        /// Communicator of the collective.
        context: u64,
        /// Number of the collective.
        collective: u32,
    },
    /// Notes that all members, including this member, have left a communicator.
    CommunicatorEnded {
        /// The communicator.
        context: u64,
    },
}

/// Name of an object. Ranks are ranks in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// Message of a user, by its number among the messages from this sender to this receiver.
    Message {
        /// Communicator.
        context: u64,
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Number of the message.
        number: u64,
    },
    /// Message of a collective, by its number among the collective's messages from this sender to this receiver.
    Step {
        /// Communicator.
        context: u64,
        /// Number of the collective.
        collective: u32,
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Number of the message.
        number: u32,
    },
    /// Object that a member publishes in a collective.
    Published {
        /// Communicator.
        context: u64,
        /// Number of the collective.
        collective: u32,
        /// Publisher.
        from: Rank,
        /// Number of the object in the schedule.
        key: u32,
    },
}

impl ObjectName {
    /// Communicator that the object belongs to.
    pub fn context(&self) -> u64 {
        match self {
            Self::Message { context, .. } | Self::Step { context, .. } | Self::Published { context, .. } => *context,
        }
    }

    /// Collective that the object belongs to.
    pub(crate) fn collective(&self) -> Option<u32> {
        match self {
            Self::Message { .. } => None,
            Self::Step { collective, .. } | Self::Published { collective, .. } => Some(*collective),
        }
    }
}

/// Head of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHead {
    /// Tag of the user; 0 in collectives.
    pub tag: u32,
    /// Length of the whole body, bytes.
    pub length: u64,
    /// Number of members that read the object.
    pub readers: u16,
}

/// State of another member when it finished, as far as this member needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinalCounts {
    /// Number of messages that the finished member has sent to this member, by communicator.
    pub sent: BTreeMap<u64, u64>,
    /// Number of collectives that the finished member took part in, by communicator.
    pub done: BTreeMap<u64, u32>,
}
