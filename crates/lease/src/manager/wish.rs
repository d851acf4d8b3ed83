//! Wishes of operators for nodes.
//!
//! An order changes the wish for a node. The wish is durable, and the manager repeats it to the node until the node
//! reports that the order is carried out. So an order for a node that is away is carried out when the node registers
//! again, and a node that was drained stays drained after a restart.
//!
//! Only the node can decide whether it can carry out an order. Until the node has done so, the wish also contains the
//! state that was wanted before. If the node rejects the order, it gets that state again.

use crate::agent::{OfferedCores, OfferedGpus};

/// Largest number of nodes with a wish: the number of agents that a manager remembers.
pub const WISHES_MAX: usize = super::AGENTS_MAX;
/// Largest number of earlier states in a wish. There are several if the node is away, and so has not answered several
/// offers, each of which it may still reject.
pub const EARLIER_MAX: usize = 8;

/// Order of an operator. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOrder {
    /// The node makes this offer, and grants leases.
    Add(OfferWish),
    /// The node grants no leases, and its remaining leases end at the deadline.
    Drain {
        /// The deadline.
        by_ms: u64,
    },
    /// The node grants leases again.
    Resume,
    /// The node grants no leases, and all its leases end at once.
    Remove,
}

/// Offer that an operator wants a node to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferWish {
    /// The cores to offer.
    pub cores: OfferedCores,
    /// Memory to offer, bytes; `None` means the amount that the agent finds.
    pub memory_bytes: Option<u64>,
    /// GPUs to offer; `None` means the GPUs that the agent offers without an order.
    pub gpus: Option<OfferedGpus>,
    /// Time at which leases end if they hold a resource that is no longer offered.
    pub by_ms: u64,
}

/// State of a node that an operator wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WishedState {
    /// If set, the node grants no leases, and its remaining leases end at this time. `None` means that it grants
    /// leases.
    pub drained_by_ms: Option<u64>,
    /// The offer; `None` means the offer of the node's own configuration.
    pub offer: Option<OfferWish>,
}

impl WishedState {
    /// Drains the node. A known deadline can be made earlier, but not later, because clients rely on it.
    fn drain(&mut self, by_ms: u64) {
        self.drained_by_ms = Some(self.drained_by_ms.map_or(by_ms, |known| known.min(by_ms)));
    }

    /// Whether both states are equal, except for their times.
    fn is_like(&self, other: &Self) -> bool {
        let resources = |state: &Self| {
            let offer = state.offer.clone();
            offer.map(|offer| (offer.cores, offer.memory_bytes, offer.gpus))
        };
        self.drained_by_ms.is_some() == other.drained_by_ms.is_some() && resources(self) == resources(other)
    }
}

/// Combined wish of all orders for a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeWish {
    /// Number of the wish; it rises with each order for the node.
    pub number: u64,
    /// The wanted state.
    pub state: WishedState,
    /// States that were wanted before each of the orders that the node has not carried out yet, oldest first. A node
    /// that rejects the wish gets the last of these states.
    pub earlier: Vec<WishedState>,
}

impl NodeWish {
    /// Returns the wish after another order.
    #[must_use]
    pub fn after(&self, order: NodeOrder, now_ms: u64) -> Self {
        let mut wish = self.clone();
        wish.number = now_ms.max(self.number + 1);
        match order {
            NodeOrder::Add(offer) => wish.change(WishedState {
                drained_by_ms: None,
                offer: Some(offer),
            }),
            // Without an offer the node has no reason to reject the order, so no earlier state is needed.
            NodeOrder::Resume if wish.state.offer.is_none() => wish.state.drained_by_ms = None,
            NodeOrder::Resume => wish.change(WishedState {
                drained_by_ms: None,
                offer: wish.state.offer.clone(),
            }),
            NodeOrder::Drain { by_ms } => wish.drain(by_ms),
            NodeOrder::Remove => wish.drain(now_ms),
        }
        wish
    }

    /// Drains the wanted state and all earlier states: a node can always be drained, whichever of these offers it
    /// rejects.
    fn drain(&mut self, by_ms: u64) {
        self.state.drain(by_ms);
        self.earlier.iter_mut().for_each(|state| state.drain(by_ms));
    }

    fn change(&mut self, state: WishedState) {
        let before = std::mem::replace(&mut self.state, state);
        if !before.is_like(&self.state) {
            self.earlier.retain(|earlier| !earlier.is_like(&before));
            self.earlier.push(before);
        }
    }

    /// Returns the wish after the node has carried it out: without earlier states. Returns `None` if the wish does not
    /// change, because it has no earlier states, or because the node was drained, and so has not shown that it can make
    /// the offer.
    pub(super) fn carried_out(&self) -> Option<Self> {
        let is_shown = self.state.drained_by_ms.is_none() && !self.earlier.is_empty();
        is_shown.then(|| Self {
            earlier: Vec::new(),
            ..self.clone()
        })
    }

    /// Returns the wish as it is after the node has rejected it: it wants the last earlier state. Returns `None` if
    /// there is no earlier state: an earlier run of the node, with more resources, has carried out the wish.
    pub(super) fn rejected(&self) -> Option<Self> {
        let mut earlier = self.earlier.clone();
        let state = earlier.pop()?;
        Some(Self {
            number: self.number + 1,
            state,
            earlier,
        })
    }

    /// Whether the wanted state is the state of a node without orders.
    pub fn is_nothing(&self) -> bool {
        self.state == WishedState::default()
    }
}
