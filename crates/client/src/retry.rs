//! Which failures are tried again, and what a failure after a retry means.

use crate::Error;
use hotlease_wire::frame::Status;
use hotlease_wire::{EndReason, Ran};

/// How often an invocation that provably did not run is submitted again. Only a bound: a worker that dies
/// takes each queued invocation with it once.
const RESTARTS_MAX: u32 = 64;

/// What an invocation may still be tried.
#[derive(Debug, Clone)]
pub(crate) struct Again {
    /// Further runs after it may have run; 0 unless idempotent.
    runs_left: u32,
    /// Further submissions after it did not run.
    restarts_left: u32,
    /// The failure after which it may have run already. A later failure that did not run must not hide it.
    may_have_run: Option<Error>,
}

impl Again {
    pub(crate) fn new(idempotent: bool, retries: u32) -> Self {
        Self {
            runs_left: if idempotent { retries } else { 0 },
            restarts_left: RESTARTS_MAX,
            may_have_run: None,
        }
    }

    /// Whether a retry after it may have run is possible at all.
    pub(crate) fn may_run_twice(&self) -> bool {
        self.runs_left > 0
    }

    /// `Ok` if the invocation is to be submitted again after this failure.
    pub(crate) fn after(&mut self, error: Error) -> Result<(), Error> {
        let of_the_worker = match &error {
            Error::LeaseEnded { reason, .. } => *reason != EndReason::Released,
            Error::WorkerDied { .. } | Error::OutcomeUnknown { .. } => true,
            Error::NotRun { status } => matches!(status, Status::StaleEpoch | Status::Draining),
            _ => false,
        };
        let left = match error.ran() {
            Ran::No => &mut self.restarts_left,
            Ran::Unknown => &mut self.runs_left,
            Ran::Yes => return Err(error),
        };
        if !of_the_worker || *left == 0 {
            return Err(self.last(error));
        }
        *left -= 1;
        if error.ran() == Ran::Unknown {
            self.may_have_run = Some(error);
        }
        Ok(())
    }

    /// The error to report when `error` ends the attempts.
    pub(crate) fn last(&mut self, error: Error) -> Error {
        match self.may_have_run.take() {
            Some(earlier) if error.ran() == Ran::No => earlier,
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::Cause;

    fn died(ran: Ran) -> Error {
        Error::WorkerDied {
            cause: Cause::OutOfMemory,
            function: None,
            output: String::new(),
            ran,
        }
    }

    #[test]
    fn only_idempotent_functions_run_twice() {
        assert!(Again::new(false, 3).after(died(Ran::Unknown)).is_err());
        let mut again = Again::new(true, 2);
        assert!(again.after(died(Ran::Unknown)).is_ok());
        assert!(again.after(died(Ran::Unknown)).is_ok());
        assert!(again.after(died(Ran::Unknown)).is_err());
    }

    #[test]
    fn what_did_not_run_is_submitted_again_whatever_it_is() {
        assert!(Again::new(false, 0).after(died(Ran::No)).is_ok());
        let deallocated = Error::LeaseEnded {
            reason: EndReason::Released,
            ran: Ran::No,
        };
        assert!(
            Again::new(true, 3).after(deallocated).is_err(),
            "the caller wanted it to end"
        );
    }

    #[test]
    fn a_later_failure_does_not_deny_an_earlier_run() {
        let mut again = Again::new(true, 1);
        again.after(died(Ran::Unknown)).unwrap();
        assert_eq!(again.last(Error::NoCredit).ran(), Ran::Unknown);
    }

    #[test]
    fn results_and_deadlines_are_final() {
        let mut again = Again::new(true, 3);
        let deadline = Error::Deadline {
            timeout: std::time::Duration::from_secs(1),
            ran: Ran::Unknown,
        };
        assert!(again.after(deadline).is_err());
        let failed = Error::Function {
            code: 1,
            output: Vec::new(),
        };
        assert!(again.after(failed).is_err());
    }
}
