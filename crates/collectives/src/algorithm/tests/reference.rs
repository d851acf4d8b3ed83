//! Expected outputs of all ranks, computed in the simplest way.

use super::cases::Elements;
use crate::algorithm::Blocks;
use crate::collective::{Collective, CollectiveCall};

/// Outputs of all ranks, from their previous content and all inputs.
pub fn outputs(calls: &[CollectiveCall], elements: &Elements, inputs: &[Vec<u8>], before: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let size = elements.size();
    let mut after = before.to_vec();
    let given = |rank: usize| RankInput {
        call: &calls[rank],
        input: &inputs[rank],
        output: &before[rank],
        size,
    };
    // The sums of the inputs of rank 0, of ranks 0 and 1, and so on; empty for collectives that do not reduce.
    let mut sums: Vec<Vec<u8>> = Vec::new();
    for rank in (0..calls.len()).filter(|_| calls[0].collective.operation().is_reduction()) {
        let mut sum = given(rank).vector();
        if let Some(lower) = sums.last() {
            let pairs = lower.chunks(size).zip(sum.chunks_mut(size));
            pairs.for_each(|(lower, own)| elements.reduce(lower, own));
        }
        sums.push(sum);
    }
    for (rank, (call, after)) in calls.iter().zip(&mut after).enumerate() {
        let mut put = |place: usize, what: &[u8]| {
            if !what.is_empty() {
                after[place * size..place * size + what.len()].copy_from_slice(what);
            }
        };
        let is_root = call.collective.root() == Some(call.rank);
        match call.collective {
            Collective::Barrier => {}
            Collective::Broadcast { root, .. } if !is_root => put(0, &inputs[root as usize]),
            Collective::Gather { ref blocks, .. } | Collective::Gatherv { ref blocks, .. } if is_root => {
                (0..calls.len()).for_each(|from| put(blocks.offset(from), &given(from).own_block()));
            }
            Collective::Scatter { root, .. } | Collective::Scatterv { root, .. } if !(is_root && call.in_place) => {
                put(0, &given(root as usize).block(rank));
            }
            Collective::Allgather { ref blocks } => {
                (0..calls.len()).for_each(|from| put(blocks.offset(from), &given(from).own_block()));
            }
            Collective::Reduce { .. } if is_root => put(0, &sums[calls.len() - 1]),
            Collective::Allreduce { .. } => put(0, &sums[calls.len() - 1]),
            Collective::ReduceScatter { ref blocks, .. } => put(0, part(&sums[calls.len() - 1], blocks, rank, size)),
            Collective::Scan { .. } => put(0, &sums[rank]),
            Collective::Exscan { .. } if rank > 0 => put(0, &sums[rank - 1]),
            Collective::Alltoall { count } => {
                (0..calls.len()).for_each(|from| put(from * count, &given(from).block(rank)));
            }
            Collective::Alltoallv { ref received, .. } => {
                (0..calls.len()).for_each(|from| put(received.offset(from), &given(from).block(rank)));
            }
            _ => {}
        }
    }
    after
}

fn part<'a>(buffer: &'a [u8], blocks: &Blocks, rank: usize, size: usize) -> &'a [u8] {
    match blocks.count(rank) {
        0 => &[],
        count => &buffer[blocks.offset(rank) * size..][..count * size],
    }
}

/// Data that one rank contributes.
struct RankInput<'a> {
    call: &'a CollectiveCall<'a>,
    input: &'a [u8],
    output: &'a [u8],
    size: usize,
}

impl RankInput<'_> {
    fn in_place(&self) -> bool {
        self.call.in_place && self.call.collective.root().is_none_or(|root| root == self.call.rank)
    }

    /// Vector that the rank adds to a sum.
    fn vector(&self) -> Vec<u8> {
        if self.in_place() {
            self.output.to_vec()
        } else {
            self.input.to_vec()
        }
    }

    /// Block that the rank gives to a gather.
    fn own_block(&self) -> Vec<u8> {
        match self.call.collective {
            Collective::Gather { ref blocks, .. }
            | Collective::Gatherv { ref blocks, .. }
            | Collective::Allgather { ref blocks }
                if self.in_place() =>
            {
                part(self.output, blocks, self.call.rank as usize, self.size).to_vec()
            }
            _ => self.input.to_vec(),
        }
    }

    /// Block that the rank gives to another rank.
    fn block(&self, rank: usize) -> Vec<u8> {
        match self.call.collective {
            Collective::Scatter { ref blocks, .. } | Collective::Scatterv { ref blocks, .. } => {
                part(self.input, blocks, rank, self.size).to_vec()
            }
            Collective::Alltoall { count } => part(&self.vector(), &Blocks::Equal(count), rank, self.size).to_vec(),
            Collective::Alltoallv { ref sent, ref received } => part(
                &self.vector(),
                if self.call.in_place { received } else { sent },
                rank,
                self.size,
            )
            .to_vec(),
            _ => Vec::new(),
        }
    }
}
