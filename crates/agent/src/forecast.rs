//! How many started workers should wait for the next leases of one program, and when, from the leases that came before. Pure: it
//! is told of events and their times, and does nothing.
//!
//! **How many.** A worker serves one lease, so each lease costs one for as long as it lasts and until another one is made. By
//! Little's law that many are away on average: the rate of arrivals, times the time of use and of making. The three are not
//! estimated one by one: each arrival counts the workers that are away at its moment, its own among them, and the number is kept
//! that 19 of 20 of the last counts do not exceed. So the margin is as wide as the arrivals are uneven: none where leases
//! come one after the other, a whole burst where they come in bursts. Those in use are part of the number, and only the rest
//! waits. An arrival takes from what waits what it adds to what is in use, so workers are made when leases end, and not while one
//! begins.
//!
//! **When.** By how long it was quiet before each arrival, as Shahrad et al. do for functions (*Serverless in the Wild*, USENIX
//! ATC 2020): from shortly before the shortest of these times until shortly after the longest (their 5th and 99th percentiles,
//! and a tenth of each). Until some are known, or where the longest is too long to go by, from at once, for a while.

use std::collections::VecDeque;
use std::time::Duration;

/// Arrivals that are remembered.
const ARRIVALS_MAX: usize = 32;
/// Quiet times that say something.
const QUIET_LEAST: usize = 4;
/// A longer quiet time says that nobody knows when the next lease comes.
const QUIET_MAX: Duration = Duration::from_secs(4 * 3600);
/// Workers wait no longer than this at a stretch, whatever the quiet times say.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Counts below which the number is, of a hundred.
const ENOUGH_PERCENT: usize = 95;

/// See the module.
#[derive(Debug)]
pub(crate) struct Forecast {
    /// How long workers wait at least after the last event.
    wait_least: Duration,
    in_use: usize,
    /// Workers whose leases are over, and when others will have been made in their place.
    in_making: VecDeque<(Duration, usize)>,
    /// Workers away, as each of the last arrivals counted them.
    away: VecDeque<usize>,
    /// How long it was quiet before each.
    quiet: VecDeque<Duration>,
    /// The last event.
    last: Option<Duration>,
    /// How long one takes to make, as of late.
    making: Option<Duration>,
}

/// What is to wait now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stock {
    /// Start workers until there are as many.
    pub fill: usize,
    /// Kill what is more.
    pub keep: usize,
    /// When this may change without an event.
    pub until: Option<Duration>,
}

/// When after the last event workers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stay {
    pub from: Duration,
    pub until: Duration,
}

impl Forecast {
    /// Of a program that nobody has asked for yet.
    pub fn new(wait_least: Duration) -> Self {
        Self {
            wait_least,
            in_use: 0,
            in_making: VecDeque::new(),
            away: VecDeque::new(),
            quiet: VecDeque::new(),
            last: None,
            making: None,
        }
    }

    /// A lease of so many workers began.
    pub fn arrived(&mut self, now: Duration, workers: usize) {
        if let Some(last) = self.last.replace(now) {
            remember(&mut self.quiet, now.saturating_sub(last));
        }
        self.in_use += workers;
        self.in_making.retain(|(made, _)| *made > now);
        let making: usize = self.in_making.iter().map(|(_, workers)| workers).sum();
        remember(&mut self.away, self.in_use + making);
    }

    /// A lease of so many is over.
    pub fn ended(&mut self, now: Duration, workers: usize) {
        self.last = Some(now);
        self.in_use = self.in_use.saturating_sub(workers);
        // They are made one after the other, after those before them.
        let busy_until = self.in_making.back().map_or(now, |(made, _)| now.max(*made));
        let making = self.making.unwrap_or_default();
        let made = busy_until + making.saturating_mul(u32::try_from(workers).unwrap_or(u32::MAX));
        remember(&mut self.in_making, (made, workers));
    }

    /// One was made in this time.
    pub fn made(&mut self, took: Duration) {
        self.making = Some(self.making.map_or(took, |before| (before * 7 + took) / 8));
    }

    /// How many arrivals it knows of, no more than it remembers.
    pub fn arrivals(&self) -> usize {
        self.away.len()
    }

    /// As many as were away at nearly each arrival.
    pub fn number(&self) -> usize {
        at_percent(self.away.iter().copied(), ENOUGH_PERCENT).unwrap_or(0)
    }

    /// As many of them as are not in use.
    pub fn left(&self) -> usize {
        self.number().saturating_sub(self.in_use)
    }

    /// When workers wait.
    pub fn stay(&self) -> Stay {
        let longest = self.quiet.iter().max().copied().unwrap_or_default();
        if self.quiet.len() < QUIET_LEAST || longest > QUIET_MAX {
            return Stay {
                from: Duration::ZERO,
                until: self.wait_least,
            };
        }
        let making = self.making.unwrap_or_default();
        let making = making.saturating_mul(u32::try_from(self.number()).unwrap_or(u32::MAX));
        let shortest = at_percent(self.quiet.iter().copied(), 5).unwrap_or_default();
        let from = (shortest - shortest / 10).saturating_sub(making);
        // For moments nobody is killed and started again.
        let from = if from > self.wait_least {
            from
        } else {
            Duration::ZERO
        };
        let until = (longest + longest / 10).max(self.wait_least);
        Stay {
            from,
            until: until.min(from + WAIT_MAX.max(self.wait_least)),
        }
    }

    /// What is to wait at this time.
    pub fn stock(&self, now: Duration) -> Stock {
        let none = |until| Stock {
            fill: 0,
            keep: 0,
            until,
        };
        let Some(last) = self.last else {
            return none(None);
        };
        let Stay { from, until } = self.stay();
        match now.saturating_sub(last) {
            quiet if quiet < from => none(Some(last + from)),
            quiet if quiet >= until => none(None),
            _ => Stock {
                fill: self.left(),
                // What was there for those in use may not have been taken yet.
                keep: self.number(),
                until: Some(last + until),
            },
        }
    }
}

fn remember<T>(last: &mut VecDeque<T>, one: T) {
    if last.len() == ARRIVALS_MAX {
        last.pop_front();
    }
    last.push_back(one);
}

/// What so many of a hundred do not exceed.
fn at_percent<T: Ord>(values: impl Iterator<Item = T>, percent: usize) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).max(1);
    values.into_iter().nth(at - 1)
}

#[cfg(test)]
mod tests;
