//! Tables made from measurements.

use super::{LinkKind, Rule, Table};
use crate::algorithm::Recipe;
use crate::error::Error;
use crate::operation::Operation;
use crate::schedule::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Measured time of one recipe for a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// The collective.
    pub operation: Operation,
    /// Number of ranks that took part.
    pub ranks: Rank,
    /// Bytes, counted as the `bytes` of a table.
    pub bytes: usize,
    /// The recipe.
    pub recipe: Recipe,
    /// Bytes of an element.
    pub element: usize,
    /// The measured time, in seconds.
    pub seconds: f64,
}

/// Factor by which another recipe must be faster than the winner of the next smaller size, so that a table does not
/// follow noise.
const FASTER_BY: f64 = 1.05;

impl Table {
    /// Makes a table with the fastest measured recipes of a link. The built-in rules are kept for all other cases:
    /// other links, operators that an algorithm cannot use, and ranks that share nodes. The border between two
    /// measured numbers is their geometric mean.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if there are no measurements, or a recipe does not fit its operation or link.
    pub fn tuned(link: LinkKind, measured: &[Measurement]) -> Result<Table, Error> {
        if measured.is_empty() {
            return Err(Error::Table {
                why: "nothing was measured".into(),
            });
        }
        let mut tuned = Vec::new();
        let mut places: BTreeMap<(Operation, Rank), Vec<&Measurement>> = BTreeMap::new();
        for one in measured {
            places.entry((one.operation, one.ranks)).or_default().push(one);
        }
        for (&(operation, ranks), of_place) in &places {
            let others: BTreeSet<Rank> = measured
                .iter()
                .filter(|one| one.operation == operation)
                .map(|one| one.ranks)
                .collect();
            let at = borders(
                &others.iter().map(|ranks| *ranks as usize).collect::<Vec<_>>(),
                ranks as usize,
            );
            for (bytes, best) in winners(of_place) {
                tuned.push(Rule {
                    operation,
                    links: vec![link],
                    ranks_min: at.0.map(|ranks| ranks as u32),
                    ranks_max: at.1.map(|ranks| ranks as u32),
                    bytes_min: bytes.0,
                    bytes_max: bytes.1,
                    block_bytes_min: None,
                    block_bytes_max: None,
                    algorithm: best.recipe.algorithm,
                    by_nodes: best.recipe.by_nodes,
                    crowded: false,
                    segment_bytes: best.recipe.segment * best.element,
                });
            }
        }
        // Rules for nodes come first, because they were not measured.
        let (between_nodes, others) = Table::built_in()
            .rules()
            .iter()
            .cloned()
            .partition::<Vec<Rule>, _>(|rule| rule.by_nodes);
        Table::of([between_nodes, tuned, others].concat())
    }
}

type Bounds = (Option<usize>, Option<usize>);

/// Range in which `number` applies, among other numbers in ascending order.
fn borders(numbers: &[usize], number: usize) -> Bounds {
    let mean = |a: usize, b: usize| ((a as f64 * b as f64).sqrt() as usize).clamp(a, b - 1);
    let below = numbers.iter().rev().find(|other| **other < number);
    let above = numbers.iter().find(|other| **other > number);
    (
        below.map(|below| mean(*below, number) + 1),
        above.map(|above| mean(number, *above)),
    )
}

