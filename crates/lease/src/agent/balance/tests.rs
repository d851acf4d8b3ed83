use super::*;
use crate::agent::LOOK_PERIOD;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const LOOKS_PER_PERIOD: u32 = (PERIOD.as_millis() / LOOK_PERIOD.as_millis()) as u32;
const PLACES: u32 = 8;

/// A worker, and the behaviour of its client.
#[derive(Debug, Clone)]
struct Worker {
    lease: u8,
    core: u32,
    slots: u32,
    /// Whether the client calls the worker without a pause.
    is_called: bool,
    /// Whether the worker's functions sleep, and so hold the core without computing.
    sleeps: bool,
    computed: Duration,
    refused: u64,
    holds: bool,
    is_moving: bool,
}

fn worker(lease: u8, core: u32, is_called: bool) -> Worker {
    Worker {
        lease,
        core,
        slots: 1,
        is_called,
        sleeps: false,
        computed: Duration::ZERO,
        refused: 0,
        holds: false,
        is_moving: false,
    }
}

/// A node on a virtual clock. On each core, the called workers take turns, and a worker refuses while another has the
/// core.
struct Node {
    balance: Balance,
    workers: Vec<Worker>,
    cores: u32,
    looks: u32,
}

impl Node {
    fn new(cores: u32, workers: Vec<Worker>) -> Self {
        Self {
            balance: Balance::default(),
            workers,
            cores,
            looks: 0,
        }
    }

    fn room(&self) -> BTreeMap<u32, u32> {
        let taken = |core| -> u32 {
            let on = self.workers.iter().filter(|worker| worker.core == core);
            on.map(|worker| worker.slots).sum()
        };
        (0..self.cores).map(|core| (core, PLACES - taken(core))).collect()
    }

    /// Lets workers run until the next look, and carries out the moves that follow from it.
    fn look(&mut self) -> Vec<CoreMove> {
        self.workers.iter_mut().for_each(|worker| worker.holds = false);
        for core in 0..self.cores {
            let on = self
                .workers
                .iter_mut()
                .filter(|worker| worker.core == core && worker.is_called);
            let mut called: Vec<&mut Worker> = on.collect();
            let count = called.len();
            for (position, worker) in called.iter_mut().enumerate() {
                // The turns are out of step with the periods: otherwise one worker would hold the core at the end of
                // every period.
                worker.holds = position == (self.looks / 7) as usize % count;
                if !worker.sleeps {
                    worker.computed += LOOK_PERIOD / count as u32;
                }
                worker.refused += count as u64 - 1;
            }
        }
        self.observe()
    }

    fn observe(&mut self) -> Vec<CoreMove> {
        self.looks += 1;
        let room = self.room();
        let seen: Vec<LoadSample<'_>> = self
            .workers
            .iter()
            .zip(0..)
            .map(|(worker, number)| LoadSample {
                worker: WorkerSample {
                    worker: number,
                    tenant: "uid:1000",
                    computed: worker.computed,
                    holds: worker.holds,
                    refused: worker.refused,
                },
                lease: LeaseId([worker.lease; 8]),
                core: worker.core,
                slots: worker.slots,
                is_moving: worker.is_moving,
            })
            .collect();
        let moves = self.balance.observe(LOOK_PERIOD, &seen, || room);
        for CoreMove { worker, core } in &moves {
            self.workers[*worker as usize].core = *core;
        }
        moves
    }

    fn looks(&mut self, looks: u32) -> Vec<CoreMove> {
        (0..looks).flat_map(|_| self.look()).collect()
    }

    fn cores(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.core).collect()
    }
}

const TEN_SECONDS: u32 = 1000;
const NONE: [CoreMove; 0] = [];

#[test]
fn workers_that_take_turns_beside_an_idle_core_are_moved_apart_once() {
    let mut node = Node::new(2, vec![worker(1, 0, true), worker(2, 0, true)]);
    let moves = node.looks(2 * LOOKS_PER_PERIOD);
    assert_eq!(moves.len(), 1, "after the first whole period: {moves:?}");
    assert_eq!(moves[0].core, 1);
    assert_eq!(node.looks(TEN_SECONDS), NONE, "each has a core");
}

#[test]
fn a_worker_that_is_refused_once_moves_away_from_a_long_invocation_which_stays() {
    // The first worker's function sleeps: the worker computes nothing, but the kernel reports that it holds the claim.
    let long = Worker {
        sleeps: true,
        ..worker(1, 0, true)
    };
    let mut node = Node::new(2, vec![long, worker(2, 0, false)]);
    assert_eq!(node.looks(TEN_SECONDS), NONE, "no other invocation wants the core");
    node.workers[1].refused += 1;
    let moves = node.looks(LOOKS_PER_PERIOD);
    assert_eq!(moves, [CoreMove { worker: 1, core: 1 }]);
}

