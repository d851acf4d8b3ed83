//! How a channel came to its end, and what that means for the invocations on it.

use crate::Error;
use hotlease_lease::client::ChannelEnd;
use hotlease_wire::{Cause, EndReason};
use std::time::Duration;

/// Why a worker's channels are closed.
#[derive(Debug, Clone)]
pub(crate) struct Death {
    pub(crate) kind: Kind,
    /// Nothing of the worker runs any more, so what it had not started it never will. Known from the agent,
    /// which reaps before it tells; a closed connection alone does not prove it.
    pub(crate) gone: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// The agent said so.
    Worker { cause: Cause, output: String },
    /// The agent ended the lease.
    Lease(EndReason),
    /// The session to the agent is gone.
    Agent,
    /// The worker's connection closed, and the agent has not said why.
    Silent,
    /// The fabric lost the worker, and nobody has said why.
    Unreachable(String),
    /// The worker broke the protocol.
    Broken(String),
    /// The invoker was deallocated.
    Deallocated,
}

impl Death {
    /// The error of an invocation that was unanswered then. `first`: all before it on its channel were
    /// answered, so that the worker, which goes in order, may have started it. `replies_seen`: a reply is seen
    /// as soon as it is written.
    pub(crate) fn error(&self, first: bool, replies_seen: bool) -> Error {
        let end = ChannelEnd {
            reaped: self.gone,
            replies_seen,
        };
        let ran = end.ran(first);
        match &self.kind {
            Kind::Worker {
                cause: Cause::Deadline { timeout_us, .. },
                ..
            } if first => Error::Deadline {
                timeout: Duration::from_micros(*timeout_us),
                ran,
            },
            Kind::Worker { cause, output } => Error::WorkerDied {
                cause: cause.clone(),
                // The channel knows the names.
                function: None,
                output: output.clone(),
                ran,
            },
            Kind::Lease(reason) => Error::LeaseEnded { reason: *reason, ran },
            Kind::Agent => Error::WorkerDied {
                cause: Cause::AgentGone,
                function: None,
                output: String::new(),
                ran,
            },
            Kind::Deallocated => Error::LeaseEnded {
                reason: EndReason::Released,
                ran,
            },
            Kind::Silent => Error::OutcomeUnknown {
                why: "the worker closed the connection and the agent has not said why".into(),
            },
            Kind::Unreachable(why) => Error::OutcomeUnknown {
                why: format!("the worker cannot be reached any more: {why}"),
            },
            Kind::Broken(what) => Error::OutcomeUnknown {
                why: format!("the channel was closed because the worker broke the protocol: {what}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::Ran;

    #[test]
    fn only_what_provably_never_started_did_not_run() {
        let death = |kind, gone| Death { kind, gone };
        let killed = || Kind::Worker {
            cause: Cause::OutOfMemory,
            output: String::new(),
        };
        assert_eq!(death(killed(), true).error(true, true).ran(), Ran::Unknown);
        assert_eq!(death(killed(), true).error(false, true).ran(), Ran::No);
        assert_eq!(
            death(killed(), true).error(false, false).ran(),
            Ran::Unknown,
            "over a network its reply may have been lost with the worker"
        );
        assert_eq!(
            death(Kind::Lease(EndReason::Expired), false)
                .error(false, true)
                .ran(),
            Ran::Unknown
        );
        assert_eq!(death(Kind::Agent, false).error(false, true).ran(), Ran::Unknown);
        assert_eq!(death(Kind::Silent, false).error(false, true).ran(), Ran::Unknown);
    }

    #[test]
    fn a_deadline_concerns_only_the_invocation_that_ran() {
        let death = Death {
            kind: Kind::Worker {
                cause: Cause::Deadline {
                    function: None,
                    timeout_us: 5,
                },
                output: String::new(),
            },
            gone: true,
        };
        assert!(matches!(death.error(true, true), Error::Deadline { .. }));
        assert!(matches!(
            death.error(false, true),
            Error::WorkerDied { ran: Ran::No, .. }
        ));
    }
}
