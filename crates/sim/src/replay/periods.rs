//! Idle periods of nodes, and how they are inferred from samples that only count idle nodes.
//!
//! If a sample has more idle nodes than the sample before, the difference is the number of periods that begin between
//! the two, each at a random moment. If the sample has fewer, the difference is the number of periods that end. The
//! samples do not say which periods end. Two rules (matchings) are the extremes:
//! - oldest first: the node that has been idle longest gets the next job. The lengths vary least.
//! - newest first: the node that became idle last gets the next job. Some nodes stay idle for days, and the other
//!   periods are short.
//!
//! Both have the least number of periods that the samples permit. The real number is larger: if one node becomes idle
//! and another gets a job between two samples, the counts do not change. The third matching adds these exchanges.
//! Random nodes get jobs; besides, at a constant rate, an idle node gets a job while another node becomes idle. The
//! rate is chosen so that the median period has a known length.

use super::parameters::Micros;
use super::samples::Sample;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// Time during which one node is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub begin: Micros,
    pub end: Micros,
}

impl Period {
    pub fn length(&self) -> Micros {
        self.end - self.begin
    }
}

/// Rule by which idle nodes get jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    OldestFirst,
    NewestFirst,
    /// Length that the median period is to have.
    Exchanging {
        median: Micros,
    },
}

impl Matching {
    pub fn name(self) -> &'static str {
        match self {
            Self::OldestFirst => "oldest first",
            Self::NewestFirst => "newest first",
            Self::Exchanging { .. } => "exchanging",
        }
    }
}

/// Infers the idle periods between the first sample and the last.
pub fn infer(samples: &[Sample], matching: Matching, seed: u64) -> Vec<Period> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let periods = matched(samples, matching, random);
    match matching {
        Matching::Exchanging { median } => exchanged(&periods, median, seed),
        Matching::OldestFirst | Matching::NewestFirst => periods,
    }
}

fn matched(samples: &[Sample], matching: Matching, random: &mut SmallRng) -> Vec<Period> {
    let mut periods = Vec::new();
    // Beginnings of the open periods, in ascending order unless nodes are chosen at random.
    let mut idle: VecDeque<Micros> = samples
        .iter()
        .take(1)
        .flat_map(|first| vec![first.at; first.idle as usize])
        .collect();
    for step in samples.windows(2) {
        let [before, after] = [step[0], step[1]];
        let changes = before.idle.abs_diff(after.idle);
        let mut moments: Vec<_> = (0..changes)
            .map(|_| random.random_range(before.at + 1..=after.at))
            .collect();
        moments.sort_unstable();
        if after.idle >= before.idle {
            idle.extend(moments);
            continue;
        }
        for end in moments {
            let begin = match matching {
                Matching::OldestFirst => idle.pop_front(),
                Matching::NewestFirst => idle.pop_back(),
                Matching::Exchanging { .. } => idle.swap_remove_back(random.random_range(0..idle.len())),
            };
            periods.extend(begin.map(|begin| Period { begin, end }));
        }
    }
    let end = samples.last().map_or(0, |last| last.at);
    periods.extend(
        idle.into_iter()
            .map(|begin| Period { begin, end })
            .filter(|period| period.length() > 0),
    );
    periods
}

/// Divides periods until their median is at most `median`, and shorter by no more than a thousandth. If the median is
/// short enough already, no period is divided.
fn exchanged(periods: &[Period], median: Micros, seed: u64) -> Vec<Period> {
    let middle = |periods: &[Period]| quantile(&lengths(periods), 50);
    if middle(periods) <= median {
        return periods.to_vec();
    }
    // Bounds of the mean time from one exchange of a node to the next: with `short` the median is too short, with
    // `long` it is too long.
    let (mut short, mut long) = (0, 1000 * median);
    let mut best = divided(periods, median, seed);
    while long - short > median / 10_000 + 1 {
        let mean = u64::midpoint(short, long).max(1);
        let tried = divided(periods, mean, seed);
        let found = middle(&tried);
        if found > median {
            long = mean;
            continue;
        }
        short = mean;
        best = tried;
        if found + median / 1000 >= median {
            break;
        }
    }
    best
}

/// Divides periods at random moments. The mean time between these moments is `mean`.
fn divided(periods: &[Period], mean: Micros, seed: u64) -> Vec<Period> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let mut parts = Vec::with_capacity(periods.len() * 2);
    for period in periods {
        let mut begin = period.begin;
        loop {
            let end = begin.saturating_add(exponential(mean, random));
            if end >= period.end {
                break;
            }
            parts.push(Period { begin, end });
            begin = end;
        }
        parts.push(Period { begin, end: period.end });
    }
    parts
}

/// Draws the time until the next of independent events (exponential distribution); at least 1.
pub fn exponential(mean: Micros, random: &mut SmallRng) -> Micros {
    // In (0, 1], so the logarithm is finite.
    let rest = 1.0 - random.random::<f64>();
    (-rest.ln() * mean as f64).max(1.0) as Micros
}

/// Lengths of periods in ascending order.
pub fn lengths(periods: &[Period]) -> Vec<Micros> {
    let mut lengths: Vec<_> = periods.iter().map(Period::length).collect();
    lengths.sort_unstable();
    lengths
}

/// Percentile of ascending lengths; 0 if there are no lengths.
pub fn quantile(lengths: &[Micros], percent: usize) -> Micros {
    let last = lengths.len().saturating_sub(1);
    lengths.get(last * percent / 100).copied().unwrap_or(0)
}

/// Samples that would be taken every `step` while nodes are idle in these periods.
pub fn sampled(periods: &[Period], length: Micros, step: Micros) -> Vec<Sample> {
    let mut changes: Vec<(Micros, i32)> = Vec::with_capacity(periods.len() * 2);
    for period in periods {
        changes.push((period.begin, 1));
        changes.push((period.end, -1));
    }
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut idle = 0;
    let mut samples = Vec::new();
    for at in (0..=length).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        while let Some((_, change)) = changes.next_if(|(time, _)| *time <= at) {
            idle += change;
        }
        samples.push(Sample {
            at,
            idle: idle.unsigned_abs(),
        });
    }
    samples
}

#[cfg(test)]
#[path = "periods_tests.rs"]
mod tests;
