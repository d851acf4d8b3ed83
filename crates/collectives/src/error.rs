//! Errors of planning: calls, algorithms, tables, prices and simulations.

use crate::datatype::Datatype;
use crate::operation::{Algorithm, Operation};
use crate::schedule::Rank;

/// Error of a call of this library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An option or argument is invalid.
    #[error("bad option: {what}")]
    Options {
        /// The option or argument, and the reason.
        what: String,
    },
    /// The arguments of a collective contradict each other. Nothing was sent.
    #[error("{operation} at rank {rank}: {why}; nothing was sent")]
    Arguments {
        /// The operation.
        operation: Operation,
        /// The calling rank.
        rank: Rank,
        /// The contradiction.
        why: String,
    },
    /// The requested algorithm cannot do this operation.
    #[error("{operation} by `{algorithm}`: {why}; nothing was sent; unless one is named, one that fits is chosen")]
    UnsupportedAlgorithm {
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: Algorithm,
        /// The reason.
        why: &'static str,
    },
    /// There is no such reduction.
    #[error("{operator} of {datatype}: there is no such reduction; a function of your own can be one")]
    Operator {
        /// Name of the operator.
        operator: &'static str,
        /// Datatype of the operands.
        datatype: Datatype,
    },
    /// Simulated ranks wait for messages that no rank sends.
    #[error("a simulated collective does not end: {why}; all ranks must build with the same recipe and counts")]
    SimulationStuck {
        /// The waiting ranks, and the ranks that each waits for.
        why: String,
    },
    /// A table of algorithms cannot be used.
    #[error("the table of algorithms: {why}; without one the built-in table is used")]
    Table {
        /// Fault of the table.
        why: String,
    },
    /// Prices of links cannot be read.
    #[error("the prices: {why}; without a file the built-in ones are used")]
    Prices {
        /// Fault of the prices.
        why: String,
    },
    /// The model has no estimate.
    #[error("no estimate for {operation}: {why}")]
    Model {
        /// The operation.
        operation: Operation,
        /// The missing figure or the exceeded limit.
        why: String,
    },
}
