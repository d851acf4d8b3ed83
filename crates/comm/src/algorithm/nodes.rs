//! Which ranks share a node, and who speaks for each node.

use super::blocks::Blocks;
use super::plan::Group;
use crate::schedule::{Rank, Span};

/// The nodes of a communicator, in the order of their first ranks.
pub(crate) struct Nodes {
    members: Vec<Vec<Rank>>,
    leaders: Vec<Rank>,
    node: usize,
    place: usize,
    lead: usize,
}

impl Nodes {
    /// `of` has the node of each rank. A node's leader is its first rank, or the root that is on it.
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
        let leads = |node: &Vec<Rank>| {
            node.iter()
                .position(|rank| Some(*rank as usize) == root)
                .unwrap_or(0)
        };
        let node = numbers[&of[me]];
        let place = members[node].partition_point(|rank| (*rank as usize) < me);
        Nodes {
            leaders: members.iter().map(|node| node[leads(node)]).collect(),
            lead: leads(&members[node]),
            members,
            node,
            place,
        }
    }

    /// The ranks of this rank's node.
    pub fn inside(&self) -> Group<'_> {
        Group::of(self.place, &self.members[self.node])
    }

    /// Which of them leads.
    pub fn lead(&self) -> usize {
        self.lead
    }

    /// The leaders, if this rank is one.
    pub fn across(&self) -> Option<Group<'_>> {
        (self.place == self.lead).then(|| Group::of(self.node, &self.leaders))
    }

    /// On which node a leader is.
    pub fn node_of(&self, leader: usize) -> usize {
        self.leaders
            .iter()
            .position(|rank| *rank as usize == leader)
            .unwrap_or(0)
    }

    /// Whether the ranks of each node follow each other, so that sums of nodes are sums of ranges of ranks.
    pub fn in_order(of: &[u32]) -> bool {
        let mut seen = std::collections::HashSet::new();
        of.chunk_by(|a, b| a == b).all(|run| seen.insert(run[0]))
    }

    /// Blocks of all ranks, node by node.
    pub fn layout(&self, blocks: &Blocks, all: Span) -> Layout {
        let order: Vec<Rank> = self.members.iter().flatten().copied().collect();
        let sorted = order.is_sorted();
        let total = blocks.total(order.len());
        let inside = Own::packed(
            self.members[self.node]
                .iter()
                .map(|rank| blocks.count(*rank as usize)),
        );
        let across = Own::packed(
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

/// Blocks with counts of their own.
pub(crate) struct Own {
    counts: Vec<usize>,
    displacements: Vec<usize>,
}

impl Own {
    fn packed(counts: impl Iterator<Item = usize>) -> Self {
        let counts: Vec<usize> = counts.collect();
        let mut next = 0;
        let place = |count| {
            next += count;
            next - count
        };
        let displacements = counts.iter().map(place).collect();
        Own {
            counts,
            displacements,
        }
    }

    pub fn blocks(&self) -> Blocks<'_> {
        Blocks::Each {
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }
}

/// How blocks lie in memory that is ordered by nodes.
pub(crate) struct Layout {
    /// One block for each rank of this node.
    pub inside: Own,
    /// One block for each node.
    pub across: Own,
    /// All elements.
    pub total: usize,
    /// The caller's memory, if it is in this order.
    pub place: Option<Span>,
    order: Vec<Rank>,
    node: usize,
}

impl Layout {
    /// This node's part of the memory.
    pub fn own(&self, memory: Span) -> Span {
        self.across.blocks().of(memory, self.node)
    }

    /// Each block there, and in the caller's order.
    pub fn pairs(&self, memory: Span, blocks: &Blocks, all: Span) -> Vec<(Span, Span)> {
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
