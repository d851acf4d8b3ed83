//! A collective as one rank calls it.

use crate::algorithm::Blocks;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::operation::Operation;
use crate::operator::Operator;
use crate::schedule::Rank;

/// An operation with its arguments at one rank. Counts are in elements.
#[derive(Debug, Clone, Copy)]
pub enum Collective<'a> {
    /// No rank continues before all ranks have called.
    Barrier,
    /// The input of the root becomes the output of every other rank. The root has no output.
    Broadcast {
        /// The sending rank.
        root: Rank,
        /// Number of elements.
        count: usize,
    },
    /// The root gets the input of every rank, one block each.
    Gather {
        /// The receiving rank.
        root: Rank,
        /// Blocks whose lengths all ranks have; their positions in the output are used only at the root.
        blocks: Blocks<'a>,
    },
    /// A gather in which only the root has the lengths of all blocks.
    Gatherv {
        /// The receiving rank.
        root: Rank,
        /// Length of this rank's block.
        mine: usize,
        /// All blocks, at the root; ignored at other ranks.
        blocks: Blocks<'a>,
    },
    /// Every rank gets one block of the root's input.
    Scatter {
        /// The sending rank.
        root: Rank,
        /// Blocks whose lengths all ranks have; their positions in the input are used only at the root.
        blocks: Blocks<'a>,
    },
    /// A scatter in which only the root has the lengths of all blocks.
    Scatterv {
        /// The sending rank.
        root: Rank,
        /// Length of this rank's block.
        mine: usize,
        /// All blocks, at the root; ignored at other ranks.
        blocks: Blocks<'a>,
    },
    /// Every rank gets the inputs of all ranks, one block each.
    Allgather {
        /// Blocks with the same lengths at all ranks; their positions may differ.
        blocks: Blocks<'a>,
    },
    /// The root gets the sum of all inputs, or the result of another operator.
    Reduce {
        /// The receiving rank.
        root: Rank,
        /// Number of elements.
        count: usize,
        /// The operator.
        operator: &'a Operator,
    },
    /// Every rank gets the sum of all inputs, with identical bits.
    Allreduce {
        /// Number of elements.
        count: usize,
        /// The operator.
        operator: &'a Operator,
    },
    /// Every rank gets its block of the sum of all inputs.
    ReduceScatter {
        /// Blocks that are the same at all ranks and follow each other in rank order.
        blocks: Blocks<'a>,
        /// The operator.
        operator: &'a Operator,
    },
    /// Each rank gets the sum of the inputs of the ranks up to and including its own.
    Scan {
        /// Number of elements.
        count: usize,
        /// The operator.
        operator: &'a Operator,
    },
    /// Each rank gets the sum of the inputs of the ranks before it; the output of rank 0 is unchanged.
    Exscan {
        /// Number of elements.
        count: usize,
        /// The operator.
        operator: &'a Operator,
    },
    /// Block `i` of each rank's input goes to rank `i`, whose output has one block from each rank.
    Alltoall {
        /// Number of elements in a block.
        count: usize,
    },
    /// An all-to-all exchange with blocks of any length.
    Alltoallv {
        /// One block for each rank, in the input. In place, the blocks of `received` in the output are sent instead.
        sent: Blocks<'a>,
        /// One block from each rank, in the output.
        received: Blocks<'a>,
    },
}

impl<'a> Collective<'a> {
    /// The operation.
    pub const fn operation(&self) -> Operation {
        match self {
            Collective::Barrier => Operation::Barrier,
            Collective::Broadcast { .. } => Operation::Broadcast,
            Collective::Gather { .. } => Operation::Gather,
            Collective::Gatherv { .. } => Operation::Gatherv,
            Collective::Scatter { .. } => Operation::Scatter,
            Collective::Scatterv { .. } => Operation::Scatterv,
            Collective::Allgather { .. } => Operation::Allgather,
            Collective::Reduce { .. } => Operation::Reduce,
            Collective::Allreduce { .. } => Operation::Allreduce,
            Collective::ReduceScatter { .. } => Operation::ReduceScatter,
            Collective::Scan { .. } => Operation::Scan,
            Collective::Exscan { .. } => Operation::Exscan,
            Collective::Alltoall { .. } => Operation::Alltoall,
            Collective::Alltoallv { .. } => Operation::Alltoallv,
        }
    }