/// The fastest recipes, each with its range of sizes.
fn winners<'a>(measured: &[&'a Measurement]) -> Vec<(Bounds, &'a Measurement)> {
    let mut sizes: BTreeMap<usize, Vec<&Measurement>> = BTreeMap::new();
    for one in measured {
        sizes.entry(one.bytes).or_default().push(one);
    }
    let numbers: Vec<usize> = sizes.keys().copied().collect();
    let mut winners: Vec<(Bounds, &Measurement)> = Vec::new();
    for (size, of_size) in sizes {
        let Some(best) = of_size.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)) else {
            continue;
        };
        let before = winners.last().map(|(_, winner)| winner.recipe);
        let stays = |one: &&&Measurement| Some(one.recipe) == before && one.seconds < best.seconds * FASTER_BY;
        let winner = of_size.iter().find(stays).unwrap_or(best);
        let (least, most) = borders(&numbers, size);
        match winners.last_mut() {
            Some((bounds, last)) if last.recipe == winner.recipe => bounds.1 = most,
            _ => winners.push(((least, most), winner)),
        }
    }
    winners
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Question;
    use crate::collective::{Collective, CollectiveCall};
    use crate::datatype::Datatype;
    use crate::operation::Algorithm;
    use crate::operator::Operator;

    fn took(ranks: Rank, bytes: usize, algorithm: Algorithm, seconds: f64) -> Measurement {
        Measurement {
            operation: Operation::Allreduce,
            ranks,
            bytes,
            recipe: algorithm.into(),
            element: 8,
            seconds,
        }
    }

    #[test]
    fn a_tuned_table_follows_what_was_measured_and_elsewhere_the_built_in_one() {
        use Algorithm::{Rabenseifner, RecursiveDoubling, Ring};
        let measured = [
            took(4, 100, RecursiveDoubling, 1.0),
            took(4, 100, Ring, 3.0),
            took(4, 10_000, RecursiveDoubling, 4.1),
            took(4, 10_000, Ring, 4.0),
            took(4, 1_000_000, RecursiveDoubling, 9.0),
            took(4, 1_000_000, Ring, 5.0),
            took(16, 100, Rabenseifner, 1.0),
            took(16, 100, Ring, 2.0),
        ];
        let table = Table::tuned(LinkKind::Tcp, &measured).expect("a table");
        let choose = |ranks, bytes: usize, link, commutes, nodes: Option<&[u32]>| {
            let (count, operator) = (bytes / 8, Operator::in_order(commutes));
            let call = CollectiveCall {
                nodes,
                ..CollectiveCall::new(Collective::Allreduce { count, operator }, Datatype::U64, 0, ranks)
            };
            table.choose(&Question::new(&call, link))
        };
        let tcp = |ranks, bytes| choose(ranks, bytes, LinkKind::Tcp, true, None).algorithm;
        assert_eq!(tcp(4, 8), RecursiveDoubling);
        // The ring is faster by only a fortieth.
        assert_eq!(tcp(4, 10_000), RecursiveDoubling);
        assert_eq!((tcp(4, 99_992), tcp(4, 100_008)), (RecursiveDoubling, Ring));
        assert_eq!(tcp(8, 1 << 30), Ring, "8 is nearer to 4");
        assert_eq!(tcp(9, 1 << 30), Rabenseifner);
        assert_eq!(tcp(1000, 8), Rabenseifner);
        let built_in = |ranks, bytes: usize, link, commutes| {
            let (count, operator) = (bytes / 8, Operator::in_order(commutes));
            let call = CollectiveCall::new(Collective::Allreduce { count, operator }, Datatype::U64, 0, ranks);
            Table::built_in().choose(&Question::new(&call, link))
        };
        for bytes in [8, 1 << 20, 1 << 24] {
            assert_eq!(
                choose(4, bytes, LinkKind::S3, true, None),
                built_in(4, bytes, LinkKind::S3, true)
            );
        }
        assert_eq!(
            choose(4, 1 << 24, LinkKind::Tcp, false, None),
            built_in(4, 1 << 24, LinkKind::Tcp, false),
            "the ring does not serve"
        );
        assert!(choose(4, 8, LinkKind::Tcp, true, Some(&[0, 0, 1, 1])).by_nodes);
        assert_eq!(Table::parse(&table.to_string()), Ok(table.clone()));
        assert!(Table::tuned(LinkKind::Tcp, &[]).is_err());
        assert!(
            Table::tuned(LinkKind::S3, &measured).is_err(),
            "rings are no way through a store"
        );
    }

    #[test]
    fn borders_are_between_numbers() {
        assert_eq!(borders(&[8], 8), (None, None));
        assert_eq!(borders(&[0, 8, 128], 0), (None, Some(0)));
        assert_eq!(borders(&[0, 8, 128], 8), (Some(1), Some(32)));
        assert_eq!(borders(&[0, 8, 128], 128), (Some(33), None));
        assert_eq!(borders(&[2, 3], 3), (Some(3), None));
    }
}
