//! Cores of a node: which cores are free, which belong to one lease, and which are shared, with the number of places
//! taken.
//!
//! ```text
//!            exclusive lease                          shared leases
//!  (own) ◄───────────────────► free ◄──────────────────────────────► (shared: 1 to P of P places taken)
//!            takes / ends            takes the first place / the last place ends
//! ```
//!
//! A core is in exactly one of the three states. So an exclusive lease never gets a core on which shared slots run,
//! and a shared slot never gets a core that belongs to an exclusive lease. An exclusive lease takes no core away from
//! shared leases. The price is that a shared core stays shared until the last of its places is given back. So workers
//! are placed on the cores with the fewest places taken, and moved (`moves`) if another core becomes idle.

use std::collections::{BTreeMap, BTreeSet};

/// The cores of a node, each in one of three states: free, owned by a lease, or shared.
#[derive(Debug)]
pub(super) struct Cores {
    offered: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Shared cores with the number of places taken on each: 1 to `places_per_core`.
    shared: BTreeMap<u32, u32>,
    places_per_core: u32,
    /// Cores that other programs of the host are known to use: leases get these cores last.
    avoided: BTreeSet<u32>,
}

impl Cores {
    /// Makes the cores of a node, all of them free.
    pub(super) fn new(offered: impl IntoIterator<Item = u32>, places_per_core: u32) -> Self {
        let offered: BTreeSet<u32> = offered.into_iter().collect();
        Self {
            free: offered.clone(),
            offered,
            shared: BTreeMap::new(),
            places_per_core,
            avoided: BTreeSet::new(),
        }
    }

    /// From now on leases get these cores only if no other core is free.
    pub(super) fn avoid(&mut self, avoided: BTreeSet<u32>) {
        self.avoided = avoided;
    }

    /// Takes the first free core that is not avoided, else the first free core.
    fn take_free(&mut self) -> Option<u32> {
        let core = self
            .free
            .difference(&self.avoided)
            .next()
            .or(self.free.first())
            .copied()?;
        self.free.take(&core)
    }

    pub(super) fn places_per_core(&self) -> u32 {
        self.places_per_core
    }

