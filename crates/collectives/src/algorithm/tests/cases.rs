//! Cases that are tried: numbers of ranks, roots, counts, positions of blocks, elements, nodes.

use crate::algorithm::Recipe;
use crate::collective::CollectiveCall;
use crate::datatype::Datatype;
use crate::operation::{Algorithm, Operation};
use crate::operator::{Operator, Reduction};
use crate::schedule::Rank;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock, OnceLock};

pub const COUNTS: [usize; 5] = [0, 1, 2, 7, 1000];

/// Counts for operations where each rank has one block for each other rank: only few ranks try long blocks.
pub fn block_counts(ranks: Rank) -> [usize; 5] {
    [0, 1, 2, 7, if ranks < 6 { 1000 } else { 20 }]
}

/// Powers of two, their neighbours, and all small numbers.
pub fn ranks() -> impl Iterator<Item = Rank> {
    (1..=17).chain([31, 32, 33])
}

/// All ranks, if they are few; otherwise the first, the second, one in the middle and the last.
pub fn roots(ranks: Rank) -> Vec<Rank> {
    if ranks <= 9 {
        (0..ranks).collect()
    } else {
        vec![0, 1, ranks / 2, ranks - 1]
    }
}

pub fn base_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        std::env::var("HOTLEASE_SEED").map_or(1, |text| text.parse().expect("HOTLEASE_SEED is a number"))
    })
}

/// A number that looks random (splitmix64).
pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// `u64`, added: an operator that commutes.
    Numbers,
    /// Maps `x -> ax + b` of `u64`, composed: an operator that does not commute.
    Maps,
    /// `f64`, added: the result depends on the order of evaluation.
    Floats,
}

impl Elements {
    pub const REDUCED: [Elements; 2] = [Elements::Numbers, Elements::Maps];

    pub fn size(self) -> usize {
        self.datatype().size()
    }

    pub fn datatype(self) -> Datatype {
        match self {
            Elements::Numbers => Datatype::U64,
            Elements::Maps => Datatype::Record(NonZeroU32::new(16).expect("16")),
            Elements::Floats => Datatype::F64,
        }
    }

    pub fn operator(self) -> &'static Operator {
        static COMPOSITION: LazyLock<Operator> = LazyLock::new(|| Operator::User {
            function: Arc::new(|first, second, _| {
                for (first, second) in first.as_chunks().0.iter().zip(second.as_chunks_mut().0) {
                    *second = after(*first, *second);
                }
            }),
            commutes: false,
        });
        match self {
            Elements::Maps => &COMPOSITION,
            _ => &Operator::Sum,
        }
    }

    pub fn reduction(self) -> Option<Reduction> {
        let reduction = self.operator().of(self.datatype());
        Some(reduction.expect("there is such a reduction"))
    }

    /// Reduces one element in the simplest way: `own = lower op own`.
    pub fn reduce(self, lower: &[u8], own: &mut [u8]) {
        match self {
            Elements::Numbers => {
                own.copy_from_slice(&number(lower).wrapping_add(number(own)).to_ne_bytes());
            }
            Elements::Maps => {
                let maps = (
                    lower.try_into().expect("16 bytes"),
                    (&*own).try_into().expect("16 bytes"),
                );
                own.copy_from_slice(&after(maps.0, maps.1));
            }
            Elements::Floats => {
                let sum = f64::from_bits(number(lower)) + f64::from_bits(number(own));
                own.copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }

    /// Inputs and outputs of all ranks. Each element has a value of its own, also in outputs, so that a forbidden write
    /// is detected.
    pub fn buffers(self, calls: &[CollectiveCall], seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let fill = |rank: Rank, which: u64, elements: usize| {
            let words = (0..elements * self.size() / 8).map(|word| {
                let random = mixed(seed ^ mixed(u64::from(rank) << 40 | which << 36 | word as u64));
                match self {
                    // The numbers have one sign and many magnitudes: sums are not exact, and terms do not cancel.
                    Elements::Floats => ((random >> 40) as f64).powi(2).to_bits(),
                    _ => random,
                }
            });
            words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>()
        };
        calls
            .iter()
            .map(|call| (fill(call.rank, 0, call.input()), fill(call.rank, 1, call.output())))
            .unzip()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
}

/// Composes two maps: `first`, then `second`.
fn after(first: [u8; 16], second: [u8; 16]) -> [u8; 16] {
    let [(a, b), (c, d)] = [first, second].map(|map| (number(&map[..8]), number(&map[8..])));
    let mut result = [0; 16];
    result[..8].copy_from_slice(&a.wrapping_mul(c).to_ne_bytes());
    result[8..].copy_from_slice(&c.wrapping_mul(b).wrapping_add(d).to_ne_bytes());
    result
}

/// Makes blocks of different lengths, some of them empty, at positions in any order, with gaps between blocks; returns
/// `(counts, displacements)`.
pub fn uneven(ranks: Rank, count: usize, variety: u64) -> (Vec<usize>, Vec<usize>) {
    let counts: Vec<usize> = (0..ranks)
        .map(|rank| mixed(u64::from(rank) + 1000 * count as u64) as usize % (2 * count + 1))
        .collect();
    (counts.clone(), places(&counts, variety))
}

/// Positions of blocks: dense and in rank order for variety 0, in another order and with gaps for others.
pub fn places(counts: &[usize], variety: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    if variety > 0 {
        order.sort_by_key(|rank| mixed(*rank as u64 ^ variety << 20));
    }
    let mut places = vec![0; counts.len()];
    let mut next = 0;
    for rank in order {
        places[rank] = next;
        next += counts[rank]
            + if variety > 0 {
                mixed(rank as u64 ^ variety) as usize % 3
            } else {
                0
            };
    }
    places
}

/// Ways to place ranks on nodes: neighbours share a node, every third rank shares a node, ranks are placed at random,
/// all ranks share a node, each rank has a node of its own.
pub fn nodes(ranks: Rank) -> Vec<Vec<u32>> {
    let some: [fn(Rank) -> u32; 5] = [
        |rank| rank / 3,
        |rank| rank % 3,
        |rank| mixed(u64::from(rank)) as u32 % 4 * 17,
        |_| 5,
        |rank| rank,
    ];
    some.iter().map(|node| (0..ranks).map(node).collect()).collect()
}

/// All recipes for an operation.
pub fn recipes(operation: Operation) -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for &algorithm in operation.algorithms() {
        let segments: &[usize] = if algorithm == Algorithm::Chain {
            &[0, 5, 400]
        } else {
            &[0]
        };
        for &segment in segments {
            recipes.push(Recipe {
                algorithm,
                by_nodes: false,
                segment,
            });
            if operation.has_levels() && !algorithm.is_mediated() {
                recipes.push(Recipe {
                    algorithm,
                    by_nodes: true,
                    segment,
                });
            }
        }
    }
    recipes
}
