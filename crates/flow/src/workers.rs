//! Workers that run tasks, and the credits of each.

use crate::id::{NIL, WorkerIndex};

/// Largest number of tasks on a worker at a time.
pub const CREDITS_MAX: u32 = 4096;
/// Largest number of workers; each worker's number is less than this.
pub const WORKERS_MAX: u32 = 65_536;

#[derive(Debug, Clone)]
struct Worker {
    /// Whether the worker accepts tasks.
    up: bool,
    credits: u32,
    in_flight: u32,
    /// Position in the worker's bucket; `NIL` if the worker has no credit left.
    place: u32,
}

/// Table of the workers. Workers with credit are in buckets by their number of tasks, so the least busy worker is
/// found, and moved, in constant time.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    all: Vec<Worker>,
    buckets: Vec<Vec<u32>>,
    /// All buckets with smaller numbers are empty.
    lowest: usize,
    /// Number of unused credits of all workers.
    spare: u64,
}

impl Workers {
    /// Sets a worker's credits: the largest number of tasks that it accepts at a time. Returns `false` if a number
    /// exceeds its limit.
    pub fn set(&mut self, worker: WorkerIndex, credits: u32) -> bool {
        if worker.0 >= WORKERS_MAX || credits > CREDITS_MAX {
            return false;
        }
        let index = worker.0;
        while self.all.len() <= index as usize {
            self.all.push(Worker {
                up: false,
                credits: 0,
                in_flight: 0,
                place: NIL,
            });
        }
        self.leave_bucket(index);
        let known = &mut self.all[index as usize];
        (known.up, known.credits) = (true, credits);
        self.join_bucket(index);
        true
    }

    /// Stops a worker from accepting tasks. Returns `false` if the worker accepted none before. The ends of its running
    /// tasks must still be reported.
    pub fn stop(&mut self, worker: WorkerIndex) -> bool {
        if !self.is_up(worker.0) {
            return false;
        }
        self.leave_bucket(worker.0);
        self.all[worker.0 as usize].up = false;
        true
    }

    pub fn is_up(&self, index: u32) -> bool {
        self.all.get(index as usize).is_some_and(|worker| worker.up)
    }

    /// Number of tasks on a worker now.
    pub fn in_flight(&self, worker: WorkerIndex) -> u32 {
        self.all.get(worker.0 as usize).map_or(0, |worker| worker.in_flight)
    }

    pub fn has_credit(&self, index: u32) -> bool {
        self.all.get(index as usize).is_some_and(|worker| worker.place != NIL)
    }

    /// Whether any worker has credit.
    pub fn any_has_credit(&self) -> bool {
        self.spare > 0
    }

    /// The worker with credit that has the fewest tasks.
    pub fn least_busy(&mut self) -> Option<u32> {
        if self.spare == 0 {
            return None;
        }
        while self.buckets.get(self.lowest)?.is_empty() {
            self.lowest += 1;
        }
        self.buckets[self.lowest].last().copied()
    }

    /// Uses one credit of a worker.
    pub fn take(&mut self, index: u32) {
        self.leave_bucket(index);
        self.all[index as usize].in_flight += 1;
        self.join_bucket(index);
    }

    /// Returns one credit to a worker.
    pub fn give_back(&mut self, index: u32) {
        self.leave_bucket(index);
        self.all[index as usize].in_flight -= 1;
        self.join_bucket(index);
    }

    fn leave_bucket(&mut self, index: u32) {
        let worker = &mut self.all[index as usize];
        if worker.place == NIL {
            return;
        }
        let place = std::mem::replace(&mut worker.place, NIL) as usize;
        self.spare -= u64::from(worker.credits - worker.in_flight);
        let bucket = &mut self.buckets[worker.in_flight as usize];
        bucket.swap_remove(place);
        if let Some(moved) = bucket.get(place).copied() {
            self.all[moved as usize].place = place as u32;
        }
    }

    fn join_bucket(&mut self, index: u32) {
        let worker = &mut self.all[index as usize];
        if !worker.up || worker.in_flight >= worker.credits {
            return;
        }
        self.spare += u64::from(worker.credits - worker.in_flight);
        let load = worker.in_flight as usize;
        if self.buckets.len() <= load {
            self.buckets.resize_with(load + 1, Vec::new);
        }
        worker.place = self.buckets[load].len() as u32;
        self.buckets[load].push(index);
        self.lowest = self.lowest.min(load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_spread_evenly_and_never_beyond_the_credits() {
        let mut workers = Workers::default();
        for (index, credits) in [(0, 3), (1, 1), (2, 3)] {
            assert!(workers.set(WorkerIndex(index), credits));
        }
        let mut given = [0; 3];
        while let Some(index) = workers.least_busy() {
            workers.take(index);
            given[index as usize] += 1;
            let with_room: Vec<_> = (0..3).filter(|index| workers.has_credit(*index)).collect();
            let loads = with_room.iter().map(|index| given[*index as usize]);
            assert!(
                loads.clone().max().unwrap_or(0) <= loads.min().unwrap_or(0) + 1,
                "{given:?}"
            );
        }
        assert_eq!(given, [3, 1, 3]);
        assert!(!workers.any_has_credit());
        workers.give_back(1);
        assert_eq!(workers.least_busy(), Some(1));
        assert!(workers.stop(WorkerIndex(1)));
        assert_eq!(workers.least_busy(), None, "a stopped worker takes nothing");
        assert!(workers.set(WorkerIndex(1), 2));
        assert_eq!(workers.least_busy(), Some(1));
    }

    #[test]
    fn fewer_credits_than_tasks_are_no_credit_until_enough_came_back() {
        let mut workers = Workers::default();
        workers.set(WorkerIndex(0), 4);
        (0..4).for_each(|_| workers.take(0));
        workers.set(WorkerIndex(0), 2);
        workers.give_back(0);
        workers.give_back(0);
        assert!(!workers.has_credit(0));
        workers.give_back(0);
        assert!(workers.has_credit(0));
        assert!(!workers.set(WorkerIndex(WORKERS_MAX), 1));
        assert!(!workers.set(WorkerIndex(0), CREDITS_MAX + 1));
    }
}
