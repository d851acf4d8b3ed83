//! Log of failed invocations. Each entry has the invocation's number, which the client's log uses, too.
//!
//! A worker does not log, because everything that it prints is treated as output of its functions, and belongs to its
//! tenant. After the reply, it records a failure in the memory that it shares with the agent. The agent looks at this
//! memory from time to time. A tenant can cause any number of failures, so only some failures in each second are logged
//! one by one; of the others only the number is logged.

use super::libraries::Libraries;
use hotlease_fabric::usage::{InvocationFailure, UsageBlock};
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use std::time::{Duration, Instant};

/// Largest number of failures of one worker that are logged one by one in each [`WINDOW`].
const TOLD_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Failures of one worker that were already looked at and logged.
#[derive(Debug)]
pub(crate) struct FailureLog {
    /// Number of failures that were looked at, for each slot.
    seen: Vec<u64>,
    since: Instant,
    told: u32,
    /// Number of failures since the last logged failure.
    untold: u64,
}

impl FailureLog {
    /// Starts the record of a worker with this many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            seen: vec![0; slots],
            since: Instant::now(),
            told: 0,
            untold: 0,
        }
    }

    /// Failures of this slot to log now, each with the number of unlogged failures since the last logged failure.
    /// `failed_since` gets the number of failures that were looked at before; it returns the present number, and the
    /// new failures.
    fn next(
        &mut self,
        slot: u16,
        now: Instant,
        failed_since: impl FnOnce(u64) -> (u64, Vec<InvocationFailure>),
    ) -> Vec<(u64, InvocationFailure)> {
        let Some(seen) = self.seen.get_mut(usize::from(slot)) else {
            return Vec::new();
        };
        let (count, failures) = failed_since(*seen);
        // If a worker reports a false number of failures, all failures in its memory are taken for new ones; the memory
        // has room for only a few.
        let missed = count.wrapping_sub(*seen).saturating_sub(failures.len() as u64);
        self.untold = self.untold.saturating_add(missed);
        *seen = count;
        let mut tell = Vec::new();
        for failure in failures {
            if now.duration_since(self.since) >= WINDOW {
                (self.since, self.told) = (now, 0);
            }
            if self.told < TOLD_MAX {
                self.told += 1;
                tell.push((std::mem::take(&mut self.untold), failure));
            } else {
                self.untold = self.untold.saturating_add(1);
            }
        }
        tell
    }
}

/// Logs the failures of a worker since the last look. `block`: the memory that the worker shares with the agent.
pub(super) fn log(
    told: &mut FailureLog,
    block: &UsageBlock,
    (lease, worker, epoch): (LeaseId, WorkerIndex, Epoch),
    libraries: &Libraries,
) {
    for slot in 0..block.slots() {
        let tell = told.next(slot, Instant::now(), |seen| block.failures_since(slot, seen));
        for (untold, failure) in tell {
            let attribution = libraries.attribution();
            let function = attribution.name_of(failure.function).unwrap_or("(unknown)");
            tracing::info!(
                %lease, %worker, %epoch, slot,
                invocation = %failure.invocation, function, status = ?failure.status, code = failure.code, untold,
                "an invocation failed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::frame::{InvocationId, InvocationStatus};

    fn failure(number: u64) -> InvocationFailure {
        InvocationFailure {
            invocation: InvocationId::from_bits(number),
            function: 0,
            status: Some(InvocationStatus::FunctionError),
            code: 1,
        }
    }

    #[test]
    fn failures_are_told_once_some_a_second_and_the_rest_is_counted() {
        let mut told = FailureLog::new(1);
        let start = told.since;
        let first = told.next(0, start, |_| (3, (1..=3).map(failure).collect()));
        assert_eq!(first, [(0, failure(1)), (0, failure(2)), (0, failure(3))]);
        assert_eq!(told.next(0, start, |seen| (seen, vec![])), []);
        let more = told.next(0, start, |_| (103, (88..=103).map(failure).collect()));
        assert_eq!(more.len(), 7, "ten in all");
        assert_eq!(more[0], (84, failure(88)), "those that were not kept are counted");
        let later = told.next(0, start + WINDOW, |_| (104, vec![failure(104)]));
        assert_eq!(later, [(9, failure(104))]);
    }

    #[test]
    fn a_worker_that_lies_about_its_number_breaks_nothing() {
        let mut told = FailureLog::new(1);
        let now = told.since;
        let _ = told.next(0, now, |_| (u64::MAX, vec![failure(1)]));
        let _ = told.next(0, now, |_| (0, vec![failure(1); 16]));
        assert_eq!(
            told.next(7, now, |_| (1, vec![failure(1)])),
            [],
            "a slot that it has not"
        );
    }
}
