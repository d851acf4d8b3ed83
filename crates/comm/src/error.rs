//! Errors of this library, grouped by what the caller can do about them.

use hotlease_collectives::{Algorithm, Datatype, Error as PlanError, Operation, Rank};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::rendezvous::JoinRejection;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The operation that was in progress when an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activity {
    /// A message to a rank.
    Send {
        /// The receiving rank.
        to: Rank,
        /// Tag of the message.
        tag: u32,
    },
    /// A message from one rank, or from any.
    Receive {
        /// The sending rank, if one was named.
        from: Option<Rank>,
        /// The tag, if one was named.
        tag: Option<u32>,
    },
    /// The end of the communicator.
    Finish,
    /// A collective.
    Collective {
        /// Number of the collective at this communicator, from 0.
        number: u32,
    },
    /// The members' meeting for another communicator.
    Meeting,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, tag } => write!(f, "send to rank {to}, tag {tag}"),
            Self::Receive { from, tag } => {
                match from {
                    Some(from) => write!(f, "receive from rank {from}")?,
                    None => f.write_str("receive from any rank")?,
                }
                match tag {
                    Some(tag) => write!(f, ", tag {tag}"),
                    None => f.write_str(", any tag"),
                }
            }
            Self::Finish => f.write_str("finish"),
            Self::Collective { number } => write!(f, "collective number {number}"),
            Self::Meeting => f.write_str("meeting again"),
        }
    }
}

/// A member's call of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberCall {
    /// The calling rank.
    pub rank: Rank,
    /// Name of the call, with all arguments that members must agree on.
    pub call: String,
    /// Place of the call in the program.
    pub site: String,
}

impl fmt::Display for MemberCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, call, site } = self;
        write!(f, "rank {rank} `{call}` at {site}")
    }
}

/// Display name of a member: its rank, or that it belongs to another communicator.
struct MemberName(Option<Rank>);

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "rank {rank}"),
            None => f.write_str("a member of another communicator on these connections"),
        }
    }
}

