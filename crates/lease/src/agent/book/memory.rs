//! Memory of a node, and the parts of it that leases hold.

use super::LeaseBook;
use crate::agent::CoreLease;
use crate::request::{CoreUse, LeaseSpec};
use hotlease_wire::Rejection;

impl LeaseBook {
    /// Memory of each worker of a lease that asks for none, bytes: the node's memory per offered core, times the cores
    /// of the worker. 0 means no limit, because the node's memory is not known.
    pub fn memory_share(&self, spec: &LeaseSpec) -> u64 {
        let slots = u64::from(spec.slots_per_worker);
        let (cores, parts) = match spec.sharing {
            CoreUse::Exclusive(_) => (slots, 1),
            CoreUse::Shared => (slots, u64::from(self.places_per_core().max(1))),
        };
        let offered = u64::from(self.offered_cores().max(1));
        (self.memory_bytes / offered).saturating_mul(cores) / parts
    }

    /// Whether too little memory is left for a lease of these terms now, but the node would have enough without other
    /// leases.
    pub fn is_short_of_memory(&self, spec: &LeaseSpec) -> bool {
        (self.memory_left() + 1..=self.memory_bytes).contains(&spec.all_memory_bytes())
    }

    /// Memory that new leases may still ask for, bytes.
    pub fn memory_left(&self) -> u64 {
        let held = |lease: &CoreLease| match self.is_memory_of_jobs() {
            true => lease.memory_bytes,
            false => lease.request.spec.all_memory_bytes(),
        };
        let leases = self.leases.values();
        leases.fold(self.memory_bytes, |left, lease| left.saturating_sub(held(lease)))
    }

    /// Whether batch jobs were given some of the node's memory. If so, all leases together, including those that asked
    /// for no memory, may hold only the memory that jobs leave: more would be memory of the jobs.
    fn is_memory_of_jobs(&self) -> bool {
        self.offer.memory_bytes > 0 && self.jobs.largest().is_some()
    }

    /// Refuses a lease that asks for no memory, if batch jobs leave less than its share.
    pub(super) fn check_share(&self, spec: &LeaseSpec) -> Result<(), Rejection> {
        if spec.memory_bytes > 0 || !self.is_memory_of_jobs() {
            return Ok(());
        }
        let (share, left) = (self.memory_share(spec), self.memory_left());
        // A share of 0 would mean no limit.
        if share > 0 && share.saturating_mul(spec.workers.into()) <= left {
            return Ok(());
        }
        let of_slot = self.memory_share(&LeaseSpec {
            slots_per_worker: 1,
            ..*spec
        });
        let with_memory = left.checked_div(of_slot).unwrap_or(0);
        let with_memory = u32::try_from(with_memory).unwrap_or(u32::MAX);
        let (asked, offered) = (spec.all_slots(), self.offered_cores());
        Err(match spec.sharing {
            CoreUse::Exclusive(_) => Rejection::NoCapacity {
                asked,
                free: self.free_cores().min(with_memory),
                offered,
            },
            CoreUse::Shared => Rejection::NoPlaces {
                asked,
                free: self.free_places().min(with_memory),
                offered: offered * self.places_per_core(),
            },
        })
    }
}
