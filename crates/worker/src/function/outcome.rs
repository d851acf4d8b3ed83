//! The outcome of a call.

use hotlease_wire::frame::InvocationStatus;

/// Result of a call.
pub struct CallOutcome {
    /// Ok, FunctionError or OutputTooLarge.
    pub status: InvocationStatus,
    /// The function's own error number.
    pub code: i32,
    /// Output bytes; for OutputTooLarge the number that the function claims.
    pub bytes: u64,
}

impl CallOutcome {
    /// Outcome of a function that returned these values and had this capacity.
    #[inline]
    pub(crate) fn of(code: i32, bytes: u64, capacity: u64) -> Self {
        let status = if bytes > capacity {
            InvocationStatus::OutputTooLarge
        } else if code != 0 {
            InvocationStatus::FunctionError
        } else {
            InvocationStatus::Ok
        };
        Self { status, code, bytes }
    }
}
