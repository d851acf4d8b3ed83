//! Memory of a node, and what leases hold of it.

use super::LeaseBook;
use crate::request::{CoreUse, LeaseSpec};

impl LeaseBook {
    /// Memory of each worker of a lease that asks for none: the node's memory for each of its cores, times the cores
    /// of the worker, bytes; 0: no limit, as the node's memory is not known.
    pub fn memory_share(&self, spec: &LeaseSpec) -> u64 {
        let slots = u64::from(spec.slots_per_worker);
        let (cores, parts) = match spec.sharing {
            CoreUse::Exclusive(_) => (slots, 1),
            CoreUse::Shared => (slots, u64::from(self.places_per_core().max(1))),
        };
        let offered = u64::from(self.offered_cores().max(1));
        (self.memory_bytes / offered).saturating_mul(cores) / parts
    }

    /// Whether a lease that asks for this memory finds too little now, and would find enough without the others.
    pub fn is_short_of_memory(&self, spec: &LeaseSpec) -> bool {
        (self.memory_left() + 1..=self.memory_bytes).contains(&spec.all_memory_bytes())
    }

    /// Memory that new leases may still ask for, bytes.
    pub fn memory_left(&self) -> u64 {
        self.leases.values().fold(self.memory_bytes, |left, lease| {
            left.saturating_sub(lease.request.spec.all_memory_bytes())
        })
    }
}
