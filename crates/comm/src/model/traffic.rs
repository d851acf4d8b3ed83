//! What schedules ask of a store: objects by their sizes, because some are charged for by the kilobyte.

use super::prices::Requests;
use crate::algorithm::Recipe;
use crate::collective::Call;
use crate::error::Error;
use crate::schedule::{Schedule, Step};
use std::collections::BTreeMap;

/// How many objects of each size all ranks write and read. Schedules have few sizes.
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

    /// What a store charges for them, for removing each object, and for `polls` reads that found nothing.
    pub(super) fn price(&self, requests: &Requests, polls: u64) -> f64 {
        let sum = |sizes: &BTreeMap<u64, u64>, unit: Option<u64>| -> f64 {
            let of_size = |(bytes, count): (&u64, &u64)| requests.units(*bytes, unit) as f64 * *count as f64;
            sizes.iter().map(of_size).sum()
        };
        let written = sum(&self.writes, requests.write_unit_bytes);
        let read = sum(&self.reads, requests.read_unit_bytes);
        written * (requests.write_price + requests.remove_price) + (read + polls as f64) * requests.read_price
    }
}

/// Schedules of more rounds than this count as endless.
const ROUNDS_MAX: usize = 1 << 20;

/// About how many transfers a collective has, and how many of them can be under way at a time: counted at rank 0 and at the last rank,
/// of which the others are like one.
pub(super) fn survey(call: &Call, recipe: Recipe) -> Result<(u64, u64), Error> {
    let of = |rank| {
        let part = recipe.build_part(&Call { rank, ..*call }, 0..ROUNDS_MAX)?;
        let sizes = || {
            part.schedule
                .rounds
                .iter()
                .map(|round| round.transfers.len() as u64)
        };
        let all = if part.more { u64::MAX } else { sizes().sum() };
        Ok::<_, Error>((all, sizes().max().unwrap_or(0)))
    };
    let (first, last) = (of(0)?, of(call.ranks - 1)?);
    let ranks = u64::from(call.ranks);
    let all = |of_first: u64, of_last: u64| of_first.saturating_add(of_last.saturating_mul(ranks));
    Ok((all(first.0, last.0), all(first.1, last.1)))
}
