//! Fairness between the tenants of a shared core, which the agent enforces.
//!
//! A slot claims its core for each invocation, first come, first served, without asking the agent. So a tenant that has
//! more slots, or calls more often, would get more of the core. Therefore the agent checks every [`LOOK_PERIOD`] which
//! worker had the core, and holds back the tenants that are ahead: their slots refuse invocations until the other
//! tenants have caught up.
//!
//! ```text
//!   time on the core   A ──────────────●            held back: more than one turn ahead of the last that wants
//!                      B ────●                      goes on
//!                      C ─●       (wants nothing)   not waited for; raised to B's time when it comes back
//! ```
//!
//! Promises, for each shared core: among tenants that want the core all the time, no tenant gets ahead of another by
//! more than three turns and one invocation, however many slots each of them has. A tenant that does not want the core
//! saves no time for later. If a tenant claims to want the core and does not use it, the others wait for it only for a
//! short time.
//!
//! The agent counts times that a worker cannot make smaller: processor time of the worker's process, by the kernel, and
//! the time during which the process holds the claim, by the kernel. The worker's own report (that it has refused
//! invocations) is only used to decide whether the worker wants the core.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time between two looks.
pub const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// If a tenant has not wanted the core for this long, the others do not wait for it.
const WANTED_WITHIN: Duration = Duration::from_millis(50);
/// If the others have waited for a tenant in vain, they do not wait for it again for this long.
const VAIN_PAUSE: Duration = Duration::from_millis(200);
/// Time, in addition to the longest invocation, for which a worker that is held back may still use the core.
const GRACE: Duration = Duration::from_secs(1);

/// Observation of one worker on the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSample<'a> {
    /// Number that identifies the worker as long as it lives.
    pub worker: u64,
    /// The worker's tenant.
    pub tenant: &'a str,
    /// Processor time of the worker's process so far, by the kernel.
    pub computed: Duration,
    /// Whether the worker holds the claim now, by the kernel.
    pub holds: bool,
    /// Number of invocations that the worker has refused so far, as it reports.
    pub refused: u64,
}

impl WorkerSample<'_> {
    /// Use of the core since the last look, which was `elapsed` ago. `before` is the worker's processor time at that
    /// look.
    pub(super) fn used_since(&self, before: Duration, elapsed: Duration) -> Duration {
        let computed = self.computed.saturating_sub(before);
        let held = if self.holds { elapsed } else { Duration::ZERO };
        computed.max(held).min(elapsed)
    }
}

/// Permission of a worker until the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CorePermission {
    /// The worker may claim the core at any time.
    Allowed,
    /// The worker must not claim the core: its tenant is ahead of another tenant that wants the core.
    HeldBack,
    /// Although it was held back, the worker has used the core for longer than any invocation may last. It must be
    /// killed.
    Overstayed,
}

#[derive(Debug, Default)]
struct Worker {
    computed: Duration,
    refused: u64,
    /// Use of the core since the worker's tenant was held back.
    overstayed: Duration,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Time on the core. Raised when the tenant wants the core again after a time in which it did not.
    had: Duration,
    wanted: Option<Duration>,
    held_back: bool,
    /// End of the time in which other tenants do not wait for this tenant.
    vain: Option<Duration>,
}

/// The turns on one shared core. It is pure: the agent passes in its observations, and enforces the returned
/// permissions.
#[derive(Debug)]
pub struct Fairness {
    call_limit: Duration,
    now: Duration,
    workers: BTreeMap<u64, Worker>,
    tenants: BTreeMap<String, Tenant>,
}

impl Fairness {
    /// Turns on a core where no invocation lasts longer than `call_limit`.
    pub fn new(call_limit: Duration) -> Self {
        Self {
            call_limit,
            now: Duration::ZERO,
            workers: BTreeMap::new(),
            tenants: BTreeMap::new(),
        }
    }

