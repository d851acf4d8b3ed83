//! Retries of failed invocations, and the meaning of a failure after a retry.

mod call;
pub(crate) mod deadline;
pub(crate) mod in_flight;
mod redirect;

use crate::Error;
use hotlease_lease::client::{AttemptFailure, Attempts};
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::{EndReason, RunCertainty};

/// Attempts that an invocation has left.
pub(crate) type CallAttempts = Attempts<Error>;

impl AttemptFailure for Error {
    fn ran(&self) -> RunCertainty {
        Error::ran(self)
    }

    fn is_worker_failure(&self) -> bool {
        match self {
            Error::LeaseEnded { reason, .. } => *reason != EndReason::Released,
            Error::WorkerDied { .. } | Error::OutcomeUnknown { .. } => true,
            Error::NotRun { status } => matches!(status, InvocationStatus::StaleEpoch | InvocationStatus::Draining),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::Cause;

    fn died(ran: RunCertainty) -> Error {
        Error::WorkerDied {
            cause: Cause::OutOfMemory,
            function: None,
            output: String::new(),
            ran,
        }
    }

    #[test]
    fn only_idempotent_functions_run_twice() {
        assert!(
            CallAttempts::new(false, 3)
                .count_failure(died(RunCertainty::Unknown))
                .is_err()
        );
        let mut again = CallAttempts::new(true, 2);
        assert!(again.count_failure(died(RunCertainty::Unknown)).is_ok());
        assert!(again.count_failure(died(RunCertainty::Unknown)).is_ok());
        assert!(again.count_failure(died(RunCertainty::Unknown)).is_err());
    }

    #[test]
    fn a_call_that_did_not_run_is_submitted_again() {
        assert!(
            CallAttempts::new(false, 0)
                .count_failure(died(RunCertainty::No))
                .is_ok()
        );
        let deallocated = Error::LeaseEnded {
            reason: EndReason::Released,
            ran: RunCertainty::No,
        };
        assert!(
            CallAttempts::new(true, 3).count_failure(deallocated).is_err(),
            "the caller wanted it to end"
        );
    }

    #[test]
    fn a_later_failure_does_not_deny_an_earlier_run() {
        let mut again = CallAttempts::new(true, 1);
        again.count_failure(died(RunCertainty::Unknown)).unwrap();
        assert_eq!(again.take_final_error(Error::NoCredit).ran(), RunCertainty::Unknown);
    }

    #[test]
    fn results_and_deadlines_are_final() {
        let mut again = CallAttempts::new(true, 3);
        let deadline = Error::Deadline {
            timeout: std::time::Duration::from_secs(1),
            ran: RunCertainty::Unknown,
        };
        assert!(again.count_failure(deadline).is_err());
        let failed = Error::Function {
            code: 1,
            output: Vec::new(),
        };
        assert!(again.count_failure(failed).is_err());
    }
}
