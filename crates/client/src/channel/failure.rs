//! Errors of failed invocations: the caller's error, and the log.

use super::{Channel, EntryUse, Reply};
use crate::Error;
use crate::session::death::{Death, UnansweredCall};
use hotlease_wire::RunCertainty;
use hotlease_wire::frame::{InvocationId, InvocationStatus};
use std::time::Duration;

impl Channel {
    /// The error of a failed invocation: its reply reports a failure, or an output of more than `capacity` bytes.
    #[cold]
    pub(crate) fn failure(
        &self,
        id: InvocationId,
        reply: &Reply,
        output: Vec<u8>,
        capacity: u64,
        timeout: Option<Duration>,
    ) -> Error {
        self.log_failure(id, self.failure_in(reply, output, capacity, timeout))
    }

    /// Logs a failed invocation under the name that the agent's log also uses.
    pub(super) fn log_failure(&self, invocation: InvocationId, error: Error) -> Error {
        let (lease, worker, epoch) = self.connection.worker_id();
        let lease = lease.map(tracing::field::display);
        tracing::debug!(lease, %worker, %epoch, %invocation, %error, "an invocation failed");
        error
    }

    /// Name, in logs, of an invocation through the ring.
    pub(crate) fn invocation(&self, seq: u64) -> InvocationId {
        self.invocation_in(EntryUse::Ring(seq))
    }

    pub(super) fn invocation_in(&self, lane: EntryUse) -> InvocationId {
        match lane {
            EntryUse::Ring(seq) => self.ring.invocation(seq),
            EntryUse::Express(number) => self.ring.express().invocation(number),
        }
    }

    fn failure_in(&self, reply: &Reply, output: Vec<u8>, capacity: u64, timeout: Option<Duration>) -> Error {
        let header = match reply {
            Ok(header) => header,
            Err(error) => return self.close_broken(&error.to_string()),
        };
        // A function's message, or a reply in a pipeline, may be longer than the caller's output, but not longer than
        // an entry.
        let offered = capacity.max(self.ring.reply_bytes() as u64);
        match header.status {
            InvocationStatus::FunctionError if header.length <= offered => Error::Function {
                code: header.code,
                output,
            },
            InvocationStatus::Ok if header.length > capacity && header.length <= offered => Error::OutputTooLarge {
                produced: header.length,
                capacity,
            },
            InvocationStatus::OutputTooLarge => Error::OutputTooLarge {
                produced: header.length,
                capacity,
            },
            InvocationStatus::DeadlineExceeded => Error::Deadline {
                // On a shared core the worker may have set a shorter deadline, in milliseconds.
                timeout: match header.code {
                    0 => timeout.unwrap_or_default(),
                    limit_ms => Duration::from_millis(limit_ms.unsigned_abs().into()),
                },
                ran: RunCertainty::Yes,
            },
            InvocationStatus::OutputUnreachable => Error::OutputLost,
            InvocationStatus::Busy => Error::NoCore,
            InvocationStatus::Ok | InvocationStatus::FunctionError => {
                self.close_broken("a reply is longer than its output may be")
            }
            status => Error::NotRun { status },
        }
    }

    /// The error of an invocation that was unanswered when the channel closed.
    #[cold]
    pub(crate) fn unanswered_error(&self, seq: u64) -> Error {
        self.unanswered_in(EntryUse::Ring(seq))
    }

    #[cold]
    pub(super) fn unanswered_in(&self, lane: EntryUse) -> Error {
        // The worker serves the ring's invocations in order, and the express entry's at any time.
        let first = match lane {
            EntryUse::Ring(seq) => seq == 0 || self.is_answered(seq - 1),
            EntryUse::Express(_) => true,
        };
        let unanswered = UnansweredCall {
            invocation: self.invocation_in(lane),
            depth: self.ring.depth(),
            first,
        };
        let error = match self.connection.death() {
            Some(death) => self.name_function(death.error(unanswered, self.connection.is_shm())),
            None => Error::OutcomeUnknown {
                why: "the channel was closed".into(),
            },
        };
        self.log_failure(unanswered.invocation, error)
    }

    /// Whether a reply that the worker sent before it died is still on its way: usually the reply to its last
    /// invocation.
    pub(crate) fn is_missing_replies(&self, death: &Death) -> bool {
        let (next, depth) = (self.entries.next(), self.ring.depth());
        let mut latest = (1..=next.min(depth.into())).map(|back| next - back);
        let sent = latest.find(|seq| death.was_answered(self.invocation(*seq), depth));
        sent.is_some_and(|seq| !self.is_answered(seq))
    }

    /// Puts the name of the function into the error of a death.
    fn name_function(&self, mut error: Error) -> Error {
        if let Error::WorkerDied { cause, function, .. } = &mut error {
            let index = cause.function().and_then(|index| index.checked_sub(self.base));
            // The worker may have loaded libraries of other leases' holders, too.
            let ours = index.and_then(|index| self.code.functions().get(usize::from(index)));
            *function = ours.map(|ours| ours.name.clone());
        }
        error
    }
}
