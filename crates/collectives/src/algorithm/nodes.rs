//! Nodes of a communicator: the ranks on each node and the rank that leads each node.

use super::blocks::Blocks;
use super::plan::RankGroup;
use crate::schedule::{AreaSpan, Rank};

/// Nodes of a communicator, in the order of their first ranks.
pub(crate) struct NodeLayout {
    members: Vec<Vec<Rank>>,
    leaders: Vec<Rank>,
    node: usize,
    place: usize,
    lead: usize,
}

impl NodeLayout {
    /// Groups ranks by node; `of` has the node of each rank. The leader of a node is its first rank, or the root if
    /// the root is on that node.
    pub fn new(of: &[u32], me: usize, root: Option<usize>) -> Self {
        let mut numbers = std::collections::HashMap::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        for (rank, node) in of.iter().enumerate() {
            let number = *numbers.entry(node).or_insert(members.len());
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].push(rank as Rank);
        }
        let leads = |node: &Vec<Rank>| node.iter().position(|rank| Some(*rank as usize) == root).unwrap_or(0);
        let node = numbers[&of[me]];
        let place = members[node].partition_point(|rank| (*rank as usize) < me);
        NodeLayout {
            leaders: members.iter().map(|node| node[leads(node)]).collect(),
            lead: leads(&members[node]),
            members,
            node,
            place,
        }
    }

    /// Ranks on the node of this rank.
    pub fn node_group(&self) -> RankGroup<'_> {
        RankGroup::of(self.place, &self.members[self.node])
    }

    /// Index of the leader among the ranks of this node.
    pub fn lead(&self) -> usize {
        self.lead
    }

    /// Leaders of all nodes, if this rank is a leader.
    pub fn leader_group(&self) -> Option<RankGroup<'_>> {
        (self.place == self.lead).then(|| RankGroup::of(self.node, &self.leaders))
    }

    /// Index of the node that rank `leader` leads; 0 if the rank leads no node.
    pub fn node_of(&self, leader: usize) -> usize {
        self.leaders
            .iter()
            .position(|rank| *rank as usize == leader)
            .unwrap_or(0)
    }

    /// Returns whether the ranks of each node follow each other, so that the sum of a node is the sum of a range of
    /// ranks.
    pub fn is_in_order(of: &[u32]) -> bool {
        let mut seen = std::collections::HashSet::new();
        of.chunk_by(|a, b| a == b).all(|run| seen.insert(run[0]))
    }

    /// Layout of the blocks of all ranks, node by node.
    pub fn layout(&self, blocks: &Blocks, all: AreaSpan) -> Layout {
        let order: Vec<Rank> = self.members.iter().flatten().copied().collect();
        let sorted = order.is_sorted();
        let total = blocks.total(order.len());
        let inside = OwnedBlocks::packed(self.members[self.node].iter().map(|rank| blocks.count(*rank as usize)));
        let across = OwnedBlocks::packed(
            self.members
                .iter()
                .map(|node| node.iter().map(|rank| blocks.count(*rank as usize)).sum()),
        );
        let place = if sorted {
            blocks.joined(all, 0..order.len())
        } else {
            None
        };
        Layout {
            inside,
            across,
            order,
            total,
            place,
            node: self.node,
        }
    }
}

/// Blocks that own their counts and displacements.
pub(crate) struct OwnedBlocks {
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl OwnedBlocks {
    fn packed(counts: impl Iterator<Item = usize>) -> Self {
        let counts: Vec<usize> = counts.collect();
        let mut next = 0;
        let place = |count| {
            next += count;
            next - count
        };
        let displacements = counts.iter().map(place).collect();
        OwnedBlocks { counts, displacements }
    }

    pub fn blocks(&self) -> Blocks<'_> {
        Blocks::Each {
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }
}

/// Layout of blocks in memory that is ordered by nodes.
pub(crate) struct Layout {
    /// One block for each rank of this node.
    pub inside: OwnedBlocks,
    /// One block for each node.
    pub across: OwnedBlocks,
    /// Number of all elements.
    pub total: usize,
    /// The caller's memory, if it already has this order.
    pub place: Option<AreaSpan>,
    order: Vec<Rank>,
    node: usize,
}

impl Layout {
    /// Part of the memory that belongs to this node.
    pub fn own(&self, memory: AreaSpan) -> AreaSpan {
        self.across.blocks().of(memory, self.node)
    }

    /// Pairs of each block's span in the ordered memory and its span in the caller's memory.
    pub fn pairs(&self, memory: AreaSpan, blocks: &Blocks, all: AreaSpan) -> Vec<(AreaSpan, AreaSpan)> {
        let mut start = 0;
        let pair = |rank: &Rank| {
            let block = blocks.of(all, *rank as usize);
            let packed = memory.part(start, block.count);
            start += block.count;
            (packed, block)
        };
        self.order.iter().map(pair).collect()
    }
}
