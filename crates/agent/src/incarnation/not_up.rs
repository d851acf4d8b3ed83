//! Reasons why an incarnation did not come up, and whether the next one would fail in the same way.

use crate::incarnation::ORDER_LIMIT;
use crate::worker::{NotStarted, OrderError};
use hotlease_wire::Cause;

/// Reason why an incarnation did not come up.
pub(super) enum NotUp {
    /// It was killed, or died: its end tells the cause.
    Ended,
    /// A reason that its end does not tell.
    Because(NotStarted),
}

impl From<NotStarted> for NotUp {
    fn from(why: NotStarted) -> Self {
        Self::Because(why)
    }
}

pub(super) fn not_up(what: &str, error: OrderError) -> NotUp {
    NotUp::Because(match error {
        OrderError::Failed(why) => NotStarted::for_good(format!("it could not {what}: {why}")),
        OrderError::Died => return NotUp::Ended,
        OrderError::Silent => {
            NotStarted::for_now(format!("it did not {what} within {} s", ORDER_LIMIT.as_secs()))
        }
    })
}

pub(super) fn not_started(NotStarted { why, lasts }: NotStarted) -> Cause {
    Cause::NotStarted { why, lasts }
}
