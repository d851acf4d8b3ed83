//! Slow-down of a neighbour by floods in a sandbox: the neighbour's pace during a flood, relative to its pace before
//! and after.
//!
//! Nodes have slow moments of their own, so no conclusion is drawn from one figure. For each flood, the neighbour
//! measures itself before, during and after. This gives one number: the 99th percentile during the flood, divided by
//! the mean of the 99th percentiles before and after. A longer slow-down of the node affects both sides of the
//! quotient. The result is the median of these numbers from several rounds. If it is above the limit, more rounds
//! follow before the flood is reported.

use hotlease_escape::LoopTimes;
use hotlease_fabric::clock::median;
use serde::Serialize;

/// Rounds of each flood.
const ROUNDS: usize = 5;
/// Rounds of a flood that seems to be above the limit.
const ROUNDS_OF_DOUBT: usize = 15;

/// Pace of a neighbour before, during and after a flood.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloodPulses {
    pub(super) before: LoopTimes,
    pub(super) flood: LoopTimes,
    pub(super) after: LoopTimes,
}

impl FloodPulses {
    /// Quotient of the neighbour's 99th percentiles during the flood and without the flood.
    fn times_p99(&self) -> f64 {
        let alone = (self.before.p99_ns as f64 + self.after.p99_ns as f64) / 2.0;
        // Avoids a division by zero if the clock did not advance.
        self.flood.p99_ns as f64 / alone.max(1.0)
    }
}

/// Pace of a neighbour during one flood, over all rounds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Pace {
    /// Number of rounds.
    rounds: usize,
    /// Number of measurements during the flood in the first round, and their percentiles, nanoseconds.
    count: usize,
    p50_ns: u64,
    p99_ns: u64,
    /// 99th percentile without the flood, in the first round.
    alone_p99_ns: u64,
    /// Median of the quotients of the 99th percentiles.
    times_p99: f64,
    #[serde(skip)]
    all: Vec<f64>,
}

impl Pace {
    pub(super) fn add(&mut self, beside: &FloodPulses) {
        if self.all.is_empty() {
            let LoopTimes { count, p50_ns, p99_ns } = beside.flood;
            (self.count, self.p50_ns, self.p99_ns) = (count, p50_ns, p99_ns);
            self.alone_p99_ns = beside.before.p99_ns.midpoint(beside.after.p99_ns);
        }
        self.all.push(beside.times_p99());
        self.all.sort_unstable_by(f64::total_cmp);
        self.rounds = self.all.len();
        self.times_p99 = median(&self.all);
    }

    /// Whether more rounds are needed to decide whether the pace is above the limit.
    pub(super) fn is_open(&self, limit: f64) -> bool {
        match self.rounds {
            ..ROUNDS => true,
            ROUNDS..ROUNDS_OF_DOUBT => self.is_over(limit),
            _ => false,
        }
    }

    pub(super) fn is_over(&self, limit: f64) -> bool {
        self.times_p99 > limit
    }

    pub(super) fn times_p99(&self) -> f64 {
        self.times_p99
    }

    /// Description in words.
    pub(super) fn text(&self) -> String {
        format!(
            "{:.2} times its 99th percentile alone (median of {}; {:.2} to {:.2})",
            self.times_p99,
            self.rounds,
            self.all.first().unwrap_or(&0.0),
            self.all.last().unwrap_or(&0.0)
        )
    }
}

/// Reads a limit from the command line.
pub(super) fn parse_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times.is_finite() && times > 0.0 => Ok(times),
        _ => Err(format!("{text:?} is no number of times, such as 1.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(before: u64, flood: u64, after: u64) -> FloodPulses {
        let pulse = |p99_ns| LoopTimes {
            count: 1000,
            p50_ns: 10,
            p99_ns,
        };
        FloodPulses {
            before: pulse(before),
            flood: pulse(flood),
            after: pulse(after),
        }
    }

    /// Adds rounds until the result is decided. Returns the number of rounds, and whether the result is above 1.5.
    fn judged(rounds: impl IntoIterator<Item = FloodPulses>) -> (usize, bool) {
        let mut pace = Pace::default();
        let mut rounds = rounds.into_iter();
        while pace.is_open(1.5) {
            pace.add(&rounds.next().expect("as many as are asked for"));
        }
        (pace.rounds, pace.is_over(1.5))
    }

    #[test]
    fn a_flood_that_slows_the_neighbour_down_each_time_is_over_the_limit() {
        let slow = std::iter::repeat(beside(100, 160, 100));
        assert_eq!(judged(slow), (ROUNDS_OF_DOUBT, true));
    }

    #[test]
    fn a_harmless_flood_is_within_the_pace_after_few_rounds() {
        assert_eq!(judged(std::iter::repeat(beside(100, 140, 100))), (ROUNDS, false));
    }

    #[test]
    fn moments_of_the_machine_s_own_are_no_fault_of_the_flood() {
        // Slow during the flood in two of five rounds.
        let some = [100, 900, 100, 900, 100].map(|flood| beside(100, flood, 100));
        assert_eq!(judged(some), (ROUNDS, false));
        // Slow during the flood in three of the first five rounds, and in no later round.
        let first = [900, 900, 900, 100, 100].map(|flood| beside(100, flood, 100));
        let rounds = first.into_iter().chain(std::iter::repeat(beside(100, 100, 100)));
        let (rounds, over) = judged(rounds);
        assert!(!over && rounds > ROUNDS, "{rounds} rounds");
        // Slow all the time, or slowing down gradually.
        assert_eq!(judged(std::iter::repeat(beside(900, 950, 900))), (ROUNDS, false));
        assert_eq!(judged(std::iter::repeat(beside(100, 500, 900))), (ROUNDS, false));
    }

    #[test]
    fn a_limit_is_a_number_of_times() {
        assert_eq!(parse_limit("1.5"), Ok(1.5));
        for bad in ["0", "-1", "inf", "nan", "x", ""] {
            assert!(parse_limit(bad).is_err(), "{bad:?} was taken");
        }
    }
}
