//! Everything that could be done on a link.

use super::traffic::{Survey, survey};
use super::{Estimate, MessageTimes, Prices, Scenario, TRANSFERS_EASY, estimate_by};
use crate::algorithm::Recipe;
use crate::choice::{LinkKind, Question, Table};
use crate::cost::LinkCost;
use crate::error::Error;

/// One way to do it, beside the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Which.
    pub recipe: Recipe,
    /// Whether the table chooses it.
    pub chosen: bool,
    /// What it takes and costs; or why that is not known: it has too many messages, or so many that it cannot be the best.
    pub estimate: Result<Estimate, Error>,
}

impl Candidate {
    fn seconds(&self) -> f64 {
        self.estimate.as_ref().map_or(f64::INFINITY, Estimate::seconds)
    }
}

/// Everything that could be done on a link; best first.
///
/// What has millions of messages is simulated only where it can be the best, or the table chooses it.
///
/// # Errors
///
/// As [`estimate`](super::estimate), but for what is too large to be simulated, which stands with its candidate.
pub fn candidates(
    scenario: &Scenario,
    link: LinkKind,
    table: &Table,
    prices: &Prices,
) -> Result<Vec<Candidate>, Error> {
    scenario.check()?;
    let question = Question::new(&scenario.call, scenario.element, link);
    let chosen = table.choose(&question).recipe;
    let mut recipes = question.candidates();
    if !recipes.contains(&chosen) {
        recipes.push(chosen);
    }
    if !prices.link.knows(link) {
        return Err(scenario.unknown(link));
    }
    // What a message occupies a rank for, wherever the other one is.
    let far = prices.link.message(link).map(MessageTimes::cost);
    let near = prices.link.shm.as_ref().map(MessageTimes::cost);
    let occupies = |count: usize| {
        let bytes = count as f64 * scenario.element as f64;
        let of = |cost: LinkCost| cost.message_s + bytes * cost.byte_s;
        // Of stores nothing is said.
        far.map_or(0.0, |far| of(far).min(near.map_or(f64::INFINITY, of)))
    };
    let mut surveyed = Vec::new();
    for recipe in recipes {
        surveyed.push((recipe, survey(&scenario.call, recipe, &occupies)?));
    }
    // What is quickly done shows what need not be done.
    surveyed.sort_by_key(|(_, survey)| survey.transfers);
    let mut candidates: Vec<Candidate> = Vec::new();
    for (
        recipe,
        Survey {
            transfers, least_s, ..
        },
    ) in surveyed
    {
        let best = candidates
            .iter()
            .map(Candidate::seconds)
            .fold(f64::INFINITY, f64::min);
        let estimate = if recipe != chosen && transfers > TRANSFERS_EASY && least_s > best {
            Err(scenario.no_estimate(format!(
                "{} has about {transfers} messages, and takes longer than the best by what one rank sends or receives",
                recipe.algorithm
            )))
        } else {
            match estimate_by(scenario, link, recipe, prices) {
                Err(error) if !matches!(error, Error::Model { .. }) => return Err(error),
                known => known,
            }
        };
        candidates.push(Candidate {
            recipe,
            chosen: recipe == chosen,
            estimate,
        });
    }
    candidates.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    Ok(candidates)
}