    /// The root, if the collective has one.
    pub const fn root(&self) -> Option<Rank> {
        match self {
            Collective::Broadcast { root, .. }
            | Collective::Gather { root, .. }
            | Collective::Gatherv { root, .. }
            | Collective::Scatter { root, .. }
            | Collective::Scatterv { root, .. }
            | Collective::Reduce { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// The operator, if the collective reduces.
    pub const fn operator(&self) -> Option<&'a Operator> {
        match self {
            Collective::Reduce { operator, .. }
            | Collective::Allreduce { operator, .. }
            | Collective::ReduceScatter { operator, .. }
            | Collective::Scan { operator, .. }
            | Collective::Exscan { operator, .. } => Some(*operator),
            _ => None,
        }
    }

    /// Whether inputs may be reduced in any order. If not, they are reduced in rank order.
    pub fn commutes(&self) -> bool {
        self.operator().is_none_or(Operator::commutes)
    }

    /// Returns this collective, with another operator if it reduces.
    pub fn with_operator(mut self, other: &'a Operator) -> Self {
        match &mut self {
            Collective::Reduce { operator, .. }
            | Collective::Allreduce { operator, .. }
            | Collective::ReduceScatter { operator, .. }
            | Collective::Scan { operator, .. }
            | Collective::Exscan { operator, .. } => *operator = other,
            _ => {}
        }
        self
    }
}

/// A collective as one rank of a communicator calls it, without its buffers.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveCall<'a> {
    /// The collective.
    pub collective: Collective<'a>,
    /// Type of the elements.
    pub datatype: Datatype,
    /// The calling rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: Rank,
    /// Whether the caller's data is already in the output, at the position of its result or of its block
    /// (`MPI_IN_PLACE`). In gather, scatter and reduce, the flag has an effect at the root only; the root of a scatter
    /// then receives no block. The flag may differ between ranks.
    pub in_place: bool,
    /// The node of each rank, if known; the same at all ranks.
    pub nodes: Option<&'a [u32]>,
}

/// Limit of numbers of elements, more than any memory contains. The sum of a few such numbers does not overflow.
const ELEMENTS_MAX: usize = 1 << 56;

impl<'a> CollectiveCall<'a> {
    /// Makes a call that is not in place, with unknown nodes.
    pub const fn new(collective: Collective<'a>, datatype: Datatype, rank: Rank, ranks: Rank) -> Self {
        CollectiveCall {
            collective,
            datatype,
            rank,
            ranks,
            in_place: false,
            nodes: None,
        }
    }

    fn is_root(&self) -> bool {
        self.collective.root() == Some(self.rank)
    }

    /// Number of elements that the caller's input must have, if the call passes [`CollectiveCall::check`].
    pub fn input(&self) -> usize {
        let (rank, ranks, is_root) = (self.rank as usize, self.ranks as usize, self.is_root());
        let unless = |absent: bool, count: usize| if absent { 0 } else { count };
        match self.collective {
            Collective::Barrier => 0,
            Collective::Broadcast { count, .. } => unless(!is_root, count),
            Collective::Gather { blocks, .. } => unless(self.in_place && is_root, blocks.count(rank)),
            Collective::Gatherv { mine, .. } => unless(self.in_place && is_root, mine),
            Collective::Scatter { blocks, .. } | Collective::Scatterv { blocks, .. } if is_root => blocks.extent(ranks),
            Collective::Scatter { .. } | Collective::Scatterv { .. } => 0,
            Collective::Reduce { count, .. } => unless(self.in_place && is_root, count),
            _ if self.in_place => 0,
            Collective::Allgather { blocks } => blocks.count(rank),
            Collective::Allreduce { count, .. } | Collective::Scan { count, .. } | Collective::Exscan { count, .. } => {
                count
            }
            Collective::ReduceScatter { blocks, .. } => blocks.total(ranks),
            Collective::Alltoall { count } => count * ranks,
            Collective::Alltoallv { sent, .. } => sent.extent(ranks),
        }
    }

