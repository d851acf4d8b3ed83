//! Changes of a node's offer: it grows at once, and shrinks by a deadline.

use super::LeaseBook;
use crate::agent::{BookAction, CoreLease, NodeOffer, OfferedCores};
use hotlease_wire::Rejection;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

impl LeaseBook {
    /// Adds cores that the node may offer beside those that it offers now.
    #[must_use]
    pub fn with_usable(mut self, cores: impl IntoIterator<Item = u32>) -> Self {
        self.usable.extend(cores);
        self
    }

    /// Present offer of the node: cores by number, and memory in bytes.
    pub fn offer_now(&self) -> (Vec<u32>, u64) {
        (self.cores.offered_set().iter().copied().collect(), self.memory_bytes)
    }

    /// Replaces the offer from now on.
    pub(super) fn offer(
        &mut self,
        offer: &NodeOffer,
        now: Duration,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        let offered = self.resolve_cores(&offer.cores)?;
        let gpus = offer.gpus.unwrap_or(self.gpus.offered());
        if gpus > self.gpus.usable() {
            let what = format!("the agent has {} GPUs, not {gpus}", self.gpus.usable());
            return Err(Rejection::BadRequest { what });
        }
        self.gpus.offer(gpus);
        let held: BTreeSet<u32> = self.leases.values().flat_map(CoreLease::held_cores).collect();
        self.cores.offer(offered.clone(), &held);
        self.memory_bytes = offer.memory_bytes.unwrap_or(self.memory_bytes);
        for lease in self.leases.values_mut() {
            // A move that is under way may fail or succeed, so both cores count.
            let has_cores = lease.held_cores().iter().all(|core| offered.contains(core));
            let kept = has_cores && lease.gpus().iter().all(|gpu| *gpu < gpus);
            lease.leaving = match (kept, lease.leaving) {
                (true, _) => None,
                (false, earlier) => Some(earlier.map_or(offer.until, |by| by.min(offer.until))),
            };
        }
        self.fit_memory(offer.until);
        self.cut_leases();
        self.expire(now, actions);
        Ok(())
    }

    /// Marks the youngest leases as leaving until the memory is enough for the others.
    fn fit_memory(&mut self, until: Duration) {
        let mut asked: Vec<_> = self
            .leases
            .values_mut()
            .filter(|lease| lease.leaving.is_none() && lease.request.spec.memory_bytes > 0)
            .collect();
        asked.sort_by_key(|lease| Reverse((lease.granted, lease.epoch)));
        let held = |lease: &CoreLease| lease.request.spec.all_memory_bytes();
        let mut sum = asked.iter().fold(0, |sum: u64, lease| sum.saturating_add(held(lease)));
        for lease in asked {
            if sum <= self.memory_bytes {
                return;
            }
            sum -= held(lease).min(sum);
            lease.leaving = Some(until);
        }
    }

    fn resolve_cores(&self, cores: &OfferedCores) -> Result<BTreeSet<u32>, Rejection> {
        let bad = |what: String| Err(Rejection::BadRequest { what });
        match cores {
            OfferedCores::Unchanged => Ok(self.cores.offered_set().clone()),
            OfferedCores::All => Ok(self.usable.clone()),
            OfferedCores::These(cores) => match cores.difference(&self.usable).next() {
                Some(core) => bad(format!(
                    "core {core} is not one that the agent may use; it has {:?}",
                    self.usable
                )),
                None => Ok(cores.clone()),
            },
            OfferedCores::Count(count) if *count as usize > self.usable.len() => {
                bad(format!("the agent may use {} cores, not {count}", self.usable.len()))
            }
            OfferedCores::Count(count) => Ok(self.resized(*count as usize)),
        }
    }

    /// The offered set with `count` cores: added cores come from the end, as most systems put their own work on the
    /// first ones.
    fn resized(&self, count: usize) -> BTreeSet<u32> {
        let mut wanted = self.cores.offered_set().clone();
        if let Some(more) = count.checked_sub(wanted.len()) {
            let others: Vec<u32> = self.usable.difference(&wanted).copied().collect();
            wanted.extend(others.iter().rev().take(more));
            return wanted;
        }
        let mut leases: Vec<_> = self.leases.values().collect();
        leases.sort_by_key(|lease| (lease.is_active(), Reverse((lease.granted, lease.epoch))));
        let held = leases.into_iter().flat_map(CoreLease::held_cores);
        for core in self.cores.free_set().iter().copied().chain(held) {
            if wanted.len() == count {
                break;
            }
            wanted.remove(&core);
        }
        wanted
    }
}
