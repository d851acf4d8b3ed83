//! Idle policy of a slot: how long it polls before it sleeps.
//!
//! Time is real time by the tick counter, not a count of turns, so that a preempted slot does not poll for longer than
//! its budget. `Adaptive` follows the arrivals. It polls if the next request is likely to arrive so soon that a sleep
//! and a wake-up (some 20 us here, see the wake-up figures in docs/benchmarks.md) would cost more. No policy polls on a
//! core that other threads want ([`hotlease_fabric::contention`]).

use hotlease_fabric::contention::{CoreRecord, SwitchCount};
use hotlease_wire::control::PollingPolicy;

/// Shortest time that adaptive polling grants: about the cost of one wake-up.
const ADAPTIVE_FLOOR_NS: u64 = 20_000;

/// Smallest budget with which a slot hardly ever sleeps.
const HARDLY_EVER_NS: u64 = 1_000_000_000;

/// Whether slots should have a descriptor to sleep on at their ports. The descriptor costs time: round trips over
/// `tcp;ofi_rxm` took 3.0 to 3.5 us longer than raw libfabric with descriptors on both ends, and 0.4 to 1.0 us longer
/// without. A slot without a descriptor sleeps in short naps.
pub fn needs_wait_descriptor(polling: PollingPolicy, budget_ns: u64) -> bool {
    polling != PollingPolicy::Hot || budget_ns < HARDLY_EVER_NS
}

/// Idle policy of one slot, in ticks.
pub struct IdlePolicy {
    polling: PollingPolicy,
    budget: u64,
    floor: u64,
    /// Moving average of the time between the end of a call and the next request.
    gap: u64,
    core: CoreRecord,
    switches: SwitchCount,
}

impl IdlePolicy {
    /// Makes a policy; `ticks_of_ns` converts `budget_ns` and the floor to ticks.
    pub fn new(polling: PollingPolicy, budget_ns: u64, ticks_of_ns: impl Fn(u64) -> u64) -> Self {
        let budget = ticks_of_ns(budget_ns);
        Self {
            polling,
            budget,
            floor: ticks_of_ns(ADAPTIVE_FLOOR_NS).min(budget),
            gap: 0,
            core: CoreRecord::new(&ticks_of_ns),
            switches: SwitchCount::now(),
        }
    }

    /// Notes the end of a turn that took `ticks`, with the request that it served, if there was one. Returns whether
    /// another thread had the core in that time.
    #[inline]
    pub fn note_turn(&mut self, ticks: u64, now: u64) -> bool {
        self.core.may_be_lost(ticks) && self.note_long_turn(ticks, now)
    }

    /// Time until the slot may poll again, because its core is contended; 0 if it may poll now.
    pub fn pause_left(&self, now: u64) -> u64 {
        self.core.pause_left(now)
    }

    /// Notes the end of a sleep: switches to other threads during it are no preemptions.
    pub fn note_sleep(&mut self) {
        self.switches = SwitchCount::now();
        self.core.note_sleep();
    }

    #[cold]
    fn note_long_turn(&mut self, ticks: u64, now: u64) -> bool {
        let is_preempted = self.switches.recount();
        if is_preempted {
            self.core.note_preemption(ticks, now);
        }
        is_preempted
    }

    /// Notes a request that arrived after the slot was idle for `gap` ticks.
    #[inline]
    pub fn note_gap(&mut self, gap: u64) {
        // A gap is included only up to a bound, so that the average recovers soon after one long gap.
        let gap = gap.min(self.budget.saturating_mul(4));
        self.gap = self.gap - self.gap / 8 + gap / 8;
        self.core.note_answer();
    }

    /// Polling time from the end of a call on, in ticks.
    #[inline]
    pub fn polling_time(&self, now: u64) -> u64 {
        match self.core.pause_left(now) {
            0 => self.budget_now(),
            _ => 0,
        }
    }

    /// Returns the time after which a slot polls again if it sleeps only because other threads want its core; `None` if
    /// it sleeps until there is a request. `polled`: ticks for which it has polled.
    pub fn sleep_limit(&self, polled: u64, now: u64) -> Option<u64> {
        let left = self.core.pause_left(now);
        let is_within = polled.saturating_add(left) < self.budget_now();
        (left > 0 && is_within).then_some(left)
    }

