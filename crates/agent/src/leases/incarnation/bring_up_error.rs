//! Reasons why an incarnation could not be brought up, and whether the next incarnation would fail in the same way.

use crate::workers::worker::{ORDER_LIMIT, OrderError, StartError};
use hotlease_wire::Cause;

/// Reason why an incarnation could not be brought up.
pub(super) enum BringUpError {
    /// The worker was killed, or died: its end shows the cause.
    Ended,
    /// A reason that the worker's end does not show.
    Reason(StartError),
}

impl From<StartError> for BringUpError {
    fn from(why: StartError) -> Self {
        Self::Reason(why)
    }
}

pub(super) fn not_up(what: &str, error: OrderError) -> BringUpError {
    BringUpError::Reason(match error {
        OrderError::Failed(why) => StartError::for_good(format!("it could not {what}: {why}")),
        OrderError::Died => return BringUpError::Ended,
        OrderError::TimedOut => StartError::for_now(format!("it did not {what} within {} s", ORDER_LIMIT.as_secs())),
    })
}

pub(super) fn not_started(StartError { why, lasts }: StartError) -> Cause {
    Cause::NotStarted { why, lasts }
}
