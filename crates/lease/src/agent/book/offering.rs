//! Changes of a node's offer, which grows at once and shrinks by a deadline.

use super::LeaseBook;
use crate::agent::{BookAction, CoreLease, NodeLimits, NodeOffer, OfferedCores, OfferedGpus};
use hotlease_wire::Rejection;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// The operator's offer of the node's resources, including resources that batch jobs have now.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) cores: BTreeSet<u32>,
    pub(super) memory_bytes: u64,
    /// Numbers of the GPUs.
    pub(super) gpus: BTreeSet<u32>,
    /// Time at which leases end if they hold more than this offer.
    pub(super) until: Duration,
}

/// Returns the youngest leases that must end so that the other leases hold at most `limit` bytes.
pub(super) fn youngest_beyond<'l>(
    limit: u64,
    leases: impl Iterator<Item = &'l mut CoreLease>,
    held: impl Fn(&CoreLease) -> u64,
) -> Vec<&'l mut CoreLease> {
    let mut leases: Vec<_> = leases.collect();
    leases.sort_by_key(|lease| Reverse((lease.granted, lease.epoch)));
    let mut sum = leases.iter().fold(0, |sum: u64, lease| sum.saturating_add(held(lease)));
    let is_beyond = |lease: &&'l mut CoreLease| {
        let is_beyond = sum > limit;
        sum -= held(lease).min(sum);
        is_beyond
    };
    leases.into_iter().take_while(is_beyond).collect()
}

impl LeaseBook {
    /// Adds cores that the node may offer later, beside the cores that it offers now.
    #[must_use]
    pub fn with_usable(mut self, cores: impl IntoIterator<Item = u32>) -> Self {
        self.usable.extend(cores);
        self
    }

    /// Sets how much memory the node may offer later, if that is more than it offers now.
    #[must_use]
    pub fn with_usable_memory(mut self, memory_bytes: u64) -> Self {
        self.usable_memory_bytes = self.usable_memory_bytes.max(memory_bytes);
        self
    }

    /// All resources that the node can offer.
    pub fn limits(&self) -> NodeLimits {
        NodeLimits {
            cores: self.usable.clone(),
            gpus: self.gpus.usable(),
            memory_bytes: self.usable_memory_bytes,
        }
    }

    /// Present offer of the node without the resources of batch jobs: cores by number, and memory in bytes.
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
        self.limits()
            .check(&offer.cores, offer.gpus.as_ref(), offer.memory_bytes)?;
        let kept = std::mem::take(&mut self.offer.gpus);
        self.offer = Offer {
            cores: self.resolve_cores(&offer.cores),
            memory_bytes: offer.memory_bytes.unwrap_or(self.offer.memory_bytes),
            gpus: offer.gpus.as_ref().map_or(kept, OfferedGpus::numbers),
            until: offer.until,
        };
        self.put_into_effect();
        self.expire(now, actions);
        Ok(())
    }

    /// Offers what the operator offers, without the resources that batch jobs may use. Marks leases that hold other
    /// resources as leaving: at once if a job may use these, else at the time that the operator's offer names.
    pub(super) fn put_into_effect(&mut self) {
        let of_jobs = self.jobs.sum();
        let (cores, gpus, memory_bytes) = match self.jobs_have_all() {
            true => (BTreeSet::new(), BTreeSet::new(), 0),
            false => (
                self.offer.cores.difference(&of_jobs.cores).copied().collect(),
                self.offer.gpus.clone(),
                self.offer.memory_bytes.saturating_sub(of_jobs.memory_bytes),
            ),
        };
        let held: BTreeSet<u32> = self.leases.values().flat_map(CoreLease::held_cores).collect();
        self.cores.offer(cores, &held);
        self.gpus.offer(&gpus, of_jobs.gpus);
        self.memory_bytes = memory_bytes;
        for lease in self.leases.values_mut() {
            // A move that is under way may fail or succeed, so the lease must be allowed to have both cores.
            let has_cores = lease.held_cores().iter().all(|core| self.offer.cores.contains(core));
            let kept = has_cores && lease.gpus().iter().all(|gpu| self.offer.gpus.contains(gpu));
            let earlier = lease.leaving.filter(|_| lease.batch_job.is_none());
            let until = earlier.map_or(self.offer.until, |earlier| earlier.min(self.offer.until));
            lease.leaving = (!kept).then_some(until);
            lease.batch_job = None;
        }
        self.fit_memory();
        self.make_room_for_jobs();
        self.cut_leases();
    }

    /// Marks as many of the youngest leases as leaving as needed, so that the memory that the operator offers is enough
    /// for the other leases.
    fn fit_memory(&mut self) {
        let (limit, until) = (self.offer.memory_bytes, self.offer.until);
        let held = |lease: &CoreLease| lease.request.spec.all_memory_bytes();
        let asked = self.leases.values_mut();
        let asked = asked.filter(|lease| lease.leaving.is_none() && lease.request.spec.memory_bytes > 0);
        for lease in youngest_beyond(limit, asked, held) {
            lease.leaving = Some(until);
        }
    }

    /// The cores of an offer that was checked.
    fn resolve_cores(&self, cores: &OfferedCores) -> BTreeSet<u32> {
        match cores {
            OfferedCores::Unchanged => self.offer.cores.clone(),
            OfferedCores::All => self.usable.clone(),
            OfferedCores::These(cores) => cores.clone(),
            OfferedCores::Count(count) => self.resized(*count as usize),
        }
    }

    /// Returns the offered set changed to `count` cores. Cores are added from the end, because most systems put their
    /// own work on the first cores.
    fn resized(&self, count: usize) -> BTreeSet<u32> {
        let mut wanted = self.offer.cores.clone();
        if let Some(more) = count.checked_sub(wanted.len()) {
            let others: Vec<u32> = self.usable.difference(&wanted).copied().collect();
            wanted.extend(others.iter().rev().take(more));
            return wanted;
        }
        let mut leases: Vec<_> = self.leases.values().collect();
        leases.sort_by_key(|lease| (lease.is_active(), Reverse((lease.granted, lease.epoch))));
        let held = leases.into_iter().flat_map(CoreLease::held_cores);
        let of_jobs = self.offer.cores.difference(self.cores.offered_set());
        for core in self.cores.free_set().iter().chain(of_jobs).copied().chain(held) {
            if wanted.len() == count {
                break;
            }
            wanted.remove(&core);
        }
        wanted
    }
}
