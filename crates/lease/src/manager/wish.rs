//! Wishes of operators for nodes.
//!
//! An order changes the wish for its node. The wish is durable, and the manager repeats it to the node until the
//! node reports that it has carried it out. So an order for a node that is away is carried out when the node comes
//! back, and a restarted node does not forget that it was drained.

use crate::agent::OfferedCores;

/// Most nodes with a wish: the number of agents that a manager remembers.
pub const WISHES_MAX: usize = super::AGENTS_MAX;

/// Order of an operator. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOrder {
    /// The node offers this, and grants leases.
    Add(OfferWish),
    /// The node grants no leases, and those that are left end at the deadline.
    Drain {
        /// The deadline.
        by_ms: u64,
    },
    /// The node grants leases again.
    Resume,
    /// The node grants no leases, and all its leases end at once.
    Remove,
}

/// Offer that an operator wants of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferWish {
    /// The cores to offer.
    pub cores: OfferedCores,
    /// Memory to offer, bytes; none: what the agent finds.
    pub memory_bytes: Option<u64>,
    /// Number of GPUs to offer, the first ones; none: what the agent says.
    pub gpus: Option<u32>,
    /// When leases end that hold something no longer offered.
    pub by_ms: u64,
}

/// Combined wish of all orders for a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeWish {
    /// Number of the wish; it rises with each order for the node.
    pub number: u64,
    /// The node grants no leases, and those that are left end at this time; none: it grants leases.
    pub drained_by_ms: Option<u64>,
    /// The offer; none: as the node's own configuration says.
    pub offer: Option<OfferWish>,
}

impl NodeWish {
    /// The wish after another order.
    #[must_use]
    pub fn after(&self, order: NodeOrder, now_ms: u64) -> Self {
        // A deadline may be brought forward, but not be put off: clients rely on it.
        let by = |by_ms: u64| Some(self.drained_by_ms.map_or(by_ms, |known| known.min(by_ms)));
        let (drained_by_ms, offer) = match order {
            NodeOrder::Add(offer) => (None, Some(offer)),
            NodeOrder::Drain { by_ms } => (by(by_ms), self.offer.clone()),
            NodeOrder::Resume => (None, self.offer.clone()),
            NodeOrder::Remove => (by(now_ms), self.offer.clone()),
        };
        Self {
            number: now_ms.max(self.number + 1),
            drained_by_ms,
            offer,
        }
    }

    /// Whether a node without orders already is what the wish wants.
    pub fn is_nothing(&self) -> bool {
        self.drained_by_ms.is_none() && self.offer.is_none()
    }
}
