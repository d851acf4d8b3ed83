//! Status and details of an error of the client library or of a gang.

use super::{Failure, Status};
use crate::comm::failure;
use hotlease_client::{Error, NetError};
use hotlease_gang::Error as GangError;
use hotlease_wire::{Rejection, RunCertainty};
use std::ffi::c_int;

/// Error of the parts that the feature `platform` adds.
pub(crate) enum PlatformError {
    /// An error of the client library.
    Client(Error),
    /// An error of one call of a map.
    Item(Box<ItemError>),
    /// An error of a gang, or of a communicator that a gang's function asked for.
    Gang(GangError),
}

/// Error of one call of a map.
pub(crate) struct ItemError {
    /// Index of the call, from 0.
    pub(crate) index: usize,
    /// Name of the function.
    pub(crate) function: String,
    pub(crate) error: Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Platform(PlatformError::Client(error))
    }
}

impl PlatformError {
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Client(error) => status_of(error),
            Self::Item(item) => status_of(&item.error),
            Self::Gang(error) => status_of_gang(error),
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            Self::Client(error) => error.to_string(),
            Self::Item(item) => {
                let ItemError { index, function, error } = &**item;
                format!("item {index} of a map of {function}: {error}")
            }
            Self::Gang(error) => error.to_string(),
        }
    }

    /// See `hotlease_error_ran`.
    pub(super) fn ran(&self) -> c_int {
        match self {
            Self::Client(_) | Self::Item(_) => match self.of_function().map(Error::ran) {
                Some(RunCertainty::Yes) => 1,
                Some(RunCertainty::Unknown) => 2,
                Some(RunCertainty::No) | None => 0,
            },
            // Other ranks' functions may have run, even if this rank's function did not.
            Self::Gang(GangError::Rank { source, .. }) => 1 + c_int::from(source.ran() != RunCertainty::Yes),
            Self::Gang(_) => 0,
        }
    }

    pub(super) fn billed(&self) -> bool {
        match self {
            Self::Client(error) => error.billed(),
            Self::Item(item) => item.error.billed(),
            Self::Gang(error) => matches!(error, GangError::Rank { .. }),
        }
    }

    pub(super) fn retryable(&self) -> bool {
        match self {
            Self::Client(error) => error.retryable(),
            Self::Item(item) => item.error.retryable(),
            Self::Gang(_) => false,
        }
    }

    /// Returns the function's own error number.
    pub(super) fn code(&self) -> i32 {
        match self.of_function() {
            Some(Error::Function { code, .. }) => *code,
            _ => 0,
        }
    }

    /// Returns the number of bytes that the output needs.
    pub(super) fn needed(&self) -> u64 {
        match self.of_function() {
            Some(Error::OutputTooLarge { produced, .. }) => *produced,
            _ => 0,
        }
    }

    /// Returns the rank of the gang whose function failed.
    pub(crate) fn rank(&self) -> Option<u32> {
        match self {
            Self::Gang(GangError::Rank { rank, .. }) => Some(*rank),
            _ => None,
        }
    }

    /// Returns the error of the failed invocation: a single invocation, or the invocation of a gang's rank.
    fn of_function(&self) -> Option<&Error> {
        match self {
            Self::Client(error) | Self::Gang(GangError::Rank { source: error, .. }) => Some(error),
            Self::Item(item) => Some(&item.error),
            Self::Gang(_) => None,
        }
    }
}

fn status_of_gang(error: &GangError) -> Status {
    match error {
        GangError::Lease(error) | GangError::Rank { source: error, .. } => status_of(error),
        GangError::Comm(error) => failure::status_of(error),
        GangError::GangEnded => Status::LeaseEnded,
        GangError::CommunicatorEnded => Status::Finished,
        GangError::ForeignCommunicator => Status::Local,
        // All other kinds are invalid requests. A later version may have further kinds, which their messages explain.
        _ => Status::InvalidArgument,
    }
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::Function { .. } => Status::FunctionFailed,
        Error::OutputTooLarge { .. } => Status::OutputTooLarge,
        Error::Deadline { .. } => Status::DeadlineExceeded,
        Error::NoCredit | Error::NoCore | Error::BuffersInUse { .. } => Status::Busy,
        Error::Options { .. } | Error::NoSuchSlot { .. } | Error::InputTooLarge { .. } | Error::TooManyParts { .. } => {
            Status::InvalidArgument
        }
        Error::File { .. } | Error::Code { .. } => Status::CodeRejected,
        Error::NoSuchFunction { .. } => Status::UnknownFunction,
        Error::WorkerDied { .. } => Status::WorkerDied,
        Error::OutcomeUnknown { .. } => Status::OutcomeUnknown,
        Error::LeaseEnded { .. } => Status::LeaseEnded,
        Error::MemoryLost { .. } => Status::MemoryLost,
        Error::Refused(refusal) => match refusal {
            Rejection::NoCapacity { .. }
            | Rejection::NoPlaces { .. }
            | Rejection::NoGpus { .. }
            | Rejection::NotTogether { .. }
            | Rejection::QuotaExceeded { .. } => Status::NoCapacity,
            Rejection::NoAgent | Rejection::Unavailable { .. } | Rejection::Timeout { .. } => Status::Unavailable,
            Rejection::CodeRejected { .. } | Rejection::CodeMismatch => Status::CodeRejected,
            Rejection::LeaseEnded(_) | Rejection::UnknownLease => Status::LeaseEnded,
            Rejection::WorkerDied { .. } => Status::WorkerDied,
            _ => Status::Refused,
        },
        Error::NoRoom { .. } => Status::NoCapacity,
        Error::NotRunning { .. } | Error::RuntimeDirectory { .. } | Error::NoTransport { .. } => Status::Unavailable,
        Error::OutputLost => Status::OutcomeUnknown,
        Error::Network(error) => match **error {
            NetError::Address { .. } => Status::InvalidArgument,
            NetError::Unresolved { .. }
            | NetError::Unreachable { .. }
            | NetError::Silent { .. }
            | NetError::Closed { .. } => Status::Unavailable,
            NetError::Protocol { .. } => Status::Protocol,
            NetError::Local { .. } | NetError::Munge { .. } => Status::Local,
            // The peer answers, but rejects this client, or is not the expected peer.
            _ => Status::Refused,
        },
        Error::Protocol { .. } => Status::Protocol,
        Error::Local { .. } | Error::Memory(_) | Error::Unregistered { .. } => Status::Local,
        // A later version of the client library may have further kinds, which their messages explain.
        _ => Status::Refused,
    }
}
