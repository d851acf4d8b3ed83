//! Results of libfabric calls.

use crate::ofi::ffi::FI_EAGAIN;
use std::ffi::c_void;

/// Result of a call that queues an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostResult {
    /// The operation is under way.
    Yes,
    /// The provider has no room: make progress and try again.
    Again,
    /// The operation failed, with this negative libfabric error number.
    Failed(isize),
}

impl From<isize> for PostResult {
    fn from(result: isize) -> Self {
        match result {
            0 => Self::Yes,
            again if again == -FI_EAGAIN => Self::Again,
            failed => Self::Failed(failed),
        }
    }
}

/// Result of reading a completion queue.
pub enum CompletionRead {
    /// This many entries were written; may be 0.
    Read(usize),
    /// One operation failed.
    Error(FailedOperation),
    /// The queue itself failed, with this negative error number.
    Failed(isize),
}

/// A failed operation.
pub struct FailedOperation {
    /// Context that was given when the operation was posted; may be null.
    pub context: *mut c_void,
    /// Kind of the operation (FI_RECV, FI_SEND ...), as far as the provider reports it.
    pub flags: u64,
    /// Positive libfabric error number.
    pub code: i32,
}