    /// Number of elements that the caller's output must have, if the call passes [`CollectiveCall::check`].
    pub fn output(&self) -> usize {
        let (rank, ranks, is_root) = (self.rank as usize, self.ranks as usize, self.is_root());
        let unless = |absent: bool, count: usize| if absent { 0 } else { count };
        match self.collective {
            Collective::Barrier => 0,
            Collective::Broadcast { count, .. } => unless(is_root, count),
            Collective::Gather { blocks, .. } | Collective::Gatherv { blocks, .. } if is_root => blocks.extent(ranks),
            Collective::Gather { .. } | Collective::Gatherv { .. } => 0,
            Collective::Scatter { blocks, .. } => unless(self.in_place && is_root, blocks.count(rank)),
            Collective::Scatterv { mine, .. } => unless(self.in_place && is_root, mine),
            Collective::Allgather { blocks } => blocks.extent(ranks),
            Collective::Reduce { count, .. } => unless(!is_root, count),
            Collective::Allreduce { count, .. } | Collective::Scan { count, .. } | Collective::Exscan { count, .. } => {
                count
            }
            Collective::ReduceScatter { blocks, .. } if self.in_place => blocks.total(ranks),
            Collective::ReduceScatter { blocks, .. } => blocks.count(rank),
            Collective::Alltoall { count } => count * ranks,
            Collective::Alltoallv { received, .. } => received.extent(ranks),
        }
    }

    /// Number of elements by which the algorithm is chosen: the elements of a broadcast or reduction, or all blocks
    /// that one rank sends or receives. It is 0 if not all ranks have this number, because all must choose the same
    /// algorithm.
    pub fn size(&self) -> usize {
        let ranks = self.ranks as usize;
        match self.collective {
            Collective::Broadcast { count, .. }
            | Collective::Reduce { count, .. }
            | Collective::Allreduce { count, .. }
            | Collective::Scan { count, .. }
            | Collective::Exscan { count, .. } => count,
            Collective::Gather { blocks, .. }
            | Collective::Scatter { blocks, .. }
            | Collective::Allgather { blocks }
            | Collective::ReduceScatter { blocks, .. } => blocks.total(ranks),
            Collective::Alltoall { count } => count.saturating_mul(ranks),
            Collective::Barrier
            | Collective::Gatherv { .. }
            | Collective::Scatterv { .. }
            | Collective::Alltoallv { .. } => 0,
        }
    }

    /// Bytes of [`CollectiveCall::size`].
    pub fn bytes(&self) -> usize {
        self.size().saturating_mul(self.datatype.size())
    }

    /// Checks that the arguments fit together. The arguments of other ranks are unknown here.
    ///
    /// # Errors
    ///
    /// [`Error::Arguments`] with the contradiction.
    pub fn check(&self) -> Result<(), Error> {
        self.contradiction().map_or(Ok(()), |why| {
            Err(Error::Arguments {
                operation: self.collective.operation(),
                rank: self.rank,
                why,
            })
        })
    }

