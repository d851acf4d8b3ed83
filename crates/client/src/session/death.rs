//! End of a channel, and what it means for the invocations on it.

use crate::Error;
use hotlease_lease::client::ChannelEnd;
use hotlease_wire::frame::InvocationId;
use hotlease_wire::session::LastInvocation;
use hotlease_wire::{Cause, EndReason, RunCertainty};
use std::sync::Arc;
use std::time::Duration;

/// Reason why a worker's channels are closed.
#[derive(Debug, Clone)]
pub(crate) struct Death {
    pub(crate) kind: DeathKind,
    /// Whether no thread or process of the worker runs any more, so that it never runs an invocation that it had not
    /// started. The agent's report proves that, because the agent reaps before it reports; a closed connection alone
    /// does not.
    pub(crate) gone: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum DeathKind {
    /// The agent reported the death, and the invocation that each slot had begun last.
    Worker {
        cause: Cause,
        output: String,
        begun: Arc<[LastInvocation]>,
    },
    /// The agent ended the lease.
    Lease(EndReason),
    /// The session to the agent is gone.
    Agent,
    /// The worker's connection closed, and the agent has not reported why.
    Silent,
    /// The fabric lost the worker, and no reason was reported.
    Unreachable(String),
    /// The worker broke the protocol.
    Broken(String),
    /// The invoker was deallocated.
    Deallocated,
}

/// An invocation that was unanswered when its worker died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnansweredCall {
    pub(crate) invocation: InvocationId,
    /// Number of entries of its channel.
    pub(crate) depth: u32,
    /// Whether all earlier invocations of the channel were answered, so that the worker, which serves in order, may
    /// have started this invocation.
    pub(crate) first: bool,
}

/// Progress of a dead worker with an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    /// The worker had not begun it.
    NotBegun,
    /// The worker was running it.
    Begun,
    /// The worker had ended the invocation, or may have refused it before it began a later one; the reply was lost.
    Answered,
}

impl Death {
    /// Progress with an invocation, if the worker left a record of an invocation that used the same channel, and the
    /// same part of it (ring or express entry).
    fn state_of(&self, invocation: InvocationId, depth: u32) -> Option<CallState> {
        let behind = |last: &LastInvocation| Some((invocation.behind(last.invocation, depth)?, last.ended));
        // If several records match, the latest is used. After 32,768 channels of one worker, invocations on two of its
        // channels may have equal names, and the record of another slot must not deny that this invocation began.
        Some(match self.last_invocations().iter().filter_map(behind).min()? {
            (1.., _) => CallState::NotBegun,
            (0, false) => CallState::Begun,
            _ => CallState::Answered,
        })
    }

    /// Whether the last invocation that the worker began on the channel of `invocation` is another invocation. If so,
    /// `invocation` did not run, provided that its reply would have been seen: a slot answers one invocation before it
    /// begins the next.
    fn another_was_last(&self, invocation: InvocationId) -> bool {
        let mut begun = self.last_invocations().iter();
        begun.any(|last| last.invocation != invocation && last.invocation.is_of_channel_of(invocation))
    }

    /// Last invocation that each slot had begun, if the agent reported the worker's death.
    fn last_invocations(&self) -> &[LastInvocation] {
        match &self.kind {
            DeathKind::Worker { begun, .. } => begun,
            _ => &[],
        }
    }

    /// Whether the worker had sent a reply to an invocation, according to the record that the worker left.
    pub(crate) fn was_answered(&self, invocation: InvocationId, depth: u32) -> bool {
        self.state_of(invocation, depth) == Some(CallState::Answered)
    }

    /// Whether the worker had stopped serving requests before its lease ended: by then it had answered each invocation
    /// that it had run.
    fn had_stopped_serving(&self) -> bool {
        matches!(self.kind, DeathKind::Lease(EndReason::SwappedOut))
    }

