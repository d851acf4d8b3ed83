//! Which failed invocations are submitted again, and what a failure after that means.

use hotlease_wire::Ran;

/// How often an invocation that provably did not run is submitted again. Only a bound: a worker that dies
/// takes each queued invocation with it once.
pub const RESTARTS_MAX: u32 = 64;

/// How a channel to a slot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelEnd {
    /// The agent says that the worker is dead and reaped: what it had not started it never will. A closed
    /// connection alone does not prove it.
    pub reaped: bool,
    /// A reply is seen as soon as it is written, as in shared memory. Over a network the replies to several
    /// invocations may be lost with the worker, or be overtaken by the news of its end.
    pub replies_seen: bool,
}

impl ChannelEnd {
    /// Whether an invocation ran that was unanswered then. `first`: all before it on its channel were
    /// answered, so that the worker, which goes in order, may have started it.
    pub fn ran(self, first: bool) -> Ran {
        if !first && self.reaped && self.replies_seen {
            Ran::No
        } else {
            Ran::Unknown
        }
    }
}

/// What [`Attempts`] has to know of an error.
pub trait Failure {
    /// Whether the function ran.
    fn ran(&self) -> Ran;
    /// Whether another worker, or another lease, may have better luck.
    fn of_the_worker(&self) -> bool;
}

/// What an invocation may still be tried.
///
/// An invocation that may have run runs again only if its function is idempotent. One that did not run is
/// submitted again whatever it is.
#[derive(Debug, Clone)]
pub struct Attempts<E> {
    /// Further runs after it may have run; 0 unless idempotent.
    runs_left: u32,
    /// Further submissions after it did not run.
    restarts_left: u32,
    /// The failure after which it may have run already. A later failure that did not run must not hide it.
    may_have_run: Option<E>,
}

impl<E: Failure> Attempts<E> {
    /// `retries`: further runs of an idempotent function.
    pub fn new(idempotent: bool, retries: u32) -> Self {
        Self {
            runs_left: if idempotent { retries } else { 0 },
            restarts_left: RESTARTS_MAX,
            may_have_run: None,
        }
    }

    /// Whether a retry after it may have run is possible at all.
    pub fn may_run_twice(&self) -> bool {
        self.runs_left > 0
    }

    /// `Ok` if the invocation is to be submitted again after this failure.
    pub fn after(&mut self, error: E) -> Result<(), E> {
        let ran = error.ran();
        let left = match ran {
            Ran::No => &mut self.restarts_left,
            Ran::Unknown => &mut self.runs_left,
            Ran::Yes => return Err(error),
        };
        if !error.of_the_worker() || *left == 0 {
            return Err(self.last(error));
        }
        *left -= 1;
        if ran == Ran::Unknown {
            self.may_have_run = Some(error);
        }
        Ok(())
    }

    /// The error to report when `error` ends the attempts.
    pub fn last(&mut self, error: E) -> E {
        match self.may_have_run.take() {
            Some(earlier) if error.ran() == Ran::No => earlier,
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
                assert_eq!(end.ran(true), Ran::Unknown, "{end:?}");
                let certain = reaped && replies_seen;
                assert_eq!(end.ran(false) == Ran::No, certain, "{end:?}");
            }
        }
    }
}
