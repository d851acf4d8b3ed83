//! GPUs of a node, free and held. GPUs are numbered from 0, and each is held by one worker at a time.

use super::LeaseBook;
use std::collections::BTreeSet;

/// The GPUs of a node: how many exist, how many are offered, and which are held.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    usable: u32,
    /// GPUs that the operator offers. GPUs of batch jobs are not in the offer in effect.
    of_operator: BTreeSet<u32>,
    of_jobs: BTreeSet<u32>,
    held: BTreeSet<u32>,
}

impl LeaseBook {
    /// Number of offered GPUs that no lease holds.
    pub fn free_gpus(&self) -> u32 {
        self.gpus.free()
    }

    /// Number of offered GPUs.
    pub fn offered_gpus(&self) -> u32 {
        self.gpus.offered()
    }

    /// Numbers of the offered GPUs.
    pub fn gpu_numbers(&self) -> impl Iterator<Item = u32> {
        self.gpus.offered_ones()
    }

    /// Whether this node has GPUs, offered or not.
    pub fn has_gpus(&self) -> bool {
        self.gpus.usable() > 0
    }
}

impl Gpus {
    /// Makes the GPUs of a node, all of them offered and free.
    pub(super) fn new(usable: u32) -> Self {
        Self {
            usable,
            of_operator: (0..usable).collect(),
            of_jobs: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    pub(super) fn offered(&self) -> u32 {
        self.offered_ones().count() as u32
    }

    pub(super) fn free(&self) -> u32 {
        self.free_ones().count() as u32
    }

    /// Whether this GPU is offered, held or not.
    #[cfg(test)]
    pub(super) fn is_offered(&self, gpu: u32) -> bool {
        self.of_operator.contains(&gpu) && !self.of_jobs.contains(&gpu)
    }

    /// Numbers of the offered GPUs, held or not.
    pub(super) fn offered_ones(&self) -> impl Iterator<Item = u32> {
        self.of_operator.difference(&self.of_jobs).copied()
    }

    fn free_ones(&self) -> impl Iterator<Item = u32> {
        self.offered_ones().filter(|gpu| !self.held.contains(gpu))
    }

    /// Takes `each` different GPUs for each of the workers. Returns `None` and changes nothing if too few are free.
    pub(super) fn take(&mut self, workers: u32, each: u32) -> Option<Vec<Vec<u32>>> {
        let asked = workers.checked_mul(each).filter(|asked| *asked <= self.free())?;
        let taken: Vec<u32> = self.free_ones().take(asked as usize).collect();
        self.held.extend(&taken);
        let mut taken = taken.into_iter();
        let worker = |_| taken.by_ref().take(each as usize).collect();
        Some((0..workers).map(worker).collect())
    }

    pub(super) fn give_back(&mut self, gpus: impl IntoIterator<Item = u32>) {
        for gpu in gpus {
            self.held.remove(&gpu);
        }
    }

    /// Offers these GPUs from now on, except GPUs that do not exist and GPUs of batch jobs. A held GPU that is no
    /// longer offered returns to its owner when its lease ends.
    pub(super) fn offer(&mut self, gpus: &BTreeSet<u32>, of_jobs: BTreeSet<u32>) {
        self.of_operator = gpus.range(..self.usable).copied().collect();
        self.of_jobs = of_jobs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn each_worker_gets_gpus_of_its_own_or_no_worker_gets_any() {
        let mut gpus = Gpus::new(5);
        assert_eq!(gpus.take(2, 2), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(gpus.take(2, 1), None, "one is left");
        assert_eq!(gpus.free(), 1, "a refusal takes nothing");
        assert_eq!(gpus.take(3, 0), Some(vec![vec![]; 3]));
        gpus.give_back([1]);
        assert_eq!(gpus.take(1, 2), Some(vec![vec![1, 4]]));
        assert_eq!(gpus.take(u32::MAX, u32::MAX), None, "a product that overflows");
    }

    /// In random histories no GPU is held twice, and only offered GPUs are granted.
    #[test]
    fn gpus_are_never_over_granted() {
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut gpus = Gpus::new(8);
            let mut held: Vec<Vec<u32>> = Vec::new();
            for _ in 0..100 {
                match random.random_range(0..5) {
                    0 | 1 => {
                        let taken = gpus.take(random.random_range(1..4), random.random_range(0..4));
                        let taken = taken.into_iter().flatten();
                        for worker in taken {
                            let offered = worker.iter().all(|gpu| gpus.is_offered(*gpu));
                            assert!(offered, "seed {seed}: {worker:?} of {gpus:?}");
                            held.push(worker);
                        }
                    }
                    2 => {
                        let of_jobs = (0..random.random_range(0..3))
                            .map(|_| random.random_range(0..9))
                            .collect();
                        let offered = (0..random.random_range(0..10)).filter(|_| random.random_bool(0.8));
                        let offered = offered.collect();
                        gpus.offer(&offered, of_jobs);
                    }
                    _ if held.is_empty() => {}
                    _ => gpus.give_back(held.swap_remove(random.random_range(0..held.len()))),
                }
                let all: Vec<u32> = held.concat();
                let different: BTreeSet<u32> = all.iter().copied().collect();
                assert_eq!(all.len(), different.len(), "seed {seed}: {held:?}");
                let offered = all.iter().filter(|gpu| gpus.is_offered(**gpu)).count() as u32;
                assert_eq!(gpus.free(), gpus.offered() - offered, "seed {seed}: {held:?}");
            }
        }
    }
}
