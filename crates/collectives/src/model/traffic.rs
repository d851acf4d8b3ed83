//! Requests of schedules to a store: objects by size, because some stores charge by the kilobyte.

use super::prices::RequestPrices;
use crate::algorithm::Recipe;
use crate::collective::CollectiveCall;
use crate::error::Error;
use crate::schedule::{Schedule, Step};
use std::collections::BTreeMap;

/// Number of objects of each size that all ranks write and read. Schedules have few sizes.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    writes: BTreeMap<u64, u64>,
    reads: BTreeMap<u64, u64>,
}

impl Traffic {
    pub(super) fn count(&mut self, schedule: &Schedule, element: usize) {
        let bytes = |count: usize| count as u64 * element as u64;
        for step in schedule.rounds.iter().flat_map(|round| &round.transfers) {
            match *step {
                Step::Publish { from, .. } => *self.writes.entry(bytes(from.count)).or_default() += 1,
                Step::Fetch { into, .. } => *self.reads.entry(bytes(into.count)).or_default() += 1,
                _ => {}
            }
        }
    }

    /// Price of these writes and reads, of removing each object, and of `polls` reads that found nothing.
    pub(super) fn price(&self, requests: &RequestPrices, polls: u64) -> f64 {
        let sum = |sizes: &BTreeMap<u64, u64>, unit: Option<u64>| -> f64 {
            let of_size = |(bytes, count): (&u64, &u64)| requests.units(*bytes, unit) as f64 * *count as f64;
            sizes.iter().map(of_size).sum()
        };
        let written = sum(&self.writes, requests.write_unit_bytes);
        let read = sum(&self.reads, requests.read_unit_bytes);
        written * (requests.write_price + requests.remove_price) + (read + polls as f64) * requests.read_price
    }
}

/// Maximum number of rounds; a schedule with more rounds counts as endless.
const ROUNDS_MAX: usize = 1 << 20;

/// Bounds of a collective that need no simulation. They come from the schedules of rank 0 and of the last rank, which
/// represents all other ranks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Survey {
    /// Approximate number of transfers.
    pub(super) transfers: u64,
    /// Approximate number of transfers that can be under way at a time.
    pub(super) at_once: u64,
    /// Lower bound of the time, because a rank sends and receives one message at a time.
    pub(super) least_s: f64,
}

/// Surveys a call. `occupies` is the least time that a transfer of some elements occupies a rank's port.
pub(super) fn survey(call: &CollectiveCall, recipe: Recipe, occupies: &dyn Fn(usize) -> f64) -> Result<Survey, Error> {
    let of = |rank| {
        let part = recipe.build_part(&CollectiveCall { rank, ..*call }, 0..ROUNDS_MAX)?;
        let (mut all, mut most, mut out_s, mut in_s) = (0, 0, 0.0, 0.0);
        for round in &part.schedule.rounds {
            let transfers = round.transfers.len() as u64;
            (all, most) = (all + transfers, transfers.max(most));
            for step in &round.transfers {
                match *step {
                    Step::Send { from, .. } | Step::Publish { from, .. } => out_s += occupies(from.count),
                    Step::Receive { into, .. } | Step::Fetch { into, .. } => in_s += occupies(into.count),
                    _ => {}
                }
            }
        }
        Ok::<_, Error>(Survey {
            transfers: if part.has_more { u64::MAX } else { all },
            at_once: most,
            least_s: f64::max(out_s, in_s),
        })
    };
    let (first, last) = (of(0)?, of(call.ranks - 1)?);
    let ranks = u64::from(call.ranks);
    let all = |of_first: u64, of_last: u64| of_first.saturating_add(of_last.saturating_mul(ranks));
    Ok(Survey {
        transfers: all(first.transfers, last.transfers),
        at_once: all(first.at_once, last.at_once),
        least_s: first.least_s.max(last.least_s),
    })
}
