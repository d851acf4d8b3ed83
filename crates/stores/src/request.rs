//! Requests of a link to the thread that drives its store, and the events that the thread reports.

use hotlease_comm::Rank;
use hotlease_comm::link::{FinalCounts, Key, ObjectHead, ObjectName, StoreOrder};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::sync::Arc;

/// Cost of each message against the limit of copied bytes under way, in addition to its bytes.
pub(crate) const ENTRY_COST: usize = 128;

/// Request of the link to the courier.
pub(crate) enum CourierRequest {
    Order(StoreOrder),
    /// Order to put an object with a copy of its body.
    Copied {
        name: ObjectName,
        tag: u32,
        readers: u32,
        members: Arc<[Rank]>,
        body: Vec<u8>,
    },
    /// Frame for the board.
    Frame {
        to: Rank,
        frame: MemberFrame,
    },
}

impl CourierRequest {
    /// Whether other members wait for the effect of the request.
    pub(crate) fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Order(StoreOrder::Put { .. }) | Self::Copied { .. } | Self::Frame { .. }
        )
    }
}

/// Report of the courier to the link.
pub(crate) enum CourierEvent {
    Sent(Key),
    CannotSend(Key),
    Object {
        get: Key,
        head: ObjectHead,
        first: Vec<u8>,
    },
    RestRead {
        get: Key,
        is_written: bool,
    },
    Frame {
        from: Rank,
        frame: MemberFrame,
    },
    Left {
        from: Rank,
        parting: FinalCounts,
    },
    Quit {
        from: Rank,
        context: u64,
        sent: u64,
        done: u32,
    },
    Lost {
        rank: Rank,
        loss: Loss,
    },
    Severed(Arc<str>),
}
