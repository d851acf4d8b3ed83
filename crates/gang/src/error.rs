//! What can go wrong with a gang, on either side.

use hotlease_client::Error as ClientError;
use hotlease_comm::{Error as CommError, Refused};

/// Why a gang, or a function on one, could not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its workers could not be leased or reached. No function was called.
    #[error("{0}")]
    Lease(#[from] ClientError),
    /// A function failed at a rank, or its worker did; the other ranks' results are lost. Where several failed, this is why.
    #[error("rank {rank} of {ranks}: {source}")]
    Rank {
        /// Which.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// What happened there.
        source: ClientError,
    },
    /// Message passing says so: where ranks find each other, or to a function what it did with the communicator.
    #[error("{0}")]
    Comm(#[from] CommError),
    /// The gang was given back.
    #[error("this gang was ended; lease another one")]
    Ended,
    /// A gang cannot be like this.
    #[error("bad gang: {what}")]
    Options {
        /// What is wrong.
        what: String,
    },
    /// To a function: it was not called on a gang.
    #[error(
        "this function runs alone, so it has no communicator; call it on a gang (hotlease_gang_call, hotlease::gang::call, Gang::call)"
    )]
    NoGang,
    /// To a function: another one has failed on this worker since the gang's client last heard of it.
    #[error(
        "the gang's communicator has ended, because a function failed on this worker; the gang's next call has a new one"
    )]
    Over,
    /// To a function: the communicator of this worker is another library's.
    #[error(
        "another library of this worker keeps the gang's communicator; link all that use it with the same libhotlease, as a shared library"
    )]
    Foreign,
}

/// Error numbers with which functions fail because of others; those of `hotlease_status`.
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
    /// The error number with which a function best fails because of this: the gang's client tells by it a rank that failed by itself from
    /// those that failed because of it. The `hotlease_status` in C.
    pub fn code(&self) -> i32 {
        let Self::Comm(error) = self else {
            return code::FUNCTION_FAILED;
        };
        match error {
            CommError::MemberLost { .. } => code::MEMBER_LOST,
            CommError::MemberLeft { .. } => code::MEMBER_LEFT,
            CommError::Outcast { .. } => code::OUTCAST,
            CommError::Mismatch { .. } | CommError::Broken { .. } | CommError::Differ { .. } => {
                code::MISMATCH
            }
            // The gang's client stops waiting for ranks that are not there when another one has failed.
            CommError::NotTogether {
                refused: Refused::Stopping,
                ..
            }
            | CommError::NoRendezvous { .. }
            | CommError::Unreachable { .. } => code::UNAVAILABLE,
            CommError::NotTogether { .. } => code::NOT_TOGETHER,
            _ => code::FUNCTION_FAILED,
        }
    }
}
