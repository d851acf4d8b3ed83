//! All recipes for a collective on a link, with their estimates.

use super::traffic::{Survey, survey};
use super::{Estimate, LinkPrices, MessageTimes, Scenario, TRANSFERS_SMALL, estimate_by};
use crate::algorithm::Recipe;
use crate::choice::{LinkKind, Question, Table};
use crate::cost::LinkCost;
use crate::error::Error;

/// One recipe, compared with the others.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipeCandidate {
    /// The recipe.
    pub recipe: Recipe,
    /// Whether the table chooses the recipe.
    pub chosen: bool,
    /// Time and price, or the reason why they are unknown: too many messages to simulate, or so many that the recipe
    /// cannot be the best.
    pub estimate: Result<Estimate, Error>,
}

impl RecipeCandidate {
    fn seconds(&self) -> f64 {
        self.estimate.as_ref().map_or(f64::INFINITY, Estimate::seconds)
    }
}

/// Lists all recipes for a collective on a link, the best first.
///
/// A recipe with millions of messages is simulated only if it can be the best, or if the table chooses it.
///
/// # Errors
///
/// Errors of [`estimate`](super::estimate), except that a recipe too large to simulate has its error in its own
/// candidate.
pub fn candidates(
    scenario: &Scenario,
    link: LinkKind,
    table: &Table,
    prices: &LinkPrices,
) -> Result<Vec<RecipeCandidate>, Error> {
    scenario.check()?;
    let question = Question::new(&scenario.call, link);
    let chosen = table.choose(&question);
    let mut recipes = question.candidates();
    if !recipes.contains(&chosen) {
        recipes.push(chosen);
    }
    if !prices.link.has(link) {
        return Err(scenario.unknown(link));
    }
    // Time that a message occupies a rank, for the nearest possible peer.
    let far = prices.link.message(link).map(MessageTimes::cost);
    let near = prices.link.shm.as_ref().map(MessageTimes::cost);
    let occupies = |count: usize| {
        let bytes = count as f64 * scenario.element() as f64;
        let of = |cost: LinkCost| cost.message_s + bytes * cost.byte_s;
        // There is no such bound for stores.
        far.map_or(0.0, |far| of(far).min(near.map_or(f64::INFINITY, of)))
    };
    let mut surveyed = Vec::new();
    for recipe in recipes {
        surveyed.push((recipe, survey(&scenario.call, recipe, &occupies)?));
    }
    // Small recipes come first; their times show which large recipes cannot be the best.
    surveyed.sort_by_key(|(_, survey)| survey.transfers);
    let mut candidates: Vec<RecipeCandidate> = Vec::new();
    for (recipe, Survey { transfers, least_s, .. }) in surveyed {
        let best = candidates
            .iter()
            .map(RecipeCandidate::seconds)
            .fold(f64::INFINITY, f64::min);
        let estimate = if recipe != chosen && transfers > TRANSFERS_SMALL && least_s > best {
            Err(scenario.no_estimate(format!(
                "{} has about {transfers} messages: those of one rank alone take longer than all of the best recipe",
                recipe.algorithm
            )))
        } else {
            match estimate_by(scenario, link, recipe, prices) {
                Err(error) if !matches!(error, Error::Model { .. }) => return Err(error),
                known => known,
            }
        };
        candidates.push(RecipeCandidate {
            recipe,
            chosen: recipe == chosen,
            estimate,
        });
    }
    candidates.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    Ok(candidates)
}
