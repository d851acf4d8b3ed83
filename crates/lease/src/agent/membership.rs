//! Membership of an agent: it registers at a manager and reports to it, and begins anew whenever the manager does
//! not know the agent or does not answer. Leases and invocations go on whether or not there is a manager.
//!
//! ```text
//!            answer                     every heartbeat
//!  Apart ─► Registering ─► Member ─────────────────────► Reporting ─┐
//!    ▲          │ no answer  ▲ ▲                 answer │   │       │ not known,
//!    └──────────┘            │ └────────────────────────┘   │       │ no answer
//!    └──────── backoff ──────┴──────────────────────────────┴───────┘
//! ```
//!
//! A manager may know another run of this agent, or take the present run for one that has ended because messages of
//! an earlier run came late. It does not trust a registration that may have been sent long ago: it sends a
//! challenge, and the agent registers again with the challenge as proof that it is alive.
//!
//! One question is under way at a time. An answer that comes too late is ignored: the totals that it would have
//! acknowledged are sent again, and totals that arrive twice are billed once.

use std::time::Duration;

/// Pause between reports until the manager sets another.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Shortest pause that a manager may ask for.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(50);
/// Longest pause that a manager may ask for; with a longer one its own suspicion would be the rule.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(10);
/// Longest pause between reports of active leases: their usage of that time is lost if the node's disk is lost.
pub const TOTALS_EVERY_MAX: Duration = Duration::from_secs(120);
/// First pause after a failed attempt to register; it is doubled each time.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts to register: a restarted manager knows its agents soon after.
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How long the agent waits for an answer of the manager.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long the agent waits for the answer to its last report.
pub const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// One question to the manager; numbered by the agent, never reused in a run of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask(pub u64);

/// Event that the membership is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// Time passed.
    Tick,
    /// The manager has registered the agent.
    Registered {
        /// The answered question.
        ask: Ask,
        /// Pause between reports that the manager wants; zero: the agent chooses.
        heartbeat: Duration,
        /// Identity of the manager's ledger: another ledger knows nothing of what the last one acknowledged.
        ledger: u64,
    },
    /// The manager knows another run, or takes this run for ended, and wants the agent to repeat a challenge.
    Challenged {
        /// The answered question.
        ask: Ask,
        /// The number to repeat.
        challenge: u64,
    },
    /// The manager accepted a report, or (not known) accepted nothing and wants the agent to register first.
    Heard {
        /// The answered question.
        ask: Ask,
        /// Whether the manager knows this run of the agent.
        known: bool,
        /// Pause until the next report that the manager wants; zero: as before.
        heartbeat: Duration,
        /// How often the manager wants reports of active leases; zero: in every report.
        totals_every: Duration,
    },
    /// There is no answer and there will be none.
    Failed {
        /// The question without an answer.
        ask: Ask,
    },
    /// The agent stops: send the last report.
    Leave,
}

/// Action that the agent is to carry out, in the order returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipAction {
    /// Ask to be registered.
    Register {
        /// The question's number.
        ask: Ask,
        /// The manager's last challenge; 0: none.
        proof: u64,
    },
    /// Report all totals that are owed and, if it is whole, all active leases.
    Report {
        /// The question's number.
        ask: Ask,
        /// Whether the report names every active lease.
        whole: bool,
        /// Whether the report is the last one.
        leaving: bool,
    },
    /// The totals that this report carried are in the ledger.
    Acknowledged {
        /// The report.
        ask: Ask,
    },
    /// The totals that this report carried may or may not have arrived.
    Unacknowledged {
        /// The report.
        ask: Ask,
    },
    /// The manager keeps a ledger that the agent has not reported to before: all remembered totals are owed to it.
    OweAgain,
    /// The manager knows the agent.
    Joined,
    /// The manager does not know the agent any more, or is silent.
    Lost,
    /// The last report was answered, or was given up on.
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Apart { again: Duration },
    Registering { ask: Ask, until: Duration },
    Member { next: Duration },
    Reporting { ask: Ask, until: Duration },
    Leaving { ask: Ask, until: Duration },
    Left,
}

