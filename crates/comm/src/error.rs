//! What can go wrong, in terms of what the caller can do about it.

use crate::algorithm::Algorithm;
use crate::collective::Operation;
use crate::datatype::Datatype;
use crate::schedule::Rank;

/// Why a collective was not begun, or a table not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments of a collective contradict each other. Nothing was sent.
    #[error("{operation} at rank {rank}: {why}; nothing was sent")]
    Arguments {
        /// Of what.
        operation: Operation,
        /// Who called it.
        rank: Rank,
        /// What does not fit.
        why: String,
    },
    /// The algorithm that was asked for does not do this.
    #[error(
        "{operation} by `{algorithm}`: {why}; nothing was sent; unless one is named, one that fits is chosen"
    )]
    NotOffered {
        /// What was to be done.
        operation: Operation,
        /// How.
        algorithm: Algorithm,
        /// Why not.
        why: &'static str,
    },
    /// There is no such reduction.
    #[error("{operator} of {datatype}: there is no such reduction; a function of your own can be one")]
    Operator {
        /// The operator's name.
        operator: &'static str,
        /// What it was to be applied to.
        datatype: Datatype,
    },
    /// Simulated ranks wait for what nobody sends.
    #[error(
        "a simulated collective does not end: {why}; all ranks must build with the same recipe and counts"
    )]
    Stuck {
        /// Who waits for whom.
        why: String,
    },
    /// A table of algorithms cannot be used.
    #[error("the table of algorithms: {why}; without one the built-in table is used")]
    Table {
        /// What is wrong in it.
        why: String,
    },
}
