//! A collective as one rank calls it.

use crate::algorithm::Blocks;
use crate::error::Error;
use crate::schedule::Rank;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// What ranks can do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "MPI's names; `Collective` says what each is")]
pub enum Operation {
    Barrier,
    Broadcast,
    Gather,
    Gatherv,
    Scatter,
    Scatterv,
    Allgather,
    Reduce,
    Allreduce,
    ReduceScatter,
    Scan,
    Exscan,
    Alltoall,
    Alltoallv,
}

impl Operation {
    /// Each, with its name in tables, errors and on command lines.
    pub const NAMES: [(Operation, &'static str); 14] = [
        (Operation::Barrier, "barrier"),
        (Operation::Broadcast, "broadcast"),
        (Operation::Gather, "gather"),
        (Operation::Gatherv, "gatherv"),
        (Operation::Scatter, "scatter"),
        (Operation::Scatterv, "scatterv"),
        (Operation::Allgather, "allgather"),
        (Operation::Reduce, "reduce"),
        (Operation::Allreduce, "allreduce"),
        (Operation::ReduceScatter, "reduce_scatter"),
        (Operation::Scan, "scan"),
        (Operation::Exscan, "exscan"),
        (Operation::Alltoall, "alltoall"),
        (Operation::Alltoallv, "alltoallv"),
    ];

    /// Whether an operator takes part.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Operation::Reduce
                | Operation::Allreduce
                | Operation::ReduceScatter
                | Operation::Scan
                | Operation::Exscan
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Operation::NAMES
            .iter()
            .find(|(operation, _)| operation == self)
            .map_or("?", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Operation {
    type Err = Error;

    /// By its name in [`Operation::NAMES`].
    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Operation::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(operation, _)| *operation).ok_or_else(|| {
            let names = Operation::NAMES.map(|(_, name)| name).join(", ");
            let what = format!("there is no operation `{text}`; there are {names}");
            Error::Options { what }
        })
    }
}

/// An operation with its arguments at one rank. Counts are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective<'a> {
    /// Nobody goes on before all are here.
    Barrier,
    /// The root's input is everyone else's output. The root has no output.
    Broadcast {
        /// Who gives.
        root: Rank,
        /// How many elements.
        count: usize,
    },
    /// The root gets everyone's input as one block each.
    Gather {
        /// Who gets them.
        root: Rank,
        /// Known everywhere; where they are in the output counts at the root.
        blocks: Blocks<'a>,
    },
    /// The same where only the root knows how long others' blocks are.
    Gatherv {
        /// Who gets them.
        root: Rank,
        /// How long this rank's is.
        mine: usize,
        /// All, at the root; of any content elsewhere.
        blocks: Blocks<'a>,
    },
    /// Everyone gets a block of the root's input.
    Scatter {
        /// Who gives.
        root: Rank,
        /// Known everywhere; where they are in the input counts at the root.
        blocks: Blocks<'a>,
    },
    /// The same where only the root knows how long others' blocks are.
    Scatterv {
        /// Who gives.
        root: Rank,
        /// How long this rank's is.
        mine: usize,
        /// All, at the root; of any content elsewhere.
        blocks: Blocks<'a>,
    },
    /// Everyone gets everyone's input as one block each.
    Allgather {
        /// How long they are is the same everywhere; where they are may differ.
        blocks: Blocks<'a>,
    },
    /// The root gets the sum of all inputs.
    Reduce {
        /// Who gets it.
        root: Rank,
        /// How many elements.
        count: usize,
    },
    /// Everyone gets the sum of all inputs, to the bit.
    Allreduce {
        /// How many elements.
        count: usize,
    },
    /// Everyone gets its block of the sum of all inputs.
    ReduceScatter {
        /// The same everywhere, one after the other in rank order.
        blocks: Blocks<'a>,
    },
    /// Each rank gets the sum of the inputs of the ranks up to its own.
    Scan {
        /// How many elements.
        count: usize,
    },
    /// Each rank gets the sum of the inputs of the ranks before it; the output of rank 0 is left as it is.
    Exscan {
        /// How many elements.
        count: usize,
    },
    /// Block `i` of everyone's input goes to rank `i`, as one block each of its output.
    Alltoall {
        /// How many elements a block has.
        count: usize,
    },
    /// The same with blocks of any length.
    Alltoallv {
        /// One for each rank, in the input. In place: as `received`, in the output.
        sent: Blocks<'a>,
        /// One of each rank, in the output.
        received: Blocks<'a>,
    },
}