/// Membership of an agent as a state machine: registers, reports, and says goodbye.
#[derive(Debug)]
pub struct Membership {
    state: State,
    asks: u64,
    heartbeat: Duration,
    backoff: Duration,
    ledger: Option<u64>,
    /// From this time on a report is whole; zero: the first report that the manager hears.
    next_whole: Duration,
    /// When the report under way was made, if it is whole.
    whole: Option<Duration>,
    /// The last challenge since the last registration; 0: none.
    proof: u64,
}

impl Membership {
    /// Membership of an agent that starts at `now`. The first [`MembershipEvent::Tick`] registers.
    pub fn new(now: Duration) -> Self {
        Self {
            state: State::Apart { again: now },
            asks: 0,
            heartbeat: HEARTBEAT,
            backoff: BACKOFF_MIN,
            ledger: None,
            next_whole: Duration::ZERO,
            whole: None,
            proof: 0,
        }
    }

    /// When to call [`step`](Self::step) at the latest; none once the agent has left.
    pub fn due(&self) -> Option<Duration> {
        match self.state {
            State::Apart { again: at } | State::Member { next: at } => Some(at),
            State::Registering { until, .. }
            | State::Reporting { until, .. }
            | State::Leaving { until, .. } => Some(until),
            State::Left => None,
        }
    }

    /// Whether the manager knows the agent, as far as the agent knows.
    pub fn is_member(&self) -> bool {
        matches!(
            self.state,
            State::Member { .. } | State::Reporting { .. } | State::Leaving { .. }
        )
    }

    /// Whether the agent has left.
    pub fn has_left(&self) -> bool {
        self.state == State::Left
    }

    /// Applies an event that happened at `now`, and returns the actions to carry out.
    pub fn step(&mut self, event: MembershipEvent, now: Duration) -> Vec<MembershipAction> {
        let mut actions = Vec::new();
        match event {
            MembershipEvent::Tick => {}
            MembershipEvent::Registered {
                ask,
                heartbeat,
                ledger,
            } => {
                if matches!(self.state, State::Registering { ask: asked, .. } if asked == ask) {
                    self.registered(heartbeat, ledger, now, &mut actions);
                }
            }
            MembershipEvent::Challenged { ask, challenge } => {
                if matches!(self.state, State::Registering { ask: asked, .. } if asked == ask) {
                    // A second challenge in a row: the manager rejected the proof, so the agent waits before it
                    // tries again.
                    if std::mem::replace(&mut self.proof, challenge) == 0 {
                        self.state = State::Apart { again: now };
                    } else {
                        self.failed(now, &mut actions);
                    }
                }
            }
            MembershipEvent::Heard {
                ask,
                known,
                heartbeat,
                totals_every,
            } => match self.state {
                State::Reporting { ask: asked, .. } if asked == ask && known => {
                    self.pause(heartbeat, self.heartbeat);
                    actions.push(MembershipAction::Acknowledged { ask });
                    if let Some(made) = self.whole {
                        self.next_whole = made + totals_every.min(TOTALS_EVERY_MAX);
                    }
                    self.state = State::Member {
                        next: now + self.heartbeat,
                    };
                }
                State::Reporting { ask: asked, .. } if asked == ask => {
                    actions.push(MembershipAction::Unacknowledged { ask });
                    actions.push(MembershipAction::Lost);
                    self.state = State::Apart { again: now };
                }
                State::Leaving { ask: asked, .. } if asked == ask => {
                    actions.push(if known {
                        MembershipAction::Acknowledged { ask }
                    } else {
                        MembershipAction::Unacknowledged { ask }
                    });
                    self.leave(&mut actions);
                }
                _ => {}
            },
            MembershipEvent::Failed { ask } => {
                if self.asked() == Some(ask) {
                    self.failed(now, &mut actions);
                }
            }
            MembershipEvent::Leave => match self.state {
                State::Member { .. } => self.report(true, now, &mut actions),
                State::Reporting { ask, .. } => {
                    actions.push(MembershipAction::Unacknowledged { ask });
                    self.report(true, now, &mut actions);
                }
                State::Apart { .. } | State::Registering { .. } => self.leave(&mut actions),
                State::Leaving { .. } | State::Left => {}
            },
        }
        self.pass_time(now, &mut actions);
        actions
    }

