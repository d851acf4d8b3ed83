//! Pace of a neighbour, which floods in a sandbox on the same node must not change much.

use hdrhistogram::Histogram;
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Durations of a small loop, which is repeated many times, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopTimes {
    /// Number of repetitions.
    pub count: usize,
    /// Half of the repetitions took at most this time.
    pub p50_ns: u64,
    /// 99 percent of the repetitions took at most this time.
    pub p99_ns: u64,
}

/// Steps of the loop: some microseconds.
const STEPS: u64 = 8192;
/// Longest time that is recorded: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

impl LoopTimes {
    /// Measures the pace of this process for this time.
    pub(crate) fn measure(over: Duration) -> Self {
        let begin = Instant::now();
        // A longer time is counted as the longest time.
        let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).expect("these bounds are valid");
        while begin.elapsed() < over || times.is_empty() {
            let started = Instant::now();
            let mut number = 0x9e37_79b9_7f4a_7c15u64;
            for step in 0..STEPS {
                number = black_box(number.rotate_left(5) ^ step).wrapping_mul(0x0100_0000_01b3);
            }
            black_box(number);
            times.saturating_record(started.elapsed().as_nanos() as u64);
        }
        Self {
            count: times.len() as usize,
            p50_ns: times.value_at_quantile(0.5),
            p99_ns: times.value_at_quantile(0.99),
        }
    }

    /// Parses the output of [`Display`](fmt::Display).
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(|number| number.parse().ok());
        Some(Self {
            count: numbers.next()?? as usize,
            p50_ns: numbers.next()??,
            p99_ns: numbers.next()??,
        })
    }
}

impl fmt::Display for LoopTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.count, self.p50_ns, self.p99_ns)
    }
}
