//! Order in which leases get the free cores.
//!
//! Other programs of the host, such as another platform, may use a core that the node offers. Two threads that are
//! pinned to one core wait for each other, however many other cores are idle. So the agent names the cores to avoid,
//! and leases get these last. This is only a hint: all free cores can be leased at any time.

use super::LeaseBook;
use crate::agent::CoreLease;
use std::collections::BTreeSet;

impl LeaseBook {
    /// Numbers of the cores that no lease holds, ascending.
    pub fn free_core_numbers(&self) -> impl Iterator<Item = u32> {
        self.cores.free_set().iter().copied()
    }

    /// Numbers of the cores that leases hold, and of the cores to which workers are being moved.
    pub fn held_core_numbers(&self) -> BTreeSet<u32> {
        self.leases.values().flat_map(CoreLease::held_cores).collect()
    }

    /// From now on leases get these cores only if no other core is free. Avoided cores that no lease holds are still
    /// counted as free.
    pub fn avoid_cores(&mut self, cores: BTreeSet<u32>) {
        self.cores.avoid(cores);
    }
}