    fn asked(&self) -> Option<Ask> {
        match self.state {
            State::Registering { ask, .. } | State::Reporting { ask, .. } | State::Leaving { ask, .. } => {
                Some(ask)
            }
            State::Apart { .. } | State::Member { .. } | State::Left => None,
        }
    }

    fn next_ask(&mut self) -> Ask {
        self.asks += 1;
        Ask(self.asks)
    }

    fn registered(
        &mut self,
        heartbeat: Duration,
        ledger: u64,
        now: Duration,
        actions: &mut Vec<MembershipAction>,
    ) {
        self.pause(heartbeat, HEARTBEAT);
        self.backoff = BACKOFF_MIN;
        self.proof = 0;
        // This may be another manager, or the same one after it has lost its memory.
        self.next_whole = now;
        actions.push(MembershipAction::Joined);
        if self.ledger.replace(ledger) != Some(ledger) {
            actions.push(MembershipAction::OweAgain);
        }
        self.state = State::Member { next: now };
    }

    /// Sets the pause that the manager wants, or `ours` if the manager leaves the choice.
    fn pause(&mut self, wanted: Duration, ours: Duration) {
        self.heartbeat = match wanted {
            Duration::ZERO => ours,
            wanted => wanted.clamp(HEARTBEAT_MIN, HEARTBEAT_MAX),
        };
    }

    fn report(&mut self, leaving: bool, now: Duration, actions: &mut Vec<MembershipAction>) {
        let ask = self.next_ask();
        let whole = leaving || now >= self.next_whole;
        self.whole = whole.then_some(now);
        actions.push(MembershipAction::Report { ask, whole, leaving });
        self.state = if leaving {
            State::Leaving {
                ask,
                until: now + GOODBYE_LIMIT,
            }
        } else {
            State::Reporting {
                ask,
                until: now + ANSWER_LIMIT,
            }
        };
    }

    fn leave(&mut self, actions: &mut Vec<MembershipAction>) {
        actions.push(MembershipAction::Left);
        self.state = State::Left;
    }

    fn failed(&mut self, now: Duration, actions: &mut Vec<MembershipAction>) {
        match self.state {
            State::Registering { .. } => {
                self.state = State::Apart {
                    again: now + self.backoff,
                };
                self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
            }
            State::Reporting { ask, .. } => {
                actions.push(MembershipAction::Unacknowledged { ask });
                actions.push(MembershipAction::Lost);
                self.state = State::Apart { again: now };
            }
            State::Leaving { ask, .. } => {
                actions.push(MembershipAction::Unacknowledged { ask });
                self.leave(actions);
            }
            State::Apart { .. } | State::Member { .. } | State::Left => {}
        }
    }

    fn pass_time(&mut self, now: Duration, actions: &mut Vec<MembershipAction>) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        match self.state {
            State::Registering { .. } | State::Reporting { .. } | State::Leaving { .. } => {
                self.failed(now, actions);
                // A lost member registers again without a pause: its manager may just have been started.
                self.pass_time(now, actions);
            }
            State::Apart { .. } => {
                let ask = self.next_ask();
                let proof = self.proof;
                actions.push(MembershipAction::Register { ask, proof });
                self.state = State::Registering {
                    ask,
                    until: now + ANSWER_LIMIT,
                };
            }
            State::Member { .. } => self.report(false, now, actions),
            State::Left => {}
        }
    }
}

#[cfg(test)]
mod tests;
