//! Clocks: the system's monotonic clock, and the time-stamp counter for shorter times. Also the median of measured
//! values.

use std::time::Duration;

/// CLOCK_MONOTONIC in nanoseconds; equal in all processes of a node.
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on Linux");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Reads the time-stamp counter without serialising, which takes a few nanoseconds. Only differences are meaningful,
/// and only on processors with an invariant counter, which all 64-bit servers of the last decade have.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC is unprivileged on every system that Linux user space runs on, unless disabled by prctl.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads the virtual counter, which Linux lets user space read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        count
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    monotonic_ns()
}

/// Ticks per second, measured against the system's clock. Blocks for `over`: the agent measures once and passes the
/// result to its workers.
pub fn measure_tick_hz(over: Duration) -> u64 {
    let (tick_start, ns_start) = read_clock_pair();
    std::thread::sleep(over);
    let (tick_end, ns_end) = read_clock_pair();
    let hz = u128::from(tick_end - tick_start) * 1_000_000_000 / u128::from((ns_end - ns_start).max(1));
    (hz as u64).max(1)
}

/// Ticks, and the system's nanoseconds of the same moment. Reads 16 pairs and takes the pair that was read fastest: if
/// the thread lost its processor between the two readings, all workers would get a wrong tick rate.
fn read_clock_pair() -> (u64, u64) {
    let read = |_| {
        let before = monotonic_ns();
        let ticks = ticks();
        let after = monotonic_ns();
        (after - before, ticks, before + (after - before) / 2)
    };
    let (_, ticks, ns) = (0..16).map(read).min().expect("there are some");
    (ticks, ns)
}

/// Converts ticks to nanoseconds with one multiplication.
#[derive(Debug, Clone, Copy)]
pub struct TickClock {
    /// Nanoseconds per tick, 32.32 fixed point.
    ns_per_tick: u64,
}

impl TickClock {
    /// Clock of a counter with this rate.
    pub fn new(tick_hz: u64) -> Self {
        Self {
            ns_per_tick: ((1_000_000_000u128 << 32) / u128::from(tick_hz.max(1))) as u64,
        }
    }

    /// Converts a difference of ticks to nanoseconds.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    /// Converts nanoseconds to a difference of ticks (saturating).
    pub fn ticks(&self, ns: u64) -> u64 {
        u64::try_from((u128::from(ns) << 32) / u128::from(self.ns_per_tick.max(1))).unwrap_or(u64::MAX)
    }
}

/// Median of measured values: the mean of the middle two if their number is even, and 0 if there are none. Exact, and
/// meant for values that do not fit a histogram: few values, negative values, and ratios.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(half)) {
        (_, None) => 0.0,
        (0, Some(upper)) => sorted[half - 1].midpoint(*upper),
        (_, Some(middle)) => *middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_between_the_two_in_the_middle() {
        assert_eq!(
            [&[][..], &[3.0], &[2.0, 1.0], &[2.0, 9.0, 1.0]].map(median),
            [0.0, 3.0, 1.5, 2.0]
        );
    }

    #[test]
    fn tick_clock_agrees_with_the_system() {
        let clock = TickClock::new(measure_tick_hz(Duration::from_millis(20)));
        let (tick_start, ns_start) = read_clock_pair();
        std::thread::sleep(Duration::from_millis(50));
        let (tick_end, ns_end) = read_clock_pair();
        let (by_ticks, by_system) = (clock.ns(tick_end - tick_start), ns_end - ns_start);
        let ratio = by_ticks as f64 / by_system as f64;
        assert!(
            (0.9..1.1).contains(&ratio),
            "{by_ticks} ns by ticks, {by_system} ns by the system"
        );
        assert_eq!(TickClock::new(1_000_000_000).ticks(12345), 12345);
        assert_eq!(TickClock::new(3_000_000_000).ticks(u64::MAX), u64::MAX);
    }
}