    /// Applies the observations of all workers on the core, `elapsed` after the last look; returns the permission of
    /// each worker.
    pub fn observe(&mut self, elapsed: Duration, seen: &[WorkerSample<'_>]) -> Vec<(u64, CorePermission)> {
        self.now += elapsed;
        self.workers.retain(|id, _| seen.iter().any(|seen| seen.worker == *id));
        self.tenants
            .retain(|name, _| seen.iter().any(|seen| seen.tenant == name));
        let mut used_in_all = Duration::ZERO;
        for seen in seen {
            used_in_all += self.count(elapsed, seen);
        }
        self.forgive(elapsed, used_in_all);
        self.hold_back();
        seen.iter()
            .map(|seen| (seen.worker, self.permission_of(seen)))
            .collect()
    }

    fn wants(&self, tenant: &Tenant) -> bool {
        tenant.wanted.is_some_and(|at| self.now - at < WANTED_WITHIN)
    }

    /// Counts what a worker has used since the last look.
    fn count(&mut self, elapsed: Duration, seen: &WorkerSample<'_>) -> Duration {
        let known = self.workers.get(&seen.worker);
        // At the first look at a worker its whole processor time is counted, including its start, but at most the time
        // since the last look at the core.
        let before = known.map_or(Duration::ZERO, |known| known.computed);
        let refused = known.is_some_and(|known| seen.refused != known.refused);
        let used = seen.used_since(before, elapsed);

        let came_back = self.tenants.get(seen.tenant).is_none_or(|tenant| !self.wants(tenant));
        let wants = refused || !used.is_zero();
        if wants && came_back {
            // A tenant saves no time for later while it does not want the core.
            let others = self
                .tenants
                .iter()
                .filter(|(name, tenant)| *name != seen.tenant && self.wants(tenant));
            let least = others.map(|(_, tenant)| tenant.had).min().unwrap_or_default();
            let tenant = self.tenants.entry(seen.tenant.to_owned()).or_default();
            tenant.had = tenant.had.max(least);
        }
        let now = self.now;
        let tenant = self.tenants.entry(seen.tenant.to_owned()).or_default();
        tenant.had += used;
        if wants {
            tenant.wanted = Some(now);
        }
        let held_back = tenant.held_back;
        let worker = self.workers.entry(seen.worker).or_default();
        worker.computed = seen.computed;
        worker.refused = seen.refused;
        // The processor time for refusing invocations is too small to be taken as use of the core.
        if held_back && used * 2 > elapsed {
            worker.overstayed += used;
        } else if !held_back {
            worker.overstayed = Duration::ZERO;
        }
        used
    }

    /// Stops waiting for tenants that do not want the core after all. If the core is idle although some tenants are
    /// held back, these are the tenants that are not held back.
    fn forgive(&mut self, elapsed: Duration, used: Duration) {
        let any_held_back = self.tenants.values().any(|tenant| tenant.held_back);
        if !any_held_back || used * 4 > elapsed {
            return;
        }
        let most = self.tenants.values().map(|tenant| tenant.had).max().unwrap_or_default();
        let until = self.now + VAIN_PAUSE;
        for tenant in self.tenants.values_mut().filter(|tenant| !tenant.held_back) {
            tenant.had = most;
            tenant.vain = Some(until);
        }
    }

    fn hold_back(&mut self) {
        let now = self.now;
        let waited_for = |tenant: &&Tenant| tenant.vain.is_none_or(|until| now >= until);
        let wanting = self.tenants.values().filter(|tenant| self.wants(tenant));
        let last = wanting.filter(waited_for).map(|tenant| tenant.had).min();
        for tenant in self.tenants.values_mut() {
            tenant.held_back = last.is_some_and(|last| tenant.had > last + LOOK_PERIOD);
        }
    }

    fn permission_of(&self, seen: &WorkerSample<'_>) -> CorePermission {
        let overstays = self
            .workers
            .get(&seen.worker)
            .is_some_and(|worker| worker.overstayed > self.call_limit + GRACE);
        let held_back = self.tenants.get(seen.tenant).is_some_and(|tenant| tenant.held_back);
        match (overstays, held_back) {
            (true, _) => CorePermission::Overstayed,
            (false, true) => CorePermission::HeldBack,
            (false, false) => CorePermission::Allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Workers whose clients call without a pause, and their core. For each invocation, one of the permitted workers is
    /// drawn at random, and gets the core.
    struct Core {
        turns: Fairness,
        workers: Vec<(&'static str, Duration, u64)>,
        may: Vec<CorePermission>,
        random: StdRng,
    }

    impl Core {
        fn new(workers: &[&'static str], seed: u64) -> Self {
            Self {
                turns: Fairness::new(Duration::from_secs(1)),
                workers: workers.iter().map(|tenant| (*tenant, Duration::ZERO, 0)).collect(),
                may: vec![CorePermission::Allowed; workers.len()],
                random: StdRng::seed_from_u64(seed),
            }
        }

        /// One turn, in which each invocation of length `call` is run by a worker of a tenant for which `calling`
        /// returns true. The worker is drawn among slots, so a tenant with more slots is drawn more often.
        fn turn(&mut self, call: Duration, calling: impl Fn(&str) -> bool) {
            let mut left = LOOK_PERIOD;
            while left >= call {
                let mut lucky = Vec::new();
                for (at, (tenant, _, refused)) in self.workers.iter_mut().enumerate() {
                    match (calling(tenant), self.may[at]) {
                        (true, CorePermission::Allowed) => lucky.push(at),
                        (true, _) => *refused += 1,
                        (false, _) => {}
                    }
                }
                if lucky.is_empty() {
                    break;
                }
                let at = lucky[self.random.random_range(0..lucky.len())];
                self.workers[at].1 += call;
                left -= call;
            }
            let seen: Vec<WorkerSample<'_>> = self
                .workers
                .iter()
                .zip(0..)
                .map(|((tenant, computed, refused), worker)| WorkerSample {
                    worker,
                    tenant,
                    computed: *computed,
                    holds: false,
                    refused: *refused,
                })
                .collect();
            let verdicts = self.turns.observe(LOOK_PERIOD, &seen);
            self.may = verdicts.into_iter().map(|(_, turn)| turn).collect();
        }

        fn had(&self, tenant: &str) -> Duration {
            let own = self.workers.iter().filter(|(of, ..)| *of == tenant);
            own.map(|(_, computed, _)| *computed).sum()
        }
    }

    const CALL: Duration = Duration::from_micros(500);

    #[test]
    fn four_times_the_slots_are_not_more_of_the_core() {
        for seed in 0..100 {
            let mut core = Core::new(&["a", "a", "a", "a", "b"], seed);
            for _ in 0..100 {
                core.turn(CALL, |_| true);
            }
            let (a, b) = (core.had("a"), core.had("b"));
            let apart = a.max(b) - a.min(b);
            assert!(apart <= LOOK_PERIOD * 3 + CALL, "seed {seed}: a had {a:?}, b {b:?}");
            assert!(
                a + b > LOOK_PERIOD * 95,
                "seed {seed}: the core stood idle: {:?} of {:?}",
                a + b,
                LOOK_PERIOD * 100
            );
        }
    }

    #[test]
    fn three_tenants_get_a_third_each() {
        let mut core = Core::new(&["a", "a", "a", "a", "b", "b", "c"], 1);
        for _ in 0..300 {
            core.turn(CALL, |_| true);
        }
        for tenant in ["a", "b", "c"] {
            let had = core.had(tenant).as_secs_f64() / (LOOK_PERIOD * 300).as_secs_f64();
            assert!((0.31..0.36).contains(&had), "{tenant} had {had:.2} of the core");
        }
    }

    #[test]
    fn a_tenant_alone_gets_the_whole_core_and_saves_nothing_up() {
        let mut core = Core::new(&["a", "b"], 1);
        for _ in 0..100 {
            core.turn(CALL, |tenant| tenant == "a");
        }
        assert_eq!(core.had("a"), LOOK_PERIOD * 100, "no other tenant wanted it");
        let before = core.had("a");
        for _ in 0..100 {
            core.turn(CALL, |_| true);
        }
        let (a, b) = (core.had("a") - before, core.had("b"));
        assert!(
            a > LOOK_PERIOD * 45,
            "b, which had wanted nothing for a second, took it all: a {a:?}, b {b:?}"
        );
    }

    #[test]
    fn no_tenant_gains_by_wanting_without_taking() {
        let mut core = Core::new(&["a", "liar"], 1);
        for _ in 0..100 {
            // The liar claims that it refuses invocations, and never claims the core.
            core.workers[1].2 += 1;
            core.turn(CALL, |tenant| tenant == "a");
        }
        assert!(
            core.had("a") > LOOK_PERIOD * 85,
            "a had {:?} of {:?}",
            core.had("a"),
            LOOK_PERIOD * 100
        );
    }

    fn steady(worker: u64, tenant: &str, computed: Duration, holds: bool, refused: u64) -> WorkerSample<'_> {
        WorkerSample {
            worker,
            tenant,
            computed,
            holds,
            refused,
        }
    }

    #[test]
    fn a_worker_that_keeps_the_claim_or_computes_without_one_is_found() {
        // A function that sleeps holds the claim without processor time; a worker can compute without a claim. Both
        // must be taken as use of the core.
        for computes in [false, true] {
            let mut turns = Fairness::new(Duration::from_secs(1));
            let mut killed = None;
            for turn in 0..400_u32 {
                let computed = if computes { LOOK_PERIOD * turn } else { Duration::ZERO };
                let seen = [
                    steady(1, "bad", computed, !computes, 0),
                    steady(2, "good", Duration::ZERO, false, u64::from(turn)),
                ];
                let verdicts = turns.observe(LOOK_PERIOD, &seen);
                assert_ne!(verdicts[1].1, CorePermission::Overstayed);
                if verdicts[0].1 == CorePermission::Overstayed {
                    killed.get_or_insert(turn);
                }
            }
            let killed = killed.expect("it goes on for ever");
            assert!((150..300).contains(&killed), "after {killed} turns");
        }
    }

    #[test]
    fn a_long_invocation_is_no_offence() {
        let mut turns = Fairness::new(Duration::from_secs(1));
        for turn in 0..100_u32 {
            let seen = [
                steady(1, "long", LOOK_PERIOD * turn, true, 0),
                steady(2, "other", Duration::ZERO, false, u64::from(turn)),
            ];
            let verdicts = turns.observe(LOOK_PERIOD, &seen);
            assert_ne!(
                verdicts[0].1,
                CorePermission::Overstayed,
                "after {turn} turns of an invocation of a second"
            );
        }
    }
}
