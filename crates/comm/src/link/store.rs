//! Interface between the protocol and links through stores: the orders that such a link carries out, the names of its
//! objects, and [`StoreOpener`], by which another crate provides such links.
//!
//! Links to stores need clients of these stores, and with them an asynchronous runtime, so they are in a crate of their
//! own, `hotlease_stores`; a program passes its openers as [`Options::stores`].

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
    /// Whether members that are missing at the deadline count as failed, and the others go on; otherwise a missing
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
        /// Number of members that will read it.
        readers: u32,
        /// Members that will read it.
        members: Arc<[Rank]>,
        /// Stays until [`Link::take_sent`] or [`Link::take_unsendable`] returns the number.
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
    /// Notes that all members, this one too, have left a communicator.
    CommunicatorEnded {
        /// The communicator.
        context: u64,
    },
}

/// Name of an object. Ranks are those of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// Message of a user, by its number among those of this sender to this receiver.
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
    /// Message of a collective, by its number among those of this sender to this receiver in the collective.
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
    /// Number of members that read it.
    pub readers: u16,
}

/// State of a member when it finished, as far as it concerns this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinalCounts {
    /// Number of messages that it has sent to this one, by communicator.
    pub sent: BTreeMap<u64, u64>,
    /// Number of collectives that it took part in, by communicator.
    pub done: BTreeMap<u64, u32>,
}
