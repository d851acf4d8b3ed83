//! What libfabric calls result in.

use crate::ofi::ffi::FI_EAGAIN;
use std::ffi::c_void;

/// What became of a call that queues an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It is under way.
    Yes,
    /// The provider has no room: make progress and try again.
    Again,
    /// It failed, with this negative libfabric error number.
    Failed(isize),
}

impl From<isize> for Posted {
    fn from(result: isize) -> Self {
        match result {
            0 => Self::Yes,
            again if again == -FI_EAGAIN => Self::Again,
            failed => Self::Failed(failed),
        }
    }
}

/// What a completion queue says.
pub enum Completions {
    /// Nothing, or this many entries were written.
    Read(usize),
    /// One operation failed.
    Error(Failure),
    /// The queue itself failed, with this negative error number.
    Failed(isize),
}

/// A failed operation.
pub struct Failure {
    /// What was given when it was posted; may be null.
    pub context: *mut c_void,
    /// What kind of operation it was (FI_RECV, FI_SEND ...), as far as the provider says.
    pub flags: u64,
    /// Positive libfabric error number.
    pub code: i32,
}
