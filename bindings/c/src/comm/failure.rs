//! Status and details of an error of message passing.

use crate::status::{ErrorHandle, Failure, Status, exported};
use hotlease_comm::{Error, JoinRejection};
use std::ffi::{CString, c_char};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Comm(error)
    }
}

pub(crate) fn status_of(error: &Error) -> Status {
    match error {
        Error::Truncated { .. } => Status::OutputTooLarge,
        Error::TooManyRequests { .. } | Error::TooManyCommunicators { .. } => Status::Busy,
        Error::Cancelled { .. } | Error::MemoryReclaimed { .. } => Status::Cancelled,
        Error::SecretMismatch { .. } | Error::Rejection { .. } => Status::Refused,
        Error::NoRendezvous { .. }
        | Error::Unreachable { .. }
        | Error::NoStore { .. }
        | Error::NoFabric { .. }
        | Error::Store { .. } => Status::Unavailable,
        Error::RendezvousRefused { refused, .. } => match refused {
            JoinRejection::Full { .. } => Status::Busy,
            JoinRejection::Stopping => Status::Unavailable,
            _ => Status::NotTogether,
        },
        Error::Mismatch { .. } | Error::CollectiveFailed { .. } | Error::CallMismatch { .. } => Status::Mismatch,
        Error::OperatorPanicked { .. } => Status::OperatorFailed,
        Error::MemberLost { .. } => Status::MemberLost,
        Error::MemberLeft { .. } => Status::MemberLeft,
        Error::Outcast { .. } => Status::Outcast,
        Error::UnreadData { .. } => Status::NotRead,
        Error::Finished => Status::Finished,
        Error::LocalFailure { .. } => Status::Local,
        // All other kinds are invalid options and arguments. A later version may have further kinds, which their
        // messages explain.
        _ => Status::InvalidArgument,
    }
}

/// Returns the rank that an error is about.
fn rank_of(error: &Error) -> Option<u32> {
    match error {
        Error::Truncated { source_rank, .. } | Error::Mismatch { source_rank, .. } => Some(*source_rank),
        Error::Unreachable { rank, .. } | Error::UnreadData { rank, .. } => Some(*rank),
        Error::Outcast { reporter: by, .. } => *by,
        Error::CallMismatch { other, .. } => Some(other.rank),
        Error::TooManyCommunicators { rank, .. } => Some(*rank),
        other => other.rank(),
    }
}

/// Returns the cause of an error in words; empty if there is no separate cause.
pub(crate) fn cause_of(failure: &Failure) -> CString {
    let cause = match failure {
        Failure::Comm(Error::MemberLost { loss, .. } | Error::Outcast { loss, .. }) => loss.to_string(),
        Failure::Comm(Error::RendezvousRefused { refused, .. }) => refused.to_string(),
        _ => String::new(),
    };
    CString::new(cause).unwrap_or_default()
}

exported!(get hotlease_error_rank(error: ErrorHandle) -> i64 {
    -1, match error.failure() {
        Failure::Comm(error) => rank_of(error).map_or(-1, i64::from),
        Failure::Platform(error) => error.rank().map_or(-1, i64::from),
        _ => -1,
    }
});

exported!(get hotlease_error_cause(error: ErrorHandle) -> *const c_char { c"".as_ptr(), error.cause().as_ptr() });
