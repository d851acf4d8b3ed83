//! The ledger's arithmetic: merging of totals, limits of what an agent may bill, and the price of usage.
//!
//! Totals are cumulative. They are merged by taking the larger value of each counter. So a report that arrives twice,
//! late or out of order is never billed twice, and never lowers a bill. An [`Account`] is opened when a lease is
//! granted. It bounds the usage that the lease's agent can bill, by the manager's own clock:
//!
//! ```
//! use hotlease_lease::ledger::{Account, Prices, cost};
//! use hotlease_wire::session::UsageTotals;
//!
//! let account = Account { slots: 2, granted_ms: 0, ended_ms: Some(1_000), ..Default::default() };
//! let greedy = UsageTotals { allocated_ns: u64::MAX, compute_ns: 500, ..Default::default() };
//! let (billed, capped) = account.merge(UsageTotals::default(), greedy, 3_600_000);
//! assert!(capped);
//! assert_eq!(billed.allocated_ns, 2 * 1_002_001_000); // two slots for a second, and the clocks' tolerance
//! let prices = Prices { allocated_core_hour: 1_000_000_000, ..Default::default() };
//! assert!(cost(&prices, billed, 0).total() < 1_000_000); // in 1e-9 of the currency
//! ```

use hotlease_wire::session::UsageTotals;
use std::fmt;

mod functions;
mod tariff;

pub use functions::{FunctionId, FunctionTotals, FunctionUse};
pub use tariff::{Cost, Money, Prices, Tariff, cost};

/// Largest total that a ledger keeps: the largest signed integer of a database, 292 years of nanoseconds.
pub const TOTAL_MAX: u64 = i64::MAX as u64;
/// The rates of the agent's and the manager's clocks may differ by 1/`DRIFT`.
const DRIFT: u128 = 1000;

/// Limit of a lease's bill: the lease's resources, from its grant to its end by the manager's clock (milliseconds since
/// 1970).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Number of slots granted; for a lease on shared cores, the number of cores on which it was placed; 0 for a lease
    /// of memory alone.
    pub slots: u32,
    /// Number of slots that may compute at the same time, if it is more than `slots`: the agent may later spread the
    /// workers of a lease over more shared cores than at its grant.
    pub busy_slots: u32,
    /// Memory granted to all workers of the lease, bytes; 0 if no limit was requested: then no memory is billed.
    pub memory_bytes: u64,
    /// When the manager asked the agent for the lease.
    pub granted_ms: u64,
    /// When the manager learned of the end of the lease.
    pub ended_ms: Option<u64>,
}

impl Account {
    /// Largest possible allocation until `now_ms`, slots times nanoseconds; for a lease of memory alone, nanoseconds.
    pub fn limit_ns(&self, now_ms: u64) -> u64 {
        match self.is_memory_alone() {
            true => self.time_of(1, now_ms),
            false => self.time_of(self.slots, now_ms),
        }
    }

    /// Whether the lease is one of memory alone. The allocated time of such a lease is the time for which it is held.
    fn is_memory_alone(&self) -> bool {
        self.slots == 0 && self.memory_bytes > 0
    }

    /// The part of `usage` that is usage of cores: none of it for a lease of memory alone.
    pub fn core_usage(&self, usage: UsageTotals) -> UsageTotals {
        match self.is_memory_alone() {
            true => UsageTotals::default(),
            false => usage,
        }
    }

    /// Largest possible polling and computing until `now_ms`, slots times nanoseconds.
    pub fn busy_limit_ns(&self, now_ms: u64) -> u64 {
        self.time_of(self.busy_slots.max(self.slots), now_ms)
    }

    fn time_of(&self, slots: u32, now_ms: u64) -> u64 {
        let until = self.ended_ms.map_or(now_ms, |ended| ended.min(now_ms));
        // One millisecond more, because begin and end are rounded down to milliseconds.
        let held_ms = u128::from(until.saturating_sub(self.granted_ms)) + 1;
        let limit = held_ms * (1_000_000 + 1_000_000 / DRIFT) * u128::from(slots);
        u64::try_from(limit).unwrap_or(TOTAL_MAX).min(TOTAL_MAX)
    }

    /// Returns the totals that the ledger must store, if it has `known` and `reported` arrives. Also returns whether
    /// more was reported than the account allows. No counter ever falls. Polling and computing together are limited by
    /// the slots' time.
    pub fn merge(&self, known: UsageTotals, reported: UsageTotals, now_ms: u64) -> (UsageTotals, bool) {
        let limit = self.busy_limit_ns(now_ms);
        let wanted = larger(known, reported);
        let within = |known: u64, wanted: u64, others: u64| known.max(wanted.min(limit.saturating_sub(others)));
        let compute_ns = within(known.compute_ns, wanted.compute_ns, known.hot_ns);
        let kept = UsageTotals {
            allocated_ns: known.allocated_ns.max(wanted.allocated_ns.min(self.limit_ns(now_ms))),
            compute_ns,
            hot_ns: within(known.hot_ns, wanted.hot_ns, compute_ns),
            invocations: wanted.invocations,
        };
        (kept, kept != wanted)
    }

    /// Memory times the time for which it was held, MiB times milliseconds. The time is computed from `usage`.
    pub fn memory_mib_ms(&self, usage: UsageTotals) -> u64 {
        let held_ns = u128::from(usage.allocated_ns) / u128::from(self.slots.max(1));
        let product = u128::from(self.memory_bytes) * held_ns / (1_000_000 << 20);
        u64::try_from(product).unwrap_or(TOTAL_MAX).min(TOTAL_MAX)
    }
}