impl Collective<'_> {
    /// Which operation it is.
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

    /// Who is the root, if there is one.
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
}

/// A collective as one rank of a communicator calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// What is to be done.
    pub collective: Collective<'a>,
    /// Who calls.
    pub rank: Rank,
    /// How many there are.
    pub ranks: Rank,
    /// What the caller gives is in the output already, where its result or its block of it will be (`MPI_IN_PLACE`). In
    /// gather, scatter and reduce it counts at the root only; a scatter's root gets no block then. Ranks need not agree.
    pub in_place: bool,
    /// Whether the operator commutes. If not, inputs are reduced in rank order.
    pub commutes: bool,
    /// The node of each rank, if that is known; the same at all ranks.
    pub nodes: Option<&'a [u32]>,
}

/// More elements than any memory has; sums of a few such numbers are still numbers.
const ELEMENTS_MAX: usize = 1 << 56;

impl<'a> Call<'a> {
    /// Not in place, with an operator that commutes, and nothing known of nodes.
    pub const fn new(collective: Collective<'a>, rank: Rank, ranks: Rank) -> Self {
        Call {
            collective,
            rank,
            ranks,
            in_place: false,
            commutes: true,
            nodes: None,
        }
    }

    fn is_root(&self) -> bool {
        self.collective.root() == Some(self.rank)
    }

    /// How many elements the caller's input must have, if [`Call::check`] has nothing against the call.
    pub fn input(&self) -> usize {
        let (rank, ranks) = (self.rank as usize, self.ranks as usize);
        let unless = |absent: bool, count: usize| if absent { 0 } else { count };
        match self.collective {
            Collective::Barrier => 0,
            Collective::Broadcast { count, .. } => unless(!self.is_root(), count),
            Collective::Gather { blocks, .. } => unless(self.in_place && self.is_root(), blocks.count(rank)),
            Collective::Gatherv { mine, .. } => unless(self.in_place && self.is_root(), mine),
            Collective::Scatter { blocks, .. } | Collective::Scatterv { blocks, .. } => {
                if self.is_root() {
                    blocks.extent(ranks)
                } else {
                    0
                }
            }
            Collective::Allgather { blocks } => unless(self.in_place, blocks.count(rank)),
            Collective::Reduce { count, .. } => unless(self.in_place && self.is_root(), count),
            Collective::Allreduce { count } | Collective::Scan { count } | Collective::Exscan { count } => {
                unless(self.in_place, count)
            }
            Collective::ReduceScatter { blocks } => unless(self.in_place, blocks.total(ranks)),
            Collective::Alltoall { count } => unless(self.in_place, count * ranks),
            Collective::Alltoallv { sent, .. } => {
                if self.in_place {
                    0
                } else {
                    sent.extent(ranks)
                }
            }
        }
    }

    /// How many elements the caller's output must have, if [`Call::check`] has nothing against the call.
    pub fn output(&self) -> usize {
        let (rank, ranks) = (self.rank as usize, self.ranks as usize);
        match self.collective {
            Collective::Barrier => 0,
            Collective::Broadcast { count, .. } => {
                if self.is_root() {
                    0
                } else {
                    count
                }
            }
            Collective::Gather { blocks, .. } | Collective::Gatherv { blocks, .. } => {
                if self.is_root() {
                    blocks.extent(ranks)
                } else {
                    0
                }
            }
            Collective::Scatter { blocks, .. } => {
                if self.in_place && self.is_root() {
                    0
                } else {
                    blocks.count(rank)
                }
            }
            Collective::Scatterv { mine, .. } => {
                if self.in_place && self.is_root() {
                    0
                } else {
                    mine
                }
            }
            Collective::Allgather { blocks } => blocks.extent(ranks),
            Collective::Reduce { count, .. } => {
                if self.is_root() {
                    count
                } else {
                    0
                }
            }
            Collective::Allreduce { count } | Collective::Scan { count } | Collective::Exscan { count } => {
                count
            }
            Collective::ReduceScatter { blocks } => {
                if self.in_place {
                    blocks.total(ranks)
                } else {
                    blocks.count(rank)
                }
            }
            Collective::Alltoall { count } => count * ranks,
            Collective::Alltoallv { received, .. } => received.extent(ranks),
        }
    }