#[test]
fn no_worker_is_moved_without_need_or_without_an_idle_core() {
    let two = || vec![worker(1, 0, true), worker(2, 0, true)];
    let mut all_busy = Node::new(2, [two(), vec![worker(3, 1, true)]].concat());
    assert_eq!(all_busy.looks(TEN_SECONDS), NONE, "no core is idle");
    let mut full = Node::new(2, [two(), vec![worker(3, 1, false); PLACES as usize]].concat());
    assert_eq!(full.looks(TEN_SECONDS), NONE, "the idle core has no room");
    let mut alone = Node::new(2, vec![worker(1, 0, true), worker(2, 0, false)]);
    assert_eq!(alone.looks(TEN_SECONDS), NONE, "no other worker uses the core");
    // A slot of this worker refuses invocations while the other slot runs.
    let slots = Worker {
        slots: 2,
        ..worker(1, 0, true)
    };
    let mut itself = Node::new(2, vec![slots, worker(2, 0, false), worker(3, 1, false)]);
    for _ in 0..TEN_SECONDS {
        itself.workers[0].refused += 1;
        assert_eq!(itself.look(), NONE, "moving does not help a worker against itself");
    }
    let mut under_way = Node::new(2, two());
    under_way.workers.iter_mut().for_each(|worker| worker.is_moving = true);
    assert_eq!(under_way.looks(TEN_SECONDS), NONE, "they are being moved already");
}

#[test]
fn one_worker_leaves_a_core_in_a_period_and_one_comes_to_a_core() {
    let on = |core| (1..=4).map(move |number| worker(number + 4 * core as u8, core, true));
    let mut node = Node::new(5, on(0).chain(on(1)).collect());
    let mut left = 0;
    for _ in 0..20 {
        let moves = node.looks(LOOKS_PER_PERIOD);
        let to: BTreeSet<u32> = moves.iter().map(|moved| moved.core).collect();
        assert_eq!(to.len(), moves.len(), "two came to one core: {moves:?}");
        assert!(moves.len() <= 2, "two left one core: {moves:?}");
        left += moves.len();
    }
    assert_eq!(left, 3, "there were three idle cores");
}

#[test]
fn workers_of_one_lease_are_not_put_together() {
    let mut node = Node::new(2, vec![worker(1, 0, true), worker(1, 1, false), worker(2, 0, true)]);
    assert_eq!(node.looks(2 * LOOKS_PER_PERIOD), [CoreMove { worker: 2, core: 1 }]);
    // If workers of a lease already share a core, one of them is moved.
    let mut node = Node::new(2, vec![worker(1, 0, true), worker(1, 0, true)]);
    assert_eq!(node.looks(2 * LOOKS_PER_PERIOD).len(), 1);
}

/// While clients begin and stop calling at random, workers are moved seldom, and only from a busy core to an idle core.
/// Once the load stays the same, and there are enough cores, each called worker soon has a core of its own, and no
/// worker is moved any more.
#[test]
fn random_load_moves_workers_seldom_and_steady_load_not_at_all() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let cores = random.random_range(2..5);
        let count = random.random_range(2..=PLACES as usize);
        let workers = (0..count).map(|lease| worker(lease as u8, random.random_range(0..cores), false));
        let mut node = Node::new(cores, workers.collect());
        let mut moved_at = vec![None; count];
        let mut called_on = vec![0; cores as usize];
        for look in 0..5000_u32 {
            for worker in &mut node.workers {
                if random.random_bool(0.02) {
                    worker.is_called = !worker.is_called;
                }
                if worker.is_called {
                    called_on[worker.core as usize] = look;
                }
            }
            let before = node.cores();
            for CoreMove { worker, core } in node.look() {
                let (worker, from) = (worker as usize, before[worker as usize]);
                let last: &mut Option<u32> = &mut moved_at[worker];
                let rest = (REST.as_millis() / LOOK_PERIOD.as_millis()) as u32;
                let rested = last.replace(look).is_none_or(|last| look - last >= rest);
                assert!(rested, "seed {seed}, look {look}: worker {worker} is moved again");
                let idle_for = look.saturating_sub(called_on[core as usize]);
                assert!(
                    called_on[core as usize] == 0 || idle_for >= LOOKS_PER_PERIOD,
                    "seed {seed}, look {look}: core {core} was in use {idle_for} looks ago"
                );
                assert!(
                    look - called_on[from as usize] < LOOKS_PER_PERIOD,
                    "seed {seed}, look {look}: core {from} was not in use"
                );
            }
        }
        for (number, worker) in node.workers.iter_mut().enumerate() {
            worker.is_called = number < cores as usize;
        }
        node.looks(TEN_SECONDS);
        let called: Vec<u32> = node.cores().into_iter().take(cores as usize).collect();
        let different: BTreeSet<&u32> = called.iter().collect();
        assert_eq!(
            different.len(),
            called.len(),
            "seed {seed}: {called:?} of {cores} cores"
        );
        assert_eq!(node.looks(TEN_SECONDS), NONE, "seed {seed}");
    }
}
