//! Samples of durations: the clock, blocks of consecutive samples, whole series, and pairs of series that alternate.

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use hotlease_fabric::clock::{TickClock, measure_tick_hz, median, ticks};
use std::time::Duration;

/// Clock that derives nanoseconds from the processor's ticks. Reading it is cheap.
#[derive(Clone, Copy)]
pub(super) struct Clock(TickClock);

impl Clock {
    /// Calibrates the clock, which takes 50 ms.
    pub(super) fn calibrate() -> Self {
        Self(TickClock::new(measure_tick_hz(Duration::from_millis(50))))
    }

    /// Times `count` calls of `run`, after `warm_up` calls that are not timed.
    pub(super) fn block<E>(
        &self,
        warm_up: usize,
        count: usize,
        mut run: impl FnMut() -> Result<(), E>,
    ) -> Result<Block, E> {
        for _ in 0..warm_up {
            run()?;
        }
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = ticks();
            run()?;
            times.push(ticks().wrapping_sub(start));
        }
        Ok(Block(times.into_iter().map(|ticks| self.0.ns(ticks)).collect()))
    }

    /// Times echoes of `input` like [`Clock::block`]. Fails if the last output differs from `input`.
    pub(super) fn echo_block<E>(
        &self,
        warm_up: usize,
        count: usize,
        input: &[u8],
        mut echo: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> anyhow::Result<Block>
    where
        anyhow::Error: From<E>,
    {
        let mut output = vec![0; input.len()];
        let block = self.block(warm_up, count, || echo(&mut output))?;
        ensure!(output == input, "the output of an echo differs from its input");
        Ok(block)
    }
}

/// Some hundred consecutive samples, nanoseconds.
pub(super) struct Block(pub(super) Vec<u64>);

impl Block {
    /// Mean of the middle half of the samples. Its resolution is finer than the median's, whose steps are the steps of
    /// the host's clock, which can be ten nanoseconds.
    fn middle(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let cut = sorted.len() / 4;
        let middle = &sorted[cut..sorted.len() - cut];
        middle.iter().sum::<u64>() as f64 / middle.len().max(1) as f64
    }
}

/// Longest duration that is recorded: ten minutes. Longer durations are recorded as ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// All samples of one series.
pub(super) struct Samples(Histogram<u64>);

impl Samples {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(
            Histogram::new_with_bounds(1, LONGEST_NS, 3).context("cannot make a histogram")?,
        ))
    }

    pub(super) fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    pub(super) fn add_block(&mut self, block: &Block) {
        block.0.iter().for_each(|ns| self.add(*ns));
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Duration in nanoseconds that this fraction of the samples does not exceed.
    pub(super) fn quantile(&self, fraction: f64) -> u64 {
        self.0.value_at_quantile(fraction)
    }
}

/// Two series whose blocks alternate.
pub(super) struct Pair {
    pub(super) baseline: Samples,
    pub(super) measured: Samples,
    /// Middle of each measured block minus the middle of the neighbouring baseline block, nanoseconds.
    differences: Vec<f64>,
    /// Quotients of the same pairs of blocks.
    ratios: Vec<f64>,
}

impl Pair {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            baseline: Samples::new()?,
            measured: Samples::new()?,
            differences: Vec::new(),
            ratios: Vec::new(),
        })
    }

    /// Makes an empty pair for each of `count` parameters.
    pub(super) fn several(count: usize) -> anyhow::Result<Vec<Self>> {
        (0..count).map(|_| Self::new()).collect()
    }

    /// Adds two blocks that were measured one after the other.
    pub(super) fn add(&mut self, baseline: &Block, measured: &Block) {
        self.baseline.add_block(baseline);
        self.measured.add_block(measured);
        let (base, ours) = (baseline.middle(), measured.middle());
        self.differences.push(ours - base);
        if base > 0.0 {
            self.ratios.push(ours / base);
        }
    }

    /// Median difference of neighbouring blocks.
    pub(super) fn difference(&self) -> f64 {
        median(&self.differences)
    }

    /// Median quotient of neighbouring blocks.
    pub(super) fn ratio(&self) -> f64 {
        median(&self.ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_block_by_block() {
        let mut pair = Pair::new().unwrap();
        // The host gets slower from block to block, but the difference stays the same.
        for base in [200, 400, 600] {
            pair.add(&Block(vec![base; 5]), &Block(vec![base + 20; 5]));
        }
        assert_eq!(pair.difference(), 20.0);
        assert_eq!(pair.ratio(), 1.05);
        assert_eq!((pair.baseline.len(), pair.measured.quantile(0.5)), (15, 420));
        pair.measured.add(123_456_789);
        assert!(
            pair.measured.quantile(1.0).abs_diff(123_456_789) < 200_000,
            "three digits of a value of any size"
        );
    }

    #[test]
    fn the_middle_of_a_block_ignores_its_tails() {
        let block = Block(vec![1_000_000, 100, 110, 110, 100, 110, 100, 0]);
        assert_eq!(block.middle(), 105.0);
        assert_eq!(Block(Vec::new()).middle(), 0.0);
    }

    #[test]
    fn a_block_counts_only_what_was_asked_for() {
        let mut runs = 0;
        let block = Clock::calibrate().block(3, 7, || {
            runs += 1;
            Ok::<(), ()>(())
        });
        assert_eq!((block.unwrap().0.len(), runs), (7, 10));
    }
}
