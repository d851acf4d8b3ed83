//! Attempts of an invocation: which failures lead to another submission, and which error is reported at the end.

use hotlease_wire::RunCertainty;

/// Largest number of times that an invocation is submitted again if it provably did not run. The limit is seldom
/// reached, because the death of a worker fails each queued invocation once.
pub const RESTARTS_MAX: u32 = 64;

/// End of a channel to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelEnd {
    /// Whether the agent reports that the worker is dead and reaped. The worker then never runs invocations that it had
    /// not started. A closed connection alone does not prove that the worker is dead.
    pub reaped: bool,
    /// Whether a reply is seen as soon as it is written, as in shared memory. Over a network the replies to several
    /// invocations may be lost with the worker, or arrive later than the report of the worker's death.
    pub replies_seen: bool,
}

impl ChannelEnd {
    /// Whether an invocation ran that had no reply when the channel ended. `first`: all earlier invocations of its
    /// channel were answered, so the worker, which serves in order, may have started this invocation.
    pub fn ran(self, first: bool) -> RunCertainty {
        if !first && self.reaped && self.replies_seen {
            RunCertainty::No
        } else {
            RunCertainty::Unknown
        }
    }
}

/// Properties of an error that [`Attempts`] uses.
pub trait AttemptFailure {
    /// Whether the function ran.
    fn ran(&self) -> RunCertainty;
    /// Whether another worker, or another lease, may succeed.
    fn is_worker_failure(&self) -> bool;
}

/// Remaining attempts of an invocation.
///
/// An invocation that may have run is submitted again only if its function is idempotent. An invocation that did not
/// run is submitted again in any case.
#[derive(Debug, Clone)]
pub struct Attempts<E> {
    /// Further runs if the function may have run; 0 if the function is not idempotent.
    runs_left: u32,
    /// Further submissions if the function did not run.
    restarts_left: u32,
    /// The failure after which the function may have run. It must still be reported if a later attempt fails without a
    /// run.
    may_have_run: Option<E>,
}

impl<E: AttemptFailure> Attempts<E> {
    /// Makes the attempts of a new invocation. `retries` is the number of further runs of an idempotent function.
    pub fn new(idempotent: bool, retries: u32) -> Self {
        Self {
            runs_left: if idempotent { retries } else { 0 },
            restarts_left: RESTARTS_MAX,
            may_have_run: None,
        }
    }

    /// Whether the function may be run again after it may have run.
    pub fn can_run_twice(&self) -> bool {
        self.runs_left > 0
    }

    /// Counts a failure. Returns `Ok` if the invocation must be submitted again, else the error to report.
    pub fn count_failure(&mut self, error: E) -> Result<(), E> {
        let ran = error.ran();
        let left = match ran {
            RunCertainty::No => &mut self.restarts_left,
            RunCertainty::Unknown => &mut self.runs_left,
            RunCertainty::Yes => return Err(error),
        };
        if !error.is_worker_failure() || *left == 0 {
            return Err(self.take_final_error(error));
        }
        *left -= 1;
        if ran == RunCertainty::Unknown {
            self.may_have_run = Some(error);
        }
        Ok(())
    }

    /// The error to report when `error` ends the attempts.
    pub fn take_final_error(&mut self, error: E) -> E {
        match self.may_have_run.take() {
            Some(earlier) if error.ran() == RunCertainty::No => earlier,
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_provably_never_started_did_not_run() {
        for reaped in [false, true] {
            for replies_seen in [false, true] {
                let end = ChannelEnd { reaped, replies_seen };
                assert_eq!(end.ran(true), RunCertainty::Unknown, "{end:?}");
                let certain = reaped && replies_seen;
                assert_eq!(end.ran(false) == RunCertainty::No, certain, "{end:?}");
            }
        }
    }
}
