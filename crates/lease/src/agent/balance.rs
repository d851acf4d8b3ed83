//! Balance of shared cores: choice of the workers to move to an idle core.
//!
//! A worker is placed on the core with the fewest slots (`book/cores.rs`). Later another core may be better: a lease
//! ends and leaves its core idle, while workers of other leases take turns on one core. So the agent passes to this
//! rule the same observations as to the rule of fairness, and at the end of each [`PERIOD`] the rule names the workers
//! to move:
//!
//! ```text
//!            a period
//!   core 0   A ██████    █████     used by A
//!            B       ████          refused once at least: B goes to core 1, between two invocations
//!   core 1                         used by none
//! ```
//!
//! A worker is moved if one of its invocations was refused, other workers used its core, and an idle core has room for
//! it. A slot never waits for a core, but refuses the invocation, so there is no contention without refusals. In a
//! period, at most one worker leaves each core, and at most one is moved to each core. A worker that runs a function is
//! not moved.
//!
//! Workers do not move back and forth while the load stays the same. A worker is moved to a core that others use for
//! less than [`IDLE_PART`], and leaves a core only if others use it for more than [`BUSY_PART`]. So it has no reason to
//! leave again. The core that the worker left is not idle, because the other workers there still use it. If the load
//! changes, a worker may be moved again, but not within [`REST`]: a move takes some 50 us of the worker's time, so
//! moves take at most a 40,000th of its time.
//!
//! The kernel measures the use of a core, so a worker cannot report a false use (see `fairness`). A worker can only
//! claim falsely that it refused an invocation. That claim at most moves the worker to an idle core.

use super::fairness::WorkerSample;
use hotlease_wire::ids::LeaseId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time over which the use of cores is compared. It has ten looks, so that claims which are held without computing are
/// seen.
const PERIOD: Duration = Duration::from_millis(100);
/// A core is idle if it was used for at most 1/`IDLE_PART` of the period. A sleeping worker uses less.
const IDLE_PART: u32 = 100;
/// A worker may leave a core that others used for at least 1/`BUSY_PART` of the period.
const BUSY_PART: u32 = 25;
/// Time for which a moved worker stays on its new core.
const REST: Duration = Duration::from_secs(2);

/// Observation of one worker on a shared core, for the balance of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSample<'a> {
    /// Sample of the worker for fairness.
    pub worker: WorkerSample<'a>,
    /// The worker's lease.
    pub lease: LeaseId,
    /// The worker's core.
    pub core: u32,
    /// Number of the worker's slots.
    pub slots: u32,
    /// Whether the worker is being moved already.
    pub is_moving: bool,
}

/// A worker to move, and the core to move it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreMove {
    /// Number that identifies the worker as long as it lives.
    pub worker: u64,
    /// The core.
    pub core: u32,
}

/// Use of a core by a worker in the present period.
#[derive(Debug)]
struct Load {
    lease: LeaseId,
    core: u32,
    slots: u32,
    is_moving: bool,
    /// Processor time and refused invocations at the last look, and whether the worker held the claim then.
    computed: Duration,
    refused: u64,
    holds: bool,
    used: Duration,
    was_refused: bool,
    /// Whether the worker was started on its core or moved there in this period.
    is_new: bool,
    rests_until: Duration,
}

/// Use of all shared cores of a node. It is pure: the agent passes in its observations, and carries out the returned
/// moves.
#[derive(Debug, Default)]
pub struct Balance {
    now: Duration,
    passed: Duration,
    workers: BTreeMap<u64, Load>,
}