/// Larger value of each counter. Each counter only rises, so an older report never lowers a counter.
pub fn larger(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    map_counters(one, other, |one, other| one.max(other).min(TOTAL_MAX))
}

/// Saturating sum: if an agent reports values near the type's limit, only sums that contain its leases are wrong.
pub fn sum(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    map_counters(one, other, |one, other| one.saturating_add(other).min(TOTAL_MAX))
}

/// Usage between two totals.
pub fn difference(later: UsageTotals, earlier: UsageTotals) -> UsageTotals {
    map_counters(later, earlier, u64::saturating_sub)
}

fn map_counters(one: UsageTotals, other: UsageTotals, with: impl Fn(u64, u64) -> u64) -> UsageTotals {
    UsageTotals {
        allocated_ns: with(one.allocated_ns, other.allocated_ns),
        hot_ns: with(one.hot_ns, other.hot_ns),
        compute_ns: with(one.compute_ns, other.compute_ns),
        invocations: with(one.invocations, other.invocations),
    }
}

/// Whether every counter of `one` is at least as large as the same counter of `other`.
pub fn covers(one: UsageTotals, other: UsageTotals) -> bool {
    larger(one, other) == larger(one, one)
}

/// Displays totals in words, for a log or a report.
#[derive(Debug, Clone, Copy)]
pub struct TotalsText(pub UsageTotals);

impl fmt::Display for TotalsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "allocated {} ns, polling {} ns, computing {} ns, {} invocations",
            self.0.allocated_ns, self.0.hot_ns, self.0.compute_ns, self.0.invocations
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn totals(allocated_ns: u64, hot_ns: u64, compute_ns: u64) -> UsageTotals {
        UsageTotals {
            allocated_ns,
            hot_ns,
            compute_ns,
            invocations: 1,
        }
    }

    #[test]
    fn an_honest_agent_is_never_capped() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let slots = random.random_range(1..64);
            let account = Account {
                slots,
                granted_ms: random.random_range(0..1 << 40),
                ..Default::default()
            };
            let (mut known, mut told) = (UsageTotals::default(), UsageTotals::default());
            let mut held_ns = 0;
            for _ in 0..50 {
                let more = random.random_range(0..5_000_000_000_u64);
                held_ns += more;
                let busy = random.random_range(0..=more);
                // An agent whose clock is 400 parts in a million fast.
                let fast = |ns: u64| (ns + ns / 2500) * u64::from(slots);
                let hot = random.random_range(0..=busy);
                told = sum(told, totals(fast(more), fast(hot), fast(busy - hot)));
                let now_ms = account.granted_ms + held_ns / 1_000_000;
                let (kept, capped) = account.merge(known, told, now_ms);
                assert!(!capped, "seed {seed}: {told:?} was cut to {kept:?}");
                known = kept;
            }
        }
    }

    #[test]
    fn no_sequence_of_reports_bills_more_than_the_slots_time() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let account = Account {
                slots: 3,
                busy_slots: if seed % 2 == 0 { 0 } else { 5 },
                granted_ms: 1_000,
                ended_ms: random.random_bool(0.5).then_some(2_000),
                ..Default::default()
            };
            let mut known = UsageTotals::default();
            for step in 0..40 {
                let now = 1_000 + step * 50;
                let mut any = || random.random_range(0..20_000_000_000);
                let told = totals(any(), any(), any());
                let (kept, _) = account.merge(known, told, now);
                assert_eq!(larger(kept, known), kept, "seed {seed}: a counter fell");
                let limit = account.limit_ns(now);
                assert!(kept.allocated_ns <= limit, "seed {seed}: {kept:?} over {limit}");
                let limit = account.busy_limit_ns(now);
                assert!(
                    kept.hot_ns + kept.compute_ns <= limit,
                    "seed {seed}: {kept:?} uses the slots twice"
                );
                known = kept;
            }
        }
    }

    #[test]
    fn memory_alone_is_billed_for_the_time_it_is_held_and_no_core_is() {
        let account = Account {
            memory_bytes: 3 << 30,
            ..Account::default()
        };
        let (billed, capped) = account.merge(UsageTotals::default(), totals(10_000_000_000, 0, 0), 10_000);
        assert!(!capped, "{billed:?}");
        assert_eq!(account.memory_mib_ms(billed), 3 * 1024 * 10_000);
        assert_eq!(account.core_usage(billed), UsageTotals::default());
        let (billed, capped) = account.merge(billed, totals(20_000_000_000, 1, 1), 10_000);
        assert!(capped, "it was held for 10 s, and no core polls or computes");
        assert_eq!((billed.hot_ns, billed.compute_ns), (0, 0));
        assert!(billed.allocated_ns < 10_100_000_000, "{billed:?}");
        // Without memory nothing was granted.
        assert_eq!(Account::default().limit_ns(10_000), 0);
        let slots = Account { slots: 2, ..account };
        assert_eq!(slots.core_usage(totals(4, 1, 1)), totals(4, 1, 1));
    }

    #[test]
    fn memory_is_held_as_long_as_the_slots() {
        let account = Account {
            slots: 4,
            memory_bytes: 3 << 30,
            ..Default::default()
        };
        // 4 slots for 10 s: 3 GiB for 10 s.
        assert_eq!(account.memory_mib_ms(totals(40_000_000_000, 0, 0)), 3 * 1024 * 10_000);
    }
}
