//! Expected outputs of all ranks, computed in the simplest way. Elements are numbers of 64 bits. Sums are either of
//! numbers or, where the order matters, of maps `x -> ax + b`, whose `a` and `b` are the halves of a number.

use hotlease_comm::{Blocks, Collective, Operator, Rank};
use std::sync::Arc;

/// Composes two maps: `first`, then `second`.
fn after(first: u64, second: u64) -> u64 {
    let halves = |map: u64| ((map >> 32) as u32, map as u32);
    let ((a, b), (c, d)) = (halves(first), halves(second));
    u64::from(a.wrapping_mul(c)) << 32 | u64::from(b.wrapping_mul(c).wrapping_add(d))
}

/// The sum of numbers, and the composition of maps.
pub fn operators() -> [Operator; 2] {
    let composition = Operator::User {
        function: Arc::new(|first, second, _| {
            for (first, second) in first.as_chunks().0.iter().zip(second.as_chunks_mut().0) {
                *second = after(u64::from_ne_bytes(*first), u64::from_ne_bytes(*second)).to_ne_bytes();
            }
        }),
        commutes: false,
    };
    [Operator::Sum, composition]
}

/// Input of a rank: numbers that are different at every rank and position.
pub fn input(rank: Rank, count: usize) -> Vec<u64> {
    let number = |place: usize| (u64::from(rank) * 1_000_003 + place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count).map(number).collect()
}

/// Expected output of a rank whose output was `before`, from the inputs of all ranks.
pub fn output(collective: &Collective, rank: usize, inputs: &[Vec<u64>], before: &[u64]) -> Vec<u64> {
    let mut output = before.to_vec();
    let sum = if collective.commutes() {
        u64::wrapping_add
    } else {
        after
    };
    let sum_of = |ranks: std::ops::RangeInclusive<usize>| {
        let given = ranks.map(|rank| inputs[rank].clone());
        let add = |left: Vec<u64>, right: Vec<u64>| {
            let pairs = left.into_iter().zip(right);
            pairs.map(|(left, right)| sum(left, right)).collect()
        };
        given.reduce(add).expect("at least one rank")
    };
    let last = inputs.len() - 1;
    let is_root = collective.root() == Some(rank as Rank);
    let gathered = |blocks: &Blocks, output: &mut Vec<u64>| {
        for (from, input) in inputs.iter().enumerate().filter(|(_, input)| !input.is_empty()) {
            output[blocks.offset(from)..][..input.len()].copy_from_slice(input);
        }
    };
    let block = |blocks: &Blocks, of: &[u64]| match blocks.count(rank) {
        0 => Vec::new(),
        count => of[blocks.offset(rank)..][..count].to_vec(),
    };
    match collective {
        Collective::Broadcast { root, .. } if !is_root => output = inputs[*root as usize].clone(),
        Collective::Gather { blocks, .. } | Collective::Gatherv { blocks, .. } if is_root => {
            gathered(blocks, &mut output)
        }
        Collective::Allgather { blocks } => gathered(blocks, &mut output),
        Collective::Scatter { root, blocks } | Collective::Scatterv { root, blocks, .. } => {
            output = block(blocks, &inputs[*root as usize]);
        }
        Collective::Reduce { .. } if is_root => output = sum_of(0..=last),
        Collective::Allreduce { .. } => output = sum_of(0..=last),
        Collective::ReduceScatter { blocks, .. } => output = block(blocks, &sum_of(0..=last)),
        Collective::Scan { .. } => output = sum_of(0..=rank),
        Collective::Exscan { .. } if rank > 0 => output = sum_of(0..=rank - 1),
        Collective::Alltoall { count } => {
            for (from, input) in inputs.iter().enumerate() {
                output[from * count..][..*count].copy_from_slice(&input[rank * count..][..*count]);
            }
        }
        Collective::Alltoallv { sent, received } => {
            for (from, input) in inputs.iter().enumerate() {
                let block = block(sent, input);
                if !block.is_empty() {
                    output[received.offset(from)..][..block.len()].copy_from_slice(&block);
                }
            }
        }
        _ => {}
    }
    output
}