    pub(super) fn set_places_per_core(&mut self, places: u32) {
        debug_assert!(self.shared.is_empty(), "places are fixed before the first lease");
        self.places_per_core = places;
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(super) fn offered(&self) -> u32 {
        self.offered.len() as u32
    }

    pub(super) fn offered_set(&self) -> &BTreeSet<u32> {
        &self.offered
    }

    pub(super) fn free_set(&self) -> &BTreeSet<u32> {
        &self.free
    }

    /// Offers `offered` from now on. `held` are the cores that leases hold. A core that is no longer offered gets no
    /// more leases. It is given back when the last lease that holds it ends.
    pub(super) fn offer(&mut self, offered: BTreeSet<u32>, held: &BTreeSet<u32>) {
        self.free = offered.difference(held).copied().collect();
        self.offered = offered;
    }

    /// Number of places that are not taken, on shared cores and on free cores.
    pub(super) fn free_places(&self) -> u32 {
        let gaps = self.shared_offered().map(|(_, taken)| self.places_per_core - taken);
        self.free() * self.places_per_core + gaps.sum::<u32>()
    }

    /// Number of places that are not taken on each offered core that is free or shared.
    pub(super) fn room(&self) -> BTreeMap<u32, u32> {
        let free = self.free.iter().map(|core| (*core, self.places_per_core));
        let gaps = self
            .shared_offered()
            .map(|(core, taken)| (core, self.places_per_core - taken));
        free.chain(gaps).collect()
    }

    /// Whether at least two places of any core are taken.
    pub(super) fn is_any_crowded(&self) -> bool {
        self.shared.values().any(|taken| *taken > 1)
    }

    /// Shared cores that are still offered, with the number of places taken on each.
    fn shared_offered(&self) -> impl Iterator<Item = (u32, u32)> {
        let shared = self.shared.iter().map(|(core, taken)| (*core, *taken));
        shared.filter(|(core, _)| self.offered.contains(core))
    }

    /// Takes cores for one exclusive lease: `slots` cores for each worker. Returns `None` and changes nothing if too
    /// few are free.
    pub(super) fn take_exclusive(&mut self, workers: u32, slots: u32) -> Option<Vec<Vec<u32>>> {
        if workers.checked_mul(slots)? > self.free() {
            return None;
        }
        let mut cores: Vec<u32> = (0..workers * slots).filter_map(|_| self.take_free()).collect();
        cores.sort_unstable();
        let mut cores = cores.into_iter();
        Some(
            (0..workers)
                .map(|_| cores.by_ref().take(slots as usize).collect())
                .collect(),
        )
    }

    /// Takes places for workers; the slots of a worker take turns on one core. Returns `None` and changes nothing if
    /// the workers do not fit.
    ///
    /// Each worker gets a core with the fewest places taken. A free core has no place taken, so it is taken first, and
    /// calls do not compete for one core while another is idle. The price is that exclusive leases find fewer free
    /// cores.
    pub(super) fn take_places(&mut self, workers: u32, slots: u32) -> Option<Vec<Vec<u32>>> {
        let asked = workers.checked_mul(slots)?;
        if slots > self.places_per_core || asked > self.free_places() {
            return None;
        }
        let before = (self.free.clone(), self.shared.clone());
        let mut homes = Vec::with_capacity(workers as usize);
        for _ in 0..workers {
            let Some(core) = self.take_place(slots) else {
                // The gaps on the shared cores are too small for this worker.
                (self.free, self.shared) = before;
                return None;
            };
            homes.push(vec![core; slots as usize]);
        }
        Some(homes)
    }

    /// Takes places on a free core, else on the shared core with the fewest taken places that has room.
    fn take_place(&mut self, slots: u32) -> Option<u32> {
        let room = self.places_per_core - slots;
        let core = self.take_free().or_else(|| {
            let fits = self.shared_offered().filter(|(_, taken)| *taken <= room);
            fits.min_by_key(|(core, taken)| (*taken, *core)).map(|(core, _)| core)
        })?;
        *self.shared.entry(core).or_default() += slots;
        Some(core)
    }

    /// Takes places for the slots of one worker on this core. Returns false and changes nothing if they do not fit.
    pub(super) fn take_places_on(&mut self, core: u32, slots: u32) -> bool {
        let fits = self.room().get(&core).is_some_and(|room| *room >= slots);
        if fits {
            self.free.remove(&core);
            *self.shared.entry(core).or_default() += slots;
        }
        fits
    }

    fn close_empty(&mut self) {
        let (free, offered) = (&mut self.free, &self.offered);
        self.shared.retain(|core, taken| {
            if *taken == 0 && offered.contains(core) {
                free.insert(*core);
            }
            *taken > 0
        });
    }

    /// Takes back the cores of an exclusive lease.
    pub(super) fn give_back_exclusive(&mut self, cores: impl IntoIterator<Item = u32>) {
        let offered = &self.offered;
        self.free
            .extend(cores.into_iter().filter(|core| offered.contains(core)));
    }

    /// Takes back the places of a shared lease. `cores` has the core of each slot.
    pub(super) fn give_back_places(&mut self, cores: impl IntoIterator<Item = u32>) {
        for core in cores {
            if let Some(taken) = self.shared.get_mut(&core) {
                *taken = taken.saturating_sub(1);
            }
        }
        self.close_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn avoided_cores_are_taken_last_and_count_as_free() {
        let mut cores = Cores::new(0..4, 2);
        cores.avoid([0, 2].into());
        assert_eq!(cores.take_exclusive(1, 1), Some(vec![vec![1]]));
        assert_eq!(cores.take_places(1, 1), Some(vec![vec![3]]));
        assert_eq!((cores.free(), cores.take_exclusive(1, 3)), (2, None));
        assert_eq!(cores.take_exclusive(2, 1), Some(vec![vec![0], vec![2]]));
        cores.give_back_exclusive([0, 1, 2]);
        cores.avoid([1].into());
        assert_eq!(
            cores.take_exclusive(1, 2),
            Some(vec![vec![0, 2]]),
            "what was avoided before is not now"
        );
        assert_eq!(cores.take_exclusive(1, 1), Some(vec![vec![1]]), "the last one");
    }

    #[test]
    fn no_core_gets_a_second_worker_while_another_core_is_idle() {
        let mut cores = Cores::new(0..3, 4);
        assert_eq!(cores.take_places(1, 1), Some(vec![vec![0]]), "one lease");
        assert_eq!(cores.take_places(1, 1), Some(vec![vec![1]]), "and another");
        assert_eq!((cores.free(), cores.free_places()), (1, 10));
        assert_eq!(cores.take_exclusive(1, 1), Some(vec![vec![2]]));
        // Five more places, spread evenly over the two shared cores.
        let homes = cores.take_places(5, 1).expect("there is room");
        assert_eq!(homes, [vec![0], vec![1], vec![0], vec![1], vec![0]]);
        assert_eq!((cores.free_places(), cores.take_places(2, 1)), (1, None));
        cores.give_back_places([0, 0, 0]);
        assert_eq!(cores.take_places(1, 1), Some(vec![vec![0]]), "the least loaded one");
        cores.give_back_places([0, 0]);
        assert_eq!(cores.free(), 1, "its last place was given back");
        assert_eq!(cores.take_places(1, 1), Some(vec![vec![0]]), "it is idle");
    }

    #[test]
    fn a_worker_has_all_its_slots_on_one_core() {
        let mut cores = Cores::new(0..2, 4);
        assert_eq!(cores.take_places(1, 5), None, "more slots than a core has places");
        assert_eq!(cores.take_places(2, 3), Some(vec![vec![0; 3], vec![1; 3]]));
        assert_eq!(cores.free_places(), 2);
        assert_eq!(cores.take_places(1, 2), None, "the two places are on two cores");
        assert_eq!(cores.free_places(), 2, "a refusal changes nothing");
        assert_eq!(cores.take_places(2, 1), Some(vec![vec![0], vec![1]]));
    }

    #[test]
    fn a_worker_is_taken_to_a_core_with_room_and_to_no_other() {
        let mut cores = Cores::new(0..3, 4);
        assert_eq!(cores.take_exclusive(1, 1), Some(vec![vec![0]]));
        assert_eq!(cores.take_places(1, 3), Some(vec![vec![1; 3]]));
        assert_eq!(cores.room(), BTreeMap::from([(1, 1), (2, 4)]));
        for core in [0, 1, 3] {
            assert!(!cores.take_places_on(core, 2), "core {core} has no room");
        }
        assert_eq!(
            cores.room(),
            BTreeMap::from([(1, 1), (2, 4)]),
            "a refusal changes nothing"
        );
        assert!(cores.take_places_on(2, 2));
        assert_eq!((cores.free(), cores.room()), (0, BTreeMap::from([(1, 1), (2, 2)])));
        cores.offer([0, 2].into(), &[0, 1, 2].into());
        assert!(!cores.take_places_on(1, 1), "it is not offered any more");
    }

    #[test]
    fn a_node_without_places_shares_no_core() {
        let mut cores = Cores::new(0..2, 0);
        assert_eq!((cores.free_places(), cores.take_places(1, 1)), (0, None));
        assert_eq!(cores.free(), 2);
    }

    /// In random histories every core is always in exactly one state: free, owned by one lease, or shared within its
    /// places.
    #[test]
    fn a_core_is_never_both_shared_and_one_lease_s_own() {
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let places = random.random_range(1..6);
            let mut cores = Cores::new(0..8, places);
            let mut held: Vec<(bool, Vec<u32>)> = Vec::new();
            for _ in 0..100 {
                let (workers, slots) = (random.random_range(1..6), random.random_range(1..4));
                let taken = match random.random_range(0..4) {
                    3 if held.iter().any(|(shared, _)| *shared) => {
                        // A move: the places of one worker, all on one core, are taken on another core.
                        let at = held.iter().position(|(shared, _)| *shared).expect("one is shared");
                        let core = held[at].1[0];
                        let moved = held[at].1.iter().filter(|of| **of == core).count() as u32;
                        let to = random.random_range(0..8);
                        if cores.take_places_on(to, moved) {
                            cores.give_back_places(std::iter::repeat_n(core, moved as usize));
                            held[at].1.iter_mut().filter(|of| **of == core).for_each(|of| *of = to);
                        }
                        None
                    }
                    0 => cores
                        .take_exclusive(workers, slots)
                        .map(|cores| (false, cores.concat())),
                    1 => cores.take_places(workers, slots).map(|cores| (true, cores.concat())),
                    _ if held.is_empty() => None,
                    _ => {
                        let (shared, given) = held.swap_remove(random.random_range(0..held.len()));
                        if shared {
                            cores.give_back_places(given);
                        } else {
                            cores.give_back_exclusive(given);
                        }
                        None
                    }
                };
                held.extend(taken);
                let (mut own, mut on) = (BTreeSet::new(), BTreeMap::<u32, u32>::new());
                for (shared, cores) in &held {
                    for core in cores {
                        if *shared {
                            *on.entry(*core).or_default() += 1;
                        } else {
                            assert!(own.insert(*core), "seed {seed}: core {core} is given twice");
                        }
                    }
                }
                assert!(
                    on.values().all(|taken| *taken <= places),
                    "seed {seed}: {on:?} of {places}"
                );
                assert!(
                    on.keys().all(|core| !own.contains(core)),
                    "seed {seed}: {on:?} and {own:?}"
                );
                assert_eq!(cores.free() as usize, 8 - own.len() - on.len(), "seed {seed}");
            }
        }
    }
}
