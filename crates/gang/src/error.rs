//! Errors of gangs, at the client and in functions.

use hotlease_client::Error as ClientError;
use hotlease_comm::{Error as CommError, JoinRejection};

/// Error of a gang, or of a function on a gang.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The workers of the gang could not be leased or reached. No function was called.
    #[error("{0}")]
    Lease(#[from] ClientError),
    /// A function or its worker failed at a rank; the other ranks' results are lost. If several ranks failed, this
    /// error is the cause.
    #[error("rank {rank} of {ranks}: {source}")]
    Rank {
        /// The failed rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// The error at that rank.
        source: ClientError,
    },
    /// An error of message passing: at the rendezvous of the ranks, or in a function that used the communicator.
    #[error("{0}")]
    Comm(#[from] CommError),
    /// The gang has ended.
    #[error("this gang was ended; lease another one")]
    GangEnded,
    /// The options of the gang are invalid.
    #[error("bad gang: {what}")]
    Options {
        /// The fault of the options.
        what: String,
    },
    /// In a function that was not called on a gang.
    #[error(
        "this function runs alone, so it has no communicator; call it on a gang (hotlease_gang_call, hotlease::gang::call, Gang::call)"
    )]
    NoGang,
    /// In a function: another function has failed on this worker since the last update from the gang's client.
    #[error(
        "the gang's communicator has ended, because a function failed on this worker; the gang's next call has a new one"
    )]
    CommunicatorEnded,
    /// In a function: the communicator of this worker belongs to another library.
    #[error(
        "another library of this worker keeps the gang's communicator; link all that use it with the same libhotlease, as a shared library"
    )]
    ForeignCommunicator,
}

/// Error numbers of functions that fail because of other ranks, with the values of `hotlease_status`.
pub(crate) mod code {
    pub(crate) const FUNCTION_FAILED: i32 = 1;
    pub(crate) const MEMBER_LOST: i32 = 70;
    pub(crate) const MEMBER_LEFT: i32 = 71;
    pub(crate) const OUTCAST: i32 = 72;
    pub(crate) const MISMATCH: i32 = 73;
    pub(crate) const NOT_TOGETHER: i32 = 74;
    pub(crate) const UNAVAILABLE: i32 = 82;
}

impl Error {
    /// Error number with which a function should fail because of this error. By the number, the gang's client
    /// distinguishes a rank that failed by itself from ranks that failed because of that rank. The number is a
    /// `hotlease_status` in C.
    pub fn code(&self) -> i32 {
        let Self::Comm(error) = self else {
            return code::FUNCTION_FAILED;
        };
        match error {
            CommError::MemberLost { .. } => code::MEMBER_LOST,
            CommError::MemberLeft { .. } => code::MEMBER_LEFT,
            CommError::Outcast { .. } => code::OUTCAST,
            CommError::Mismatch { .. } | CommError::CollectiveFailed { .. } | CommError::CallMismatch { .. } => {
                code::MISMATCH
            }
            // Once a rank has failed, the gang's client stops the rendezvous, which then refuses the ranks that still
            // wait.
            CommError::RendezvousRefused {
                refused: JoinRejection::Stopping,
                ..
            }
            | CommError::NoRendezvous { .. }
            | CommError::Unreachable { .. } => code::UNAVAILABLE,
            CommError::RendezvousRefused { .. } => code::NOT_TOGETHER,
            _ => code::FUNCTION_FAILED,
        }
    }
}