    /// By how many elements an algorithm is chosen, which all ranks must know: what a broadcast or a reduction is of, or all
    /// blocks that one rank sends or gets. 0 where ranks do not know the same.
    pub fn size(&self) -> usize {
        let ranks = self.ranks as usize;
        match self.collective {
            Collective::Broadcast { count, .. }
            | Collective::Reduce { count, .. }
            | Collective::Allreduce { count }
            | Collective::Scan { count }
            | Collective::Exscan { count } => count,
            Collective::Gather { blocks, .. }
            | Collective::Scatter { blocks, .. }
            | Collective::Allgather { blocks }
            | Collective::ReduceScatter { blocks } => blocks.total(ranks),
            Collective::Alltoall { count } => count.saturating_mul(ranks),
            Collective::Barrier
            | Collective::Gatherv { .. }
            | Collective::Scatterv { .. }
            | Collective::Alltoallv { .. } => 0,
        }
    }

    /// Whether the arguments fit together. Of other ranks' arguments nothing is known here.
    ///
    /// # Errors
    ///
    /// [`Error::Arguments`] says what does not.
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
            return Some(format!("the root is rank {root}, of {ranks}"));
        }
        if let Some(nodes) = self.nodes.filter(|nodes| nodes.len() != ranks) {
            return Some(format!(
                "the nodes of {} ranks are given, of {ranks}",
                nodes.len()
            ));
        }
        let check = |blocks: &Blocks, written: bool| contradiction_of(blocks, ranks, written);
        match &self.collective {
            Collective::Gather { blocks, .. } => check(blocks, self.is_root()),
            Collective::Gatherv { blocks, mine, .. } if self.is_root() => {
                check(blocks, true).or_else(|| own(blocks, self.rank, *mine))
            }
            Collective::Scatter { blocks, .. } => check(blocks, false),
            Collective::Scatterv { blocks, mine, .. } if self.is_root() => {
                check(blocks, false).or_else(|| own(blocks, self.rank, *mine))
            }
            Collective::Gatherv { mine, .. } | Collective::Scatterv { mine, .. } => {
                check(&Blocks::Equal(*mine), false)
            }
            Collective::Allgather { blocks } => check(blocks, true),
            Collective::ReduceScatter { blocks } => check(blocks, false).or_else(|| {
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
            | Collective::Allreduce { count }
            | Collective::Scan { count }
            | Collective::Exscan { count } => (*count > ELEMENTS_MAX).then(|| too_many(*count)),
        }
    }
}

fn own(blocks: &Blocks, rank: Rank, mine: usize) -> Option<String> {
    let count = blocks.count(rank as usize);
    (count != mine).then(|| format!("its own block has {mine} elements, and {count} among those of all"))
}

fn too_many(count: usize) -> String {
    format!("{count} elements are more than any memory has")
}

fn contradiction_of(blocks: &Blocks, ranks: usize, written: bool) -> Option<String> {
    match blocks {
        Blocks::Equal(count) => match count.checked_mul(ranks) {
            Some(total) if total <= ELEMENTS_MAX => None,
            _ => Some(too_many(*count)),
        },
        Blocks::Each {
            counts,
            displacements,
        } => {
            if counts.len() != ranks || displacements.len() != ranks {
                let (counts, places) = (counts.len(), displacements.len());
                return Some(format!(
                    "{counts} counts and {places} displacements are given for {ranks} ranks"
                ));
            }
            let total = counts
                .iter()
                .try_fold(0usize, |sum, count| sum.checked_add(*count));
            // An empty block is nowhere.
            let fits = |(count, place): (&usize, &usize)| {
                *count == 0 || place.checked_add(*count).is_some_and(|end| end <= ELEMENTS_MAX)
            };
            if total.is_none_or(|total| total > ELEMENTS_MAX) {
                return Some(too_many(total.unwrap_or(usize::MAX)));
            }
            if let Some(rank) = counts.iter().zip(*displacements).position(|block| !fits(block)) {
                return Some(format!(
                    "the block of rank {rank} begins at {}",
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
                .map(|pair| {
                    format!(
                        "the blocks of ranks {} and {} overlap in the output",
                        pair[0], pair[1]
                    )
                })
        }
    }
}

#[cfg(test)]
mod tests;
