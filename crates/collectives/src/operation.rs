//! Operations of several ranks together, and the algorithms that implement them.

use crate::error::Error;
use crate::names::{name_of, parse_name};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// Operations of several ranks together.
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
    /// All operations, each with its name in tables, in errors and on command lines.
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

    /// Returns whether the operation uses an operator.
    pub const fn is_reduction(self) -> bool {
        matches!(
            self,
            Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter | Operation::Scan | Operation::Exscan
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Operation::NAMES, self))
    }
}

impl FromStr for Operation {
    type Err = Error;

    /// Parses an operation from its name in [`Operation::NAMES`].
    fn from_str(text: &str) -> Result<Self, Error> {
        parse_name(&Operation::NAMES, "operation", text)
    }
}

/// Algorithm of a collective. The builder of each algorithm states its cost and where it was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Sends without a tree: straight to or from the root, to every rank at once, or from each rank to the next.
    Linear,
    /// Along a binomial tree.
    Binomial,
    /// A barrier: in round `k` each rank notifies the rank `2^k` after it.
    Dissemination,
    /// A broadcast: one share to each rank along a tree, then all shares around a ring.
    ScatterAllgather,
    /// A broadcast from each rank to the next, in segments.
    Chain,
    /// Around a ring.
    Ring,
    /// Exchanges with the ranks 1, 2, 4... away.
    RecursiveDoubling,
    /// Exchanges of halves, then quarters and so on.
    RecursiveHalving,
    /// Bruck's algorithm, with the fewest messages.
    Bruck,
    /// A gather and a broadcast.
    GatherBroadcast,
    /// Rabenseifner's algorithm: recursive halving, then recursive doubling.
    Rabenseifner,
    /// A reduction and a broadcast.
    ReduceBroadcast,
    /// Each rank exchanges with one other rank at a time.
    Pairwise,
    /// A scan up a tree, then down the tree.
    TwoPhase,
    /// Through a store: each rank that needs an object reads it.
    Objects,
    /// Through a store and rank 0, which reads the objects of all ranks and writes one object for all.
    ObjectsRoot,
    /// Through a store; each rank reduces one share.
    ObjectsScattered,
    /// Through a store: exchanges with the ranks 1, 2, 4... away.
    ObjectsDoubling,
}

impl Algorithm {
    /// All algorithms, each with its name in tables and on command lines.
    pub const NAMES: [(Algorithm, &'static str); 18] = [
        (Algorithm::Linear, "linear"),
        (Algorithm::Binomial, "binomial"),
        (Algorithm::Dissemination, "dissemination"),
        (Algorithm::ScatterAllgather, "scatter-allgather"),
        (Algorithm::Chain, "chain"),
        (Algorithm::Ring, "ring"),
        (Algorithm::RecursiveDoubling, "recursive-doubling"),
        (Algorithm::RecursiveHalving, "recursive-halving"),
        (Algorithm::Bruck, "bruck"),
        (Algorithm::GatherBroadcast, "gather-broadcast"),
        (Algorithm::Rabenseifner, "rabenseifner"),
        (Algorithm::ReduceBroadcast, "reduce-broadcast"),
        (Algorithm::Pairwise, "pairwise"),
        (Algorithm::TwoPhase, "two-phase"),
        (Algorithm::Objects, "objects"),
        (Algorithm::ObjectsRoot, "objects-root"),
        (Algorithm::ObjectsScattered, "objects-scattered"),
        (Algorithm::ObjectsDoubling, "objects-doubling"),
    ];

    /// Returns whether the algorithm uses objects of a store instead of messages.
    pub const fn is_mediated(self) -> bool {
        matches!(
            self,
            Algorithm::Objects | Algorithm::ObjectsRoot | Algorithm::ObjectsScattered | Algorithm::ObjectsDoubling
        )
    }

    /// Returns whether the algorithm reduces in another order than rank order, in this operation.
    pub(crate) const fn needs_commuting(self, operation: Operation) -> bool {
        matches!(
            (self, operation),
            (Algorithm::Ring, Operation::Allreduce | Operation::ReduceScatter)
        )
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Algorithm::NAMES, self))
    }
}

impl Operation {
    /// Algorithms that implement this operation.
    pub const fn algorithms(self) -> &'static [Algorithm] {
        use Algorithm::*;
        match self {
            Operation::Barrier => &[Dissemination, Binomial, Linear, Objects, ObjectsRoot, ObjectsDoubling],
            Operation::Broadcast => &[Binomial, Linear, ScatterAllgather, Chain, Objects],
            Operation::Gather | Operation::Scatter => &[Binomial, Linear, Objects],
            Operation::Gatherv | Operation::Scatterv => &[Linear, Objects],
            Operation::Allgather => &[
                Bruck,
                Ring,
                RecursiveDoubling,
                GatherBroadcast,
                Linear,
                Objects,
                ObjectsRoot,
            ],
            Operation::Reduce => &[Binomial, Rabenseifner, Linear, Objects],
            Operation::Allreduce => &[
                RecursiveDoubling,
                Rabenseifner,
                Ring,
                ReduceBroadcast,
                Linear,
                Objects,
                ObjectsRoot,
                ObjectsScattered,
            ],
            Operation::ReduceScatter => &[RecursiveHalving, Pairwise, Ring, Objects],
            Operation::Scan | Operation::Exscan => &[RecursiveDoubling, TwoPhase, Linear, Objects, ObjectsDoubling],
            Operation::Alltoall => &[Pairwise, Linear, Bruck, Objects],
            Operation::Alltoallv => &[Pairwise, Linear, Objects],
        }
    }

    /// Returns whether the operation can be done in two levels, inside nodes and between them.
    pub const fn has_levels(self) -> bool {
        matches!(
            self,
            Operation::Barrier
                | Operation::Broadcast
                | Operation::Gather
                | Operation::Scatter
                | Operation::Allgather
                | Operation::Reduce
                | Operation::Allreduce
        )
    }
}
