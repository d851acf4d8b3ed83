//! Forecast of how many started workers should wait for the next leases of one program, and when, from past leases.
//! Pure: it gets events and their times, and has no effects.
//!
//! **How many.** A worker serves one lease, so each lease takes a worker away for as long as the lease lasts, and until
//! another worker is made. By Little's law the average number of workers that are away is the rate of arrivals, times
//! the time of use plus the time of making. These three are not estimated separately. Instead, each arrival counts the
//! workers that are away at that time, its own included. The forecast is the 95th percentile of the last counts. So its
//! margin follows the arrivals: no margin if leases come one after the other, a whole burst if they come in bursts. The
//! forecast includes the workers in use; the other workers wait. An arrival turns waiting workers into workers in use,
//! so workers are made when a lease ends, and not while a lease begins.
//!
//! **When.** This follows from the quiet time before each arrival, as in Shahrad et al. for functions (*Serverless in
//! the Wild*, USENIX ATC 2020): workers wait from shortly before the shortest quiet time until shortly after the
//! longest quiet time (the 5th and 99th percentiles, and a tenth of each). While too few quiet times are known, or if
//! the longest is too long to be useful, workers wait at once, for a limited time.

use std::collections::VecDeque;
use std::time::Duration;

/// Largest number of arrivals that are remembered.
const ARRIVALS_MAX: usize = 32;
/// Fewest quiet times from which the waiting time is derived.
const QUIET_LEAST: usize = 4;
/// After a longer quiet time, the moment of the next lease is considered unknown.
const QUIET_MAX: Duration = Duration::from_secs(4 * 3600);
/// Longest time that workers wait at a stretch, even if the quiet times are longer.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Percentage of the counts that the forecast covers.
const ENOUGH_PERCENT: usize = 95;

/// Forecast for one program, from its past leases.
#[derive(Debug)]
pub(crate) struct Forecast {
    /// Least time for which workers wait after the last event, unless past events came after longer pauses.
    wait_least: Duration,
    in_use: usize,
    /// For each lease that ended, the time at which its workers will have been replaced, and their number.
    in_making: VecDeque<(Duration, usize)>,
    /// Workers away, as each of the last arrivals counted them.
    away: VecDeque<usize>,
    /// Quiet time before each of the last arrivals.
    quiet: VecDeque<Duration>,
    /// Time of the last event.
    last: Option<Duration>,
    /// Time that making one worker takes, averaged over the last workers.
    making: Option<Duration>,
}

/// Number of workers that should wait now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitTarget {
    /// Start workers until this many wait.
    pub fill: usize,
    /// Kill workers beyond this number.
    pub keep: usize,
    /// Time at which this may change without an event.
    pub until: Option<Duration>,
}

/// Interval, counted from the last event, in which workers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitInterval {
    pub from: Duration,
    pub until: Duration,
}

impl Forecast {
    /// Forecast for a program that no lease has asked for yet.
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

    /// Records that a lease of this many workers began.
    pub fn record_arrival(&mut self, now: Duration, workers: usize) {
        if let Some(last) = self.last.replace(now) {
            remember(&mut self.quiet, now.saturating_sub(last));
        }
        self.in_use += workers;
        self.in_making.retain(|(made, _)| *made > now);
        let making: usize = self.in_making.iter().map(|(_, workers)| workers).sum();
        remember(&mut self.away, self.in_use + making);
    }

    /// Records that a lease of this many workers ended.
    pub fn record_end(&mut self, now: Duration, workers: usize) {
        self.last = Some(now);
        self.in_use = self.in_use.saturating_sub(workers);
        // Workers are made one after the other, after the workers that are already due.
        let busy_until = self.in_making.back().map_or(now, |(made, _)| now.max(*made));
        let making = self.making.unwrap_or_default();
        let made = busy_until + making.saturating_mul(u32::try_from(workers).unwrap_or(u32::MAX));
        remember(&mut self.in_making, (made, workers));
    }

    /// Records that a worker was made, and how long that took.
    pub fn record_made(&mut self, took: Duration) {
        self.making = Some(self.making.map_or(took, |before| (before * 7 + took) / 8));
    }

    /// Number of arrivals that are remembered.
    pub fn arrivals(&self) -> usize {
        self.away.len()
    }

    /// Forecast number of workers that are away, in use or being made: the 95th percentile of the last counts.
    pub fn number(&self) -> usize {
        at_percent(self.away.iter().copied(), ENOUGH_PERCENT).unwrap_or(0)
    }

    /// Forecast number of workers that wait: [`number`](Self::number) without the workers in use.
    pub fn idle_number(&self) -> usize {
        self.number().saturating_sub(self.in_use)
    }

    /// Interval, counted from the last event, in which workers wait.
    pub fn stay(&self) -> WaitInterval {
        let longest = self.quiet.iter().max().copied().unwrap_or_default();
        if self.quiet.len() < QUIET_LEAST || longest > QUIET_MAX {
            return WaitInterval {
                from: Duration::ZERO,
                until: self.wait_least,
            };
        }
        let making = self.making.unwrap_or_default();
        let making = making.saturating_mul(u32::try_from(self.number()).unwrap_or(u32::MAX));
        let shortest = at_percent(self.quiet.iter().copied(), 5).unwrap_or_default();
        let from = (shortest - shortest / 10).saturating_sub(making);
        // A short pause is not worth killing workers and starting others.
        let from = if from > self.wait_least { from } else { Duration::ZERO };
        let until = (longest + longest / 10).max(self.wait_least);
        WaitInterval {
            from,
            until: until.min(from + WAIT_MAX.max(self.wait_least)),
        }
    }

    /// Number of workers that should wait at this time.
    pub fn stock(&self, now: Duration) -> WaitTarget {
        let none = |until| WaitTarget {
            fill: 0,
            keep: 0,
            until,
        };
        let Some(last) = self.last else {
            return none(None);
        };
        let WaitInterval { from, until } = self.stay();
        match now.saturating_sub(last) {
            quiet if quiet < from => none(Some(last + from)),
            quiet if quiet >= until => none(None),
            _ => WaitTarget {
                fill: self.idle_number(),
                // A lease may be included in the workers in use before it has taken its waiting workers.
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

/// The value that this percentage of the values does not exceed. It is found in all values, at most [`ARRIVALS_MAX`],
/// because a histogram could not forget the oldest value.
fn at_percent<T: Ord>(values: impl Iterator<Item = T>, percent: usize) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).max(1);
    values.into_iter().nth(at - 1)
}

#[cfg(test)]
mod tests;