    /// The error of an invocation that was unanswered at the end. `replies_seen`: whether a reply is seen as soon
    /// as it is written.
    pub(crate) fn error(&self, unanswered: UnansweredCall, replies_seen: bool) -> Error {
        let end = ChannelEnd {
            reaped: self.gone,
            replies_seen,
        };
        let UnansweredCall {
            invocation,
            depth,
            first,
        } = unanswered;
        let (first, ran) = match self.state_of(invocation, depth) {
            Some(CallState::NotBegun) => (false, RunCertainty::No),
            Some(CallState::Begun) => (true, RunCertainty::Unknown),
            Some(CallState::Answered) => (false, RunCertainty::Unknown),
            None if replies_seen && (self.had_stopped_serving() || self.another_was_last(invocation)) => {
                (false, RunCertainty::No)
            }
            None => (first, end.ran(first)),
        };
        match &self.kind {
            DeathKind::Worker {
                cause: Cause::Deadline { timeout_us, .. },
                ..
            } if first => Error::Deadline {
                timeout: Duration::from_micros(*timeout_us),
                ran,
            },
            DeathKind::Worker { cause, output, .. } => Error::WorkerDied {
                cause: cause.clone(),
                // The channel adds the name of the function.
                function: None,
                output: output.clone(),
                ran,
            },
            DeathKind::Lease(reason) => Error::LeaseEnded { reason: *reason, ran },
            DeathKind::Agent => Error::WorkerDied {
                cause: Cause::AgentGone,
                function: None,
                output: String::new(),
                ran,
            },
            DeathKind::Deallocated => Error::LeaseEnded {
                reason: EndReason::Released,
                ran,
            },
            DeathKind::Silent => Error::OutcomeUnknown {
                why: "the worker closed the connection and the agent has not said why".into(),
            },
            DeathKind::Unreachable(why) => Error::OutcomeUnknown {
                why: format!("the worker cannot be reached any more: {why}"),
            },
            DeathKind::Broken(what) => Error::OutcomeUnknown {
                why: format!("the channel was closed because the worker broke the protocol: {what}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::frame::{EXPRESS_ENTRY, Seq};

    const DEPTH: u32 = 64;

    /// An invocation of a channel of generation 3.
    fn number(number: u64) -> InvocationId {
        InvocationId::new(Seq::new(3, number), number as u32 % DEPTH)
    }

    fn unanswered(invocation: u64, first: bool) -> UnansweredCall {
        UnansweredCall {
            invocation: number(invocation),
            depth: DEPTH,
            first,
        }
    }

    fn killed(cause: Cause, begun: &[LastInvocation]) -> Death {
        Death {
            kind: DeathKind::Worker {
                cause,
                output: String::new(),
                begun: begun.into(),
            },
            gone: true,
        }
    }

    #[test]
    fn only_what_provably_never_started_did_not_run() {
        let death = |kind, gone| Death { kind, gone };
        let killed = || killed(Cause::OutOfMemory, &[]);
        let (first, behind) = (unanswered(5, true), unanswered(6, false));
        assert_eq!(killed().error(first, true).ran(), RunCertainty::Unknown);
        assert_eq!(killed().error(behind, true).ran(), RunCertainty::No);
        assert_eq!(
            killed().error(behind, false).ran(),
            RunCertainty::Unknown,
            "over a network its reply may have been lost with the worker"
        );
        for kind in [
            DeathKind::Lease(EndReason::Expired),
            DeathKind::Agent,
            DeathKind::Silent,
        ] {
            assert_eq!(
                death(kind.clone(), false).error(behind, true).ran(),
                RunCertainty::Unknown,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn invocations_unanswered_by_a_swapped_out_worker_did_not_run() {
        for first in [true, false] {
            let death = Death {
                kind: DeathKind::Lease(EndReason::SwappedOut),
                gone: false,
            };
            let ran = |replies_seen| death.error(unanswered(5, first), replies_seen).ran();
            assert_eq!(ran(true), RunCertainty::No);
            assert_eq!(
                ran(false),
                RunCertainty::Unknown,
                "a reply may have been lost with the worker"
            );
        }
    }

    #[test]
    fn the_record_of_a_dead_worker_says_what_ran_over_any_transport() {
        let last = |number: InvocationId, ended| LastInvocation {
            invocation: number,
            ended,
        };
        let elsewhere = InvocationId::new(Seq::new(4, 7), 7);
        for replies_seen in [false, true] {
            let ran = |begun: &[LastInvocation], invocation, first| {
                let error = killed(Cause::OutOfMemory, begun).error(unanswered(invocation, first), replies_seen);
                error.ran()
            };
            let running = [last(elsewhere, false), last(number(7), false)];
            assert_eq!(ran(&running, 8, false), RunCertainty::No);
            assert_eq!(
                ran(&running, 8, true),
                RunCertainty::No,
                "though nothing before it is unanswered"
            );
            assert_eq!(ran(&running, 7, true), RunCertainty::Unknown);
            assert_eq!(
                ran(&running, 7, false),
                RunCertainty::Unknown,
                "though one before it is unanswered"
            );
            assert_eq!(
                ran(&running, 6, true),
                RunCertainty::Unknown,
                "its reply was lost, or it was refused"
            );
            let between = [last(number(7), true)];
            assert_eq!(ran(&between, 8, true), RunCertainty::No);
            assert_eq!(ran(&between, 7, true), RunCertainty::Unknown, "its reply was lost");
            assert_eq!(
                ran(&[last(elsewhere, false)], 8, true),
                RunCertainty::Unknown,
                "word of another channel says nothing"
            );
        }
    }

    #[test]
    fn an_invocation_on_the_other_path_of_a_channel_did_not_run_unless_its_reply_may_be_lost() {
        let express = |number: u64| InvocationId::new(Seq::new(3, number), EXPRESS_ENTRY);
        for (last, unanswered) in [(express(2), number(5)), (number(5), express(3))] {
            for ended in [false, true] {
                let death = killed(
                    Cause::OutOfMemory,
                    &[LastInvocation {
                        invocation: last,
                        ended,
                    }],
                );
                let unanswered = UnansweredCall {
                    invocation: unanswered,
                    depth: DEPTH,
                    first: true,
                };
                assert_eq!(death.error(unanswered, true).ran(), RunCertainty::No);
                assert_eq!(death.error(unanswered, false).ran(), RunCertainty::Unknown);
            }
        }
    }

    #[test]
    fn a_channel_of_a_name_that_is_alike_does_not_deny_that_an_invocation_began() {
        let alike = InvocationId::new(Seq::new(3 + (1 << 15), 5), 5);
        let last = |invocation| LastInvocation {
            invocation,
            ended: false,
        };
        for own in [7, 8] {
            let death = killed(Cause::OutOfMemory, &[last(alike), last(number(own))]);
            for replies_seen in [false, true] {
                let ran = death.error(unanswered(7, true), replies_seen).ran();
                assert_eq!(ran, RunCertainty::Unknown, "its slot has begun {own}");
            }
        }
    }

    #[test]
    fn replies_that_were_sent_are_known() {
        let running = LastInvocation {
            invocation: number(7),
            ended: false,
        };
        let death = killed(Cause::OutOfMemory, &[running]);
        let sent = |death: &Death, invocation| death.was_answered(number(invocation), DEPTH);
        assert_eq!([6, 7, 8].map(|number| sent(&death, number)), [true, false, false]);
        let ended = LastInvocation { ended: true, ..running };
        let death = killed(Cause::OutOfMemory, &[ended]);
        assert_eq!([6, 7, 8].map(|number| sent(&death, number)), [true, true, false]);
        assert!(!sent(&killed(Cause::OutOfMemory, &[]), 6));
    }

    #[test]
    fn a_deadline_concerns_only_the_invocation_that_ran() {
        let cause = Cause::Deadline {
            function: None,
            timeout_us: 5,
        };
        let death = killed(cause.clone(), &[]);
        assert!(matches!(death.error(unanswered(5, true), true), Error::Deadline { .. }));
        assert!(matches!(
            death.error(unanswered(6, false), true),
            Error::WorkerDied {
                ran: RunCertainty::No,
                ..
            }
        ));
        let running = LastInvocation {
            invocation: number(5),
            ended: false,
        };
        let death = killed(cause, &[running]);
        assert!(
            matches!(death.error(unanswered(5, false), false), Error::Deadline { .. }),
            "whose reply before it was lost"
        );
        assert!(matches!(
            death.error(unanswered(4, true), false),
            Error::WorkerDied {
                ran: RunCertainty::Unknown,
                ..
            }
        ));
    }
}