    /// Polling time on a core that no other thread wants.
    #[inline]
    fn budget_now(&self) -> u64 {
        match self.polling {
            PollingPolicy::Hot => self.budget,
            PollingPolicy::Warm => 0,
            // Twice the usual gap catches most arrivals; beyond the budget it is better to sleep at once.
            PollingPolicy::Adaptive => match self.gap.saturating_mul(2) {
                wanted if wanted > self.budget => self.floor,
                wanted => wanted.max(self.floor),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    fn idle(polling: PollingPolicy) -> IdlePolicy {
        IdlePolicy::new(polling, 1_000_000, |ns| ns)
    }

    #[test]
    fn only_slots_that_poll_for_long_go_without_something_to_sleep_on() {
        assert!(!needs_wait_descriptor(PollingPolicy::Hot, u64::MAX));
        assert!(
            needs_wait_descriptor(PollingPolicy::Hot, 1_000_000),
            "the default budget"
        );
        assert!(
            needs_wait_descriptor(PollingPolicy::Adaptive, u64::MAX)
                && needs_wait_descriptor(PollingPolicy::Warm, u64::MAX)
        );
    }

    #[test]
    fn hot_polls_its_budget_and_warm_never() {
        assert_eq!(idle(PollingPolicy::Hot).polling_time(0), 1_000_000);
        assert_eq!(idle(PollingPolicy::Warm).polling_time(0), 0);
        assert_eq!(
            IdlePolicy::new(PollingPolicy::Hot, u64::MAX, |ns| ns).polling_time(0),
            u64::MAX
        );
    }

    #[test]
    fn a_slot_whose_core_others_want_does_not_poll() {
        for polling in [PollingPolicy::Hot, PollingPolicy::Adaptive] {
            let mut idle = idle(polling);
            idle.core.note_preemption(1_000_000, 10);
            assert_eq!(idle.polling_time(11), 0);
            assert_ne!(idle.polling_time(1_000_000_000), 0, "it tries again");
            assert_eq!(
                idle.sleep_limit(0, 11),
                None,
                "not before the next request: its budget is shorter than the pause"
            );
        }
        let mut always = IdlePolicy::new(PollingPolicy::Hot, u64::MAX, |ns| ns);
        assert_eq!(always.sleep_limit(0, 10), None);
        always.core.note_preemption(1_000_000, 10);
        assert_eq!(
            always.sleep_limit(1_000, 1_000_010),
            Some(4_000_000),
            "a slot that always polls does so again"
        );
    }

    #[test]
    fn a_long_turn_beside_a_hog_counts_as_lost_and_a_short_one_does_not() {
        let core = sched_getcpu().expect("a core");
        let mut cores = CpuSet::new();
        cores.set(core).expect("in range");
        // Threads inherit this affinity.
        sched_setaffinity(Pid::from_raw(0), &cores).expect("pinned");
        let end = AtomicBool::new(false);
        let (after_short, after_long) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let mut idle = idle(PollingPolicy::Hot);
            let mut turns = |ticks, time| {
                let end = Instant::now() + time;
                let mut is_preempted = false;
                while Instant::now() < end && idle.polling_time(1) > 0 {
                    is_preempted = idle.note_turn(ticks, 1);
                }
                (idle.polling_time(1), is_preempted)
            };
            let after_short = turns(1_000, Duration::from_millis(50));
            let after_long = turns(1_000_000, Duration::from_secs(30));
            end.store(true, Ordering::Relaxed);
            (after_short, after_long)
        });
        assert_eq!((after_short, after_long), ((1_000_000, false), (0, true)));
    }

    #[test]
    fn adaptive_follows_the_arrivals() {
        let mut idle = idle(PollingPolicy::Adaptive);
        for _ in 0..50 {
            idle.note_gap(100_000);
        }
        assert!(
            (150_000..=250_000).contains(&idle.polling_time(0)),
            "{}",
            idle.polling_time(0)
        );
        for _ in 0..50 {
            idle.note_gap(u64::MAX);
        }
        assert_eq!(
            idle.polling_time(0),
            ADAPTIVE_FLOOR_NS,
            "rare arrivals are not worth polling for"
        );
        for _ in 0..50 {
            idle.note_gap(1_000);
        }
        assert!(idle.polling_time(0) <= 25_000);
        assert!(idle.polling_time(0) >= ADAPTIVE_FLOOR_NS);
    }
}