/// Error of a call of this library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or argument is invalid.
    #[error("bad option: {what}")]
    Options {
        /// The option or argument, and the reason.
        what: String,
    },
    /// No usable secret.
    #[error("no secret for the communicator: {why}")]
    Secret {
        /// The fault of the secret.
        why: String,
    },
    /// The peer has another secret.
    #[error(
        "{peer} has another secret and did not accept this member; all members and their rendezvous need the same HOTLEASE_COMM_SECRET"
    )]
    SecretMismatch {
        /// The peer.
        peer: String,
    },
    /// The peer rejected this member, or is not the expected member or rendezvous.
    #[error("{peer} did not accept this member: {why}")]
    Rejection {
        /// The peer.
        peer: String,
        /// The peer's answer, or what the peer did instead.
        why: String,
    },
    /// No rendezvous answers at the address.
    #[error(
        "no rendezvous at {address} within {waited:?}: {why}; start one with `hotlease comm rendezvous`, or correct the address"
    )]
    NoRendezvous {
        /// Address of the rendezvous.
        address: String,
        /// Time during which this member tried.
        waited: Duration,
        /// Result of the last attempt.
        why: String,
    },
    /// The members did not meet.
    #[error("communicator `{name}`: {refused}")]
    RendezvousRefused {
        /// Name of the communicator.
        name: String,
        /// Reason from the rendezvous.
        refused: JoinRejection,
    },
    /// Two members that have met at the rendezvous cannot reach each other.
    #[error(
        "communicator `{name}`: no connection with rank {rank}, which listens at {address}, within {waited:?}: {why}"
    )]
    Unreachable {
        /// Name of the communicator.
        name: String,
        /// Rank of the other member.
        rank: Rank,
        /// Address where the other member listens.
        address: SocketAddr,
        /// Time during which this member tried.
        waited: Duration,
        /// Result of the last attempt.
        why: String,
    },
    /// libfabric cannot be used.
    #[error("communicator `{name}` cannot talk over libfabric: {why}")]
    NoFabric {
        /// Name of the communicator.
        name: String,
        /// The reason, and what to do.
        why: String,
    },
    /// A message is larger than the memory to receive it.
    #[error(
        "the message of rank {source_rank} with tag {tag} has {sent} bytes, but the memory to receive it has {room}; the message waits until it is received with enough memory"
    )]
    Truncated {
        /// Sender of the message.
        source_rank: Rank,
        /// Tag of the message.
        tag: u32,
        /// Bytes of the message.
        sent: u64,
        /// Bytes of the memory.
        room: u64,
    },
    /// In a collective, a rank sent more or fewer bytes than another rank expected.
    #[error(
        "{during}: rank {source_rank} sent {sent} bytes where {expected} were expected; all ranks must call the same operations in the same order, with matching counts and types"
    )]
    Mismatch {
        /// The collective.
        during: Activity,
        /// Sender of the message.
        source_rank: Rank,
        /// Bytes of the message.
        sent: u64,
        /// Bytes that this rank expected.
        expected: u64,
    },
    /// A collective ended with an error at another rank, so no rank can complete it.
    #[error("{during}: rank {rank} had an error in a collective of this communicator; see that rank's own error")]
    CollectiveFailed {
        /// The collective.
        during: Activity,
        /// The rank with the error.
        rank: Rank,
    },
    /// A member has failed.
    #[error("{during}: rank {rank} has failed: {loss}")]
    MemberLost {
        /// The operation in progress.
        during: Activity,
        /// The failed member.
        rank: Rank,
        /// Cause of the failure.
        loss: Loss,
    },
    /// The other members consider this member failed.
    #[error("{during}: {} reports that this member, rank {rank}, has failed: {loss}", MemberName(*reporter))]
    Outcast {
        /// The operation in progress.
        during: Activity,
        /// This member.
        rank: Rank,
        /// First member that reported this failure; `None` if that member belongs to another communicator.
        reporter: Option<Rank>,
        /// Cause of the failure.
        loss: Loss,
    },
    /// A member has finished.
    #[error("{during}: rank {rank} has finished, so it no longer sends or receives")]
    MemberLeft {
        /// The operation in progress.
        during: Activity,
        /// The finished member.
        rank: Rank,
    },
    /// A member did not read in time everything that this member had sent before finishing.
    #[error(
        "within {waited:?} rank {rank} has not read all that this member sent before finishing; the rest may be lost"
    )]
    UnreadData {
        /// The member that did not read.
        rank: Rank,
        /// Time during which this member waited.
        waited: Duration,
    },
    /// The store that members communicate through cannot be used at the start.
    #[error("communicator `{name}`: {store}, within {waited:?}: {why}")]
    NoStore {
        /// Name of the communicator.
        name: String,
        /// The store, without credentials.
        store: String,
        /// Time during which this member tried.
        waited: Duration,
        /// The reason, and what to do.
        why: String,
    },
    /// The store that members communicate through has become unusable. No later operation of this communicator
    /// succeeds.
    #[error("{during}: {why}")]
    Store {
        /// The operation in progress.
        during: Activity,
        /// The store, what happened, and what to do.
        why: String,
    },
    /// This communicator has finished.
    #[error("this communicator has finished")]
    Finished,
    /// The communicator has no such rank.
    #[error("there is no rank {rank} in a communicator of {size}")]
    NoSuchRank {
        /// The requested rank.
        rank: Rank,
        /// Number of ranks.
        size: Rank,
    },
    /// In checked mode: two members call collectives that do not match. All members get this error.
    #[error("members call different collectives: {first}, {other}; nothing was sent")]
    CallMismatch {
        /// Call of rank 0.
        first: Box<MemberCall>,
        /// Call of the first rank that calls a different collective.
        other: Box<MemberCall>,
    },
    /// A member has reached the maximum number of communicators on its connections.
    #[error(
        "rank {rank} has {most} communicators on its connections, which is the limit; drop some that are no longer used"
    )]
    TooManyCommunicators {
        /// The member.
        rank: Rank,
        /// The maximum.
        most: usize,
    },
    /// The maximum number of operations is pending.
    #[error("{pending} operations are pending, which is the limit; wait for some")]
    TooManyRequests {
        /// Number of pending operations.
        pending: usize,
    },
    /// The operation was cancelled.
    #[error("{during}: cancelled")]
    Cancelled {
        /// The operation.
        during: Activity,
    },
    /// The memory of an operation was taken back before the operation ended.
    #[error("{during}: its memory was taken back before it ended; wait for it first")]
    MemoryReclaimed {
        /// The operation.
        during: Activity,
    },
    /// The schedule of a collective breaks its own rules.
    #[error("{during}: its schedule is wrong: {why}")]
    Schedule {
        /// The collective.
        during: Activity,
        /// The broken rule.
        why: String,
    },
    /// A reduction operator panicked.
    #[error("{during}: its operator panicked: {message}")]
    OperatorPanicked {
        /// The collective.
        during: Activity,
        /// Message of the panic.
        message: String,
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
    #[error("{operation} by `{algorithm}`: {why}; nothing was sent; if no algorithm is named, one that fits is chosen")]
    UnsupportedAlgorithm {
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: Algorithm,
        /// The reason.
        why: &'static str,
    },
    /// There is no such reduction.
    #[error("{operator} of {datatype}: there is no such reduction; use a function of your own")]
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
    /// A local operation of this process failed.
    #[error("cannot {what}: {why}")]
    LocalFailure {
        /// The local operation.
        what: &'static str,
        /// The reason.
        why: String,
    },
}

impl Error {
    /// Rank of the member whose failure or end this error reports.
    pub fn rank(&self) -> Option<Rank> {
        match self {
            Self::MemberLost { rank, .. } | Self::MemberLeft { rank, .. } | Self::CollectiveFailed { rank, .. } => {
                Some(*rank)
            }
            _ => None,
        }
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::LocalFailure {
            what,
            why: source.to_string(),
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Options { what } => Self::Options { what },
            PlanError::Arguments { operation, rank, why } => Self::Arguments { operation, rank, why },
            PlanError::UnsupportedAlgorithm {
                operation,
                algorithm,
                why,
            } => Self::UnsupportedAlgorithm {
                operation,
                algorithm,
                why,
            },
            PlanError::Operator { operator, datatype } => Self::Operator { operator, datatype },
            PlanError::SimulationStuck { why } => Self::SimulationStuck { why },
            PlanError::Table { why } => Self::Table { why },
            PlanError::Prices { why } => Self::Prices { why },
            PlanError::Model { operation, why } => Self::Model { operation, why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_member_the_failure_and_a_remedy() {
        let truncated = Error::Truncated {
            source_rank: 3,
            tag: 9,
            sent: 12,
            room: 8,
        };
        for part in ["rank 3", "tag 9", "12 bytes", "has 8", "with enough"] {
            let text = truncated.to_string();
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        let lost = Error::MemberLost {
            during: Activity::Receive {
                from: None,
                tag: Some(4),
            },
            rank: 2,
            loss: Loss::Closed,
        };
        assert_eq!(
            lost.to_string(),
            "receive from any rank, tag 4: rank 2 has failed: its connection was closed: its process has ended"
        );
        assert_eq!(lost.rank(), Some(2));
    }
}
