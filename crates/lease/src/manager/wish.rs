//! What operators want of nodes.
//!
//! An order changes the wish for its node; the wish is durable, and the node is told it until it says that it
//! has carried it out. So an order for a node that is away is carried out when it comes, and a node that is
//! started again does not forget that it was drained.

use crate::agent::OfferedCores;

/// Nodes that somebody wants something of; so many agents a manager remembers.
pub const WISHES_MAX: usize = super::AGENTS_MAX;

/// What an operator orders. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOrder {
    /// The node offers this, and takes leases.
    Add(OfferWish),
    /// It takes no leases, and those that are left end then.
    Drain {
        /// When.
        by_ms: u64,
    },
    /// It takes leases again.
    Resume,
    /// It takes no leases, and all that are there end at once.
    Remove,
}

/// What a node shall offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferWish {
    /// Which cores.
    pub cores: OfferedCores,
    /// How much memory, bytes; none: what the agent finds.
    pub memory_bytes: Option<u64>,
    /// How many GPUs, the first ones; none: what the agent says.
    pub gpus: Option<u32>,
    /// When leases end that hold what is no longer offered.
    pub by_ms: u64,
}

/// What all orders for a node together want of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeWish {
    /// Rises with each order for the node.
    pub number: u64,
    /// It takes no leases, and those that are left end then; none: it takes leases.
    pub drained_by_ms: Option<u64>,
    /// What it offers; none: what its own operator says.
    pub offer: Option<OfferWish>,
}

impl NodeWish {
    /// The wish after a further order.
    #[must_use]
    pub fn after(&self, order: NodeOrder, now_ms: u64) -> Self {
        // A deadline may be brought forward, and not be put off: clients rely on it.
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

    /// Whether a node of which nothing is known is as it wants.
    pub fn is_nothing(&self) -> bool {
        self.drained_by_ms.is_none() && self.offer.is_none()
    }
}