    fn contradiction(&self) -> Option<String> {
        let ranks = self.ranks as usize;
        if self.rank >= self.ranks {
            return Some(format!("a communicator of {ranks} has no such rank"));
        }
        if let Some(root) = self.collective.root().filter(|root| *root >= self.ranks) {
            return Some(format!("the root is rank {root}, but there are {ranks} ranks"));
        }
        if let Some(nodes) = self.nodes.filter(|nodes| nodes.len() != ranks) {
            return Some(format!(
                "the nodes of {} ranks are given, but there are {ranks} ranks",
                nodes.len()
            ));
        }
        let check = |blocks: &Blocks, written: bool| blocks_contradiction(blocks, ranks, written);
        match &self.collective {
            Collective::Gather { blocks, .. } => check(blocks, self.is_root()),
            Collective::Gatherv { blocks, mine, .. } if self.is_root() => {
                check(blocks, true).or_else(|| own_block_contradiction(blocks, self.rank, *mine))
            }
            Collective::Scatter { blocks, .. } => check(blocks, false),
            Collective::Scatterv { blocks, mine, .. } if self.is_root() => {
                check(blocks, false).or_else(|| own_block_contradiction(blocks, self.rank, *mine))
            }
            Collective::Gatherv { mine, .. } | Collective::Scatterv { mine, .. } => check(&Blocks::Equal(*mine), false),
            Collective::Allgather { blocks } => check(blocks, true),
            Collective::ReduceScatter { blocks, .. } => check(blocks, false).or_else(|| {
                let mut next = 0;
                let gap = (0..ranks).find(|&rank| {
                    next += blocks.count(rank);
                    blocks.count(rank) > 0 && blocks.offset(rank) + blocks.count(rank) != next
                });
                gap.map(|rank| format!("the block of rank {rank} does not follow the one before it"))
            }),
            Collective::Alltoall { count } => check(&Blocks::Equal(*count), false),
            Collective::Alltoallv { sent, received } => check(received, true)
                .or_else(|| if self.in_place { None } else { check(sent, false) })
                .or_else(|| {
                    let (rank, in_place) = (self.rank as usize, self.in_place);
                    (!in_place && sent.count(rank) != received.count(rank)).then(|| {
                        let (sent, received) = (sent.count(rank), received.count(rank));
                        format!("it sends itself {sent} elements and expects {received}")
                    })
                }),
            Collective::Barrier => None,
            Collective::Broadcast { count, .. }
            | Collective::Reduce { count, .. }
            | Collective::Allreduce { count, .. }
            | Collective::Scan { count, .. }
            | Collective::Exscan { count, .. } => (*count > ELEMENTS_MAX).then(|| too_many(*count)),
        }
    }
}

fn own_block_contradiction(blocks: &Blocks, rank: Rank, mine: usize) -> Option<String> {
    let count = blocks.count(rank as usize);
    (count != mine).then(|| format!("its own block has {mine} elements, but {count} in the list of all blocks"))
}

fn too_many(count: usize) -> String {
    format!("{count} elements are more than any memory has")
}

fn blocks_contradiction(blocks: &Blocks, ranks: usize, written: bool) -> Option<String> {
    match blocks {
        Blocks::Equal(count) => match count.checked_mul(ranks) {
            Some(total) if total <= ELEMENTS_MAX => None,
            _ => Some(too_many(*count)),
        },
        Blocks::Each { counts, displacements } => {
            if counts.len() != ranks || displacements.len() != ranks {
                let (counts, places) = (counts.len(), displacements.len());
                return Some(format!(
                    "{counts} counts and {places} displacements are given for {ranks} ranks"
                ));
            }
            let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
            // The position of an empty block has no meaning.
            let fits = |(count, place): (&usize, &usize)| {
                *count == 0 || place.checked_add(*count).is_some_and(|end| end <= ELEMENTS_MAX)
            };
            if total.is_none_or(|total| total > ELEMENTS_MAX) {
                return Some(too_many(total.unwrap_or(usize::MAX)));
            }
            if let Some(rank) = counts.iter().zip(*displacements).position(|block| !fits(block)) {
                return Some(format!(
                    "the block of rank {rank} begins at {}, and must end within {ELEMENTS_MAX} elements",
                    displacements[rank]
                ));
            }
            if !written {
                return None;
            }
            let mut order: Vec<usize> = (0..ranks).filter(|&rank| counts[rank] > 0).collect();
            order.sort_unstable_by_key(|&rank| displacements[rank]);
            order
                .windows(2)
                .find(|pair| displacements[pair[0]] + counts[pair[0]] > displacements[pair[1]])
                .map(|pair| format!("the blocks of ranks {} and {} overlap in the output", pair[0], pair[1]))
        }
    }
}

#[cfg(test)]
mod tests;
