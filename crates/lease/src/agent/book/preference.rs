//! Order in which leases get the free cores.
//!
//! Something else on the host may use a core that the node offers: another platform, for instance. Two threads that are
//! pinned to one core wait for each other however many cores idle. So the agent says which cores are better left alone,
//! and leases get these last. That is a hint: all free cores can be leased at any time.

use super::LeaseBook;
use crate::agent::CoreLease;
use std::collections::BTreeSet;

impl LeaseBook {
    /// Numbers of the cores that no lease holds, ascending.
    pub fn free_core_numbers(&self) -> impl Iterator<Item = u32> {
        self.cores.free_set().iter().copied()
    }

    /// Numbers of the cores that leases hold, and of those to which workers are being moved.
    pub fn held_core_numbers(&self) -> BTreeSet<u32> {
        self.leases.values().flat_map(CoreLease::held_cores).collect()
    }

    /// Gives out these cores last from now on. They count as free.
    pub fn avoid_cores(&mut self, cores: BTreeSet<u32>) {
        self.cores.avoid(cores);
    }
}
