//! What can go wrong, in terms of what the caller can do about it.

use crate::algorithm::Algorithm;
use crate::collective::Operation;
use crate::datatype::Datatype;
use crate::schedule::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::rendezvous::Refused;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What was being done when something went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum During {
    /// A message to this rank.
    Send {
        /// Which rank.
        to: Rank,
        /// The message's.
        tag: u32,
    },
    /// A message from this rank, or from any.
    Receive {
        /// Which rank, if it was named.
        from: Option<Rank>,
        /// Which tag, if it was named.
        tag: Option<u32>,
    },
    /// The end.
    Finish,
    /// A collective, by its number at this communicator, from 0.
    Collective {
        /// Which.
        number: u32,
    },
    /// Meeting the members again, in another communicator.
    Meeting,
}

impl fmt::Display for During {
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
pub struct Caller {
    /// Who.
    pub rank: Rank,
    /// What it calls, with all that members have to agree in.
    pub call: String,
    /// Where in its program.
    pub site: String,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, call, site } = self;
        write!(f, "rank {rank} `{call}` at {site}")
    }
}

/// A member, or one of another communicator.
struct Whom(Option<Rank>);

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "rank {rank}"),
            None => f.write_str("a member of another communicator on these connections"),
        }
    }
}

/// Why a call of this library failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or argument makes no sense.
    #[error("bad option: {what}")]
    Options {
        /// Which, and why.
        what: String,
    },
    /// There is no secret that can be used.
    #[error("no secret for the communicator: {why}")]
    Secret {
        /// What is wrong with it.
        why: String,
    },
    /// The other side has another secret.
    #[error(
        "{whom} has another secret, and let nobody in; all members and their rendezvous need the same HOTLEASE_COMM_SECRET"
    )]
    OtherSecret {
        /// Who that is.
        whom: String,
    },
    /// What answers there is no such member or rendezvous.
    #[error("{whom} did not let this member in: {why}")]
    NotLetIn {
        /// Who that is.
        whom: String,
        /// What it said, or did instead.
        why: String,
    },
    /// Nobody answers at the rendezvous.
    #[error(
        "no rendezvous at {address} within {waited:?}: {why}; start one with `hotlease comm rendezvous`, or correct the address"
    )]
    NoRendezvous {
        /// Where.
        address: String,
        /// For how long it was tried.
        waited: Duration,
        /// What happened the last time.
        why: String,
    },
    /// The members did not come together.
    #[error("communicator `{name}`: {refused}")]
    NotTogether {
        /// Of the communicator.
        name: String,
        /// What the rendezvous said.
        refused: Refused,
    },
    /// Members that the rendezvous knows cannot reach each other.
    #[error(
        "communicator `{name}`: no connection with rank {rank}, which listens at {address}, within {waited:?}: {why}"
    )]
    Unreachable {
        /// Of the communicator.
        name: String,
        /// Of the other member.
        rank: Rank,
        /// Where it listens.
        address: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
        /// What happened the last time.
        why: String,
    },
    /// libfabric cannot be used.
    #[error("communicator `{name}` cannot talk over libfabric: {why}")]
    NoFabric {
        /// Of the communicator.
        name: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A message is larger than the memory to receive it.
    #[error(
        "the message of rank {source_rank} with tag {tag} has {sent} bytes, the memory to receive it {room}; it waits to be received with enough"
    )]
    Truncated {
        /// Who sent it.
        source_rank: Rank,
        /// The message's.
        tag: u32,
        /// Bytes of the message.
        sent: u64,
        /// Bytes of the memory.
        room: u64,
    },
    /// In a collective a rank sent more or less than another one expected.
    #[error(
        "{during}: rank {source_rank} sent {sent} bytes where {expected} were expected; all ranks must call the same operations in the same order, with matching counts and types"
    )]
    Mismatch {
        /// Which.
        during: During,
        /// Who sent it.
        source_rank: Rank,
        /// Bytes of the message.
        sent: u64,
        /// Bytes that this rank expected.
        expected: u64,
    },
    /// A collective ended with an error at another rank, so nobody can go on with it.
    #[error("{during}: rank {rank} had an error in a collective of this communicator, and says which")]
    Broken {
        /// Which.
        during: During,
        /// Who had the error.
        rank: Rank,
    },
    /// A member has failed.
    #[error("{during}: rank {rank} has failed: {loss}")]
    MemberLost {
        /// What was being done.
        during: During,
        /// Who.
        rank: Rank,
        /// Why.
        loss: Loss,
    },
    /// The other members hold that this one has failed.
    #[error("{during}: this member, rank {rank}, has failed in the eyes of {}: {loss}", Whom(*by))]
    Outcast {
        /// What was being done.
        during: During,
        /// This member.
        rank: Rank,
        /// Who said so first, if that is a member of this communicator.
        by: Option<Rank>,
        /// Why.
        loss: Loss,
    },
    /// A member has finished.
    #[error("{during}: rank {rank} has finished, so it sends and takes nothing any more")]
    MemberLeft {
        /// What was being done.
        during: During,
        /// Who.
        rank: Rank,
    },
    /// A member did not read in time what this one had sent before it finished.
    #[error(
        "rank {rank} has not read within {waited:?} what this member sent before it finished; it may be lost"
    )]
    NotRead {
        /// Who.
        rank: Rank,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The store that members talk through cannot be used at the start.
    #[error("communicator `{name}`: {store}, within {waited:?}: {why}")]
    NoStore {
        /// Of the communicator.
        name: String,
        /// Which store, without credentials.
        store: String,
        /// For how long it was tried.
        waited: Duration,
        /// Why not, and what to do.
        why: String,
    },
    /// The store that members talk through cannot be used any more. Nothing succeeds at this communicator after that.
    #[error("{during}: {why}")]
    Store {
        /// What was being done.
        during: During,
        /// Which store, what happened, and what to do.
        why: String,
    },
    /// This communicator has finished.
    #[error("this communicator has finished")]
    Finished,
    /// There is no such rank.
    #[error("there is no rank {rank} in a communicator of {size}")]
    NoSuchRank {
        /// What was asked for.
        rank: Rank,
        /// How many there are.
        size: Rank,
    },
    /// In checked mode: two members call collectives that do not belong together. All members end with this.
    #[error("members call different collectives: {first}, {other}; nothing was sent")]
    Differ {
        /// Rank 0.
        first: Box<Caller>,
        /// The first rank that calls something else.
        other: Box<Caller>,
    },
    /// A member has as many communicators on its connections as can be.
    #[error(
        "rank {rank} has {most} communicators on its connections, which is as many as can be; drop some that are not used any more"
    )]
    TooManyCommunicators {
        /// Which.
        rank: Rank,
        /// How many can be.
        most: usize,
    },
    /// As many operations are pending as can.
    #[error("{pending} operations are pending, which is as many as can; wait for some")]
    TooManyRequests {
        /// How many.
        pending: usize,
    },
    /// The operation was cancelled.
    #[error("{during}: cancelled")]
    Cancelled {
        /// Which.
        during: During,
    },
    /// The memory of an operation was taken back before it ended.
    #[error("{during}: its memory was taken back before it ended; wait for it first")]
    MemoryGone {
        /// Which.
        during: During,
    },
    /// A schedule of a collective breaks its own rules.
    #[error("{during}: its schedule is wrong: {why}")]
    Schedule {
        /// Which.
        during: During,
        /// What is wrong.
        why: String,
    },
    /// A reduction operator panicked.
    #[error("{during}: its operator panicked: {message}")]
    OperatorPanicked {
        /// Which.
        during: During,
        /// What it said.
        message: String,
    },
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
    /// What links cost cannot be read.
    #[error("the prices: {why}; without a file the built-in ones are used")]
    Prices {
        /// What is wrong in them.
        why: String,
    },
    /// The model has no answer.
    #[error("no estimate for {operation}: {why}")]
    Model {
        /// Of what.
        operation: Operation,
        /// What is missing, or too much.
        why: String,
    },
    /// This process lacks something.
    #[error("cannot {what}: {why}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

impl Error {
    /// The member whose failure or end this is.
    pub fn rank(&self) -> Option<Rank> {
        match self {
            Self::MemberLost { rank, .. } | Self::MemberLeft { rank, .. } | Self::Broken { rank, .. } => {
                Some(*rank)
            }
            _ => None,
        }
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Local {
            what,
            why: source.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_who_what_and_what_to_do() {
        let truncated = Error::Truncated {
            source_rank: 3,
            tag: 9,
            sent: 12,
            room: 8,
        };
        for part in ["rank 3", "tag 9", "12 bytes", "receive it 8", "with enough"] {
            let text = truncated.to_string();
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        let lost = Error::MemberLost {
            during: During::Receive {
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