impl Balance {
    /// Applies the observations of all workers on shared cores, `elapsed` after the last look. At the end of a period
    /// returns the workers to move. `room`: number of places that are not taken on each core of the node.
    pub fn observe(
        &mut self,
        elapsed: Duration,
        seen: &[LoadSample<'_>],
        room: impl FnOnce() -> BTreeMap<u32, u32>,
    ) -> Vec<CoreMove> {
        self.now += elapsed;
        self.passed += elapsed;
        let living: BTreeSet<u64> = seen.iter().map(|seen| seen.worker.worker).collect();
        self.workers.retain(|worker, _| living.contains(worker));
        for seen in seen {
            self.count(elapsed, seen);
        }
        if self.passed < PERIOD {
            return Vec::new();
        }
        let moves = self.choose(&room());
        self.passed = Duration::ZERO;
        for load in self.workers.values_mut() {
            (load.used, load.was_refused, load.is_new) = (Duration::ZERO, false, false);
        }
        moves
    }

    fn count(&mut self, elapsed: Duration, seen: &LoadSample<'_>) {
        let LoadSample { worker, core, .. } = *seen;
        let now = self.now;
        let load = self.workers.entry(worker.worker).or_insert_with(|| Load {
            lease: seen.lease,
            core,
            slots: seen.slots,
            is_moving: false,
            computed: worker.computed,
            refused: worker.refused,
            holds: false,
            used: Duration::ZERO,
            was_refused: false,
            is_new: true,
            rests_until: Duration::ZERO,
        });
        if load.core != core {
            (load.core, load.is_new, load.rests_until) = (core, true, now + REST);
            (load.used, load.was_refused) = (Duration::ZERO, false);
        }
        load.used += worker.used_since(load.computed, elapsed);
        load.was_refused |= load.refused != worker.refused;
        (load.computed, load.refused, load.holds) = (worker.computed, worker.refused, worker.holds);
        load.is_moving = seen.is_moving;
    }

    fn choose(&self, room: &BTreeMap<u32, u32>) -> Vec<CoreMove> {
        let mut on: BTreeMap<u32, Vec<(u64, &Load)>> = BTreeMap::new();
        for (worker, load) in &self.workers {
            on.entry(load.core).or_default().push((*worker, load));
        }
        let is_idle = |core: &u32| {
            on.get(core).is_none_or(|loads| {
                let used: Duration = loads.iter().map(|(_, load)| load.used).sum();
                used * IDLE_PART <= self.passed && loads.iter().all(|(_, load)| !load.is_new)
            })
        };
        let mut idle: BTreeMap<u32, u32> = room
            .iter()
            .filter(|(core, _)| is_idle(core))
            .map(|(core, room)| (*core, *room))
            .collect();
        let mut moves = Vec::new();
        for loads in on.values() {
            let used: Duration = loads.iter().map(|(_, load)| load.used).sum();
            let wants_to_leave = |(_, load): &&(u64, &Load)| {
                let others = used - load.used;
                let may_go = !load.is_new && !load.is_moving && !load.holds && load.rests_until <= self.now;
                may_go && load.was_refused && others * BUSY_PART >= self.passed
            };
            let mut leaving: Vec<_> = loads.iter().filter(wants_to_leave).collect();
            // A move pauses its worker, so the worker that used the core least loses the least time.
            leaving.sort_by_key(|(worker, load)| (load.used, *worker));
            let chosen = leaving
                .into_iter()
                .find_map(|(worker, load)| Some((*worker, self.target(load, &idle)?)));
            if let Some((worker, core)) = chosen {
                idle.remove(&core);
                moves.push(CoreMove { worker, core });
            }
        }
        moves
    }

    /// Returns the idle core with the most room, if the worker fits on any. A worker is not moved to a core with
    /// another worker of its lease: the lease pays for both cores, and its calls already find the worker on the idle
    /// core.
    fn target(&self, load: &Load, idle: &BTreeMap<u32, u32>) -> Option<u32> {
        let own = |core: u32| {
            let loads = self.workers.values();
            loads
                .filter(|other| (other.lease, other.core) == (load.lease, core))
                .count()
        };
        let has_sibling = own(load.core) > 1;
        let fits = idle
            .iter()
            .filter(|(core, room)| **room >= load.slots && (has_sibling || own(**core) == 0));
        fits.min_by_key(|(core, room)| (Reverse(**room), **core))
            .map(|(core, _)| *core)
    }
}

#[cfg(test)]
mod tests;
