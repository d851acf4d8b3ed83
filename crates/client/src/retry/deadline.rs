//! The deadline of an invocation, over all its attempts.

use crate::Error;
use hotlease_wire::RunCertainty;
use std::time::{Duration, Instant};

/// Deadline of an invocation. It counts from the beginning of the first attempt, and is not checked before that attempt
/// has failed: reading the clock costs time, and most invocations do not fail.
pub(crate) struct Deadline {
    timeout: Option<Duration>,
    until: Option<Instant>,
}

impl Deadline {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, until: None }
    }

    /// Sets the beginning of the first attempt.
    pub(crate) fn begin(&mut self, began: Instant) {
        if self.until.is_none() {
            self.until = self.timeout.and_then(|timeout| began.checked_add(timeout));
        }
    }

    /// Whether an attempt has failed.
    pub(crate) fn has_begun(&self) -> bool {
        self.until.is_some()
    }

    /// Time left for the next attempt; an error if the time is over.
    pub(crate) fn time_left(&self) -> Result<Option<Duration>, Error> {
        let Some(until) = self.until else {
            return Ok(self.timeout);
        };
        match until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(Error::deadline(self.timeout, RunCertainty::No)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_from_the_first_attempt_and_ends() {
        let second = Duration::from_secs(1);
        let mut deadline = Deadline::new(Some(second));
        assert_eq!(deadline.time_left().unwrap(), Some(second), "nothing was tried yet");
        let now = Instant::now();
        deadline.begin(now);
        deadline.begin(now + 10 * second);
        let left = deadline.time_left().unwrap().unwrap();
        assert!(left <= second, "a later attempt does not begin anew: {left:?}");
        let mut late = Deadline::new(Some(Duration::ZERO));
        late.begin(now);
        assert_eq!(late.time_left().unwrap_err().ran(), RunCertainty::No);
        assert_eq!(Deadline::new(None).time_left().unwrap(), None);
    }
}
