//! Membership of an agent: the agent registers at a manager and reports to it. It registers again whenever the manager
//! does not know the agent or does not answer. Leases and invocations continue whether or not there is a manager.
//!
//! ```text
//!            answer                     every heartbeat
//!  Apart ─► Registering ─► Member ─────────────────────► Reporting ─┐
//!    ▲          │ no answer  ▲ ▲                 answer │   │       │ not known,
//!    └──────────┘            │ └────────────────────────┘   │       │ no answer
//!    └──────── backoff ──────┴──────────────────────────────┴───────┘
//! ```
//!
//! A manager may know another run of this agent, or may regard the present run as ended, because messages of an earlier
//! run arrived late. It then does not trust a registration, which may have been sent long ago: it sends a challenge,
//! and the agent registers again with the challenge as proof that it is alive.
//!
//! One question is under way at a time. An answer that comes too late is ignored. The totals that it would have
//! acknowledged are sent again; totals that arrive twice are billed once.

use std::time::Duration;

/// Pause between reports until the manager sets another.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Shortest pause that a manager may ask for.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(50);
/// Longest pause that a manager may ask for: after a longer silence the manager regards an agent as gone.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(10);
/// Longest pause between reports of active leases: usage since the last such report is lost if the node's disk is lost.
pub const TOTALS_EVERY_MAX: Duration = Duration::from_secs(120);
/// First pause after a failed attempt to register; it is doubled each time.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts to register, so that agents soon register again at a restarted manager.
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How long the agent waits for an answer of the manager.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long the agent waits for the answer to its last report.
pub const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// Number of a question to the manager. The agent assigns it, and never uses it twice in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId(pub u64);

/// Event that is reported to the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// Time passed.
    Tick,
    /// The manager has registered the agent.
    Registered {
        /// The answered question.
        ask: QuestionId,
        /// Pause between reports that the manager wants; if zero, the agent chooses.
        heartbeat: Duration,
        /// Identity of the manager's ledger. A different ledger does not contain what the previous ledger acknowledged.
        ledger: u64,
    },
    /// The manager knows another run, or regards this run as ended, and wants the agent to repeat a challenge.
    Challenged {
        /// The answered question.
        ask: QuestionId,
        /// The number to repeat.
        challenge: u64,
    },
    /// The manager has answered a report. If it does not know this run of the agent, it has accepted nothing, and the
    /// agent must register first.
    ReportAnswered {
        /// The answered question.
        ask: QuestionId,
        /// Whether the manager knows this run of the agent.
        known: bool,
        /// Pause until the next report that the manager wants; if zero, the pause stays as before.
        heartbeat: Duration,
        /// Period in which the manager wants reports of active leases; if zero, every report names them.
        totals_every: Duration,
    },
    /// There will be no answer to a question.
    Failed {
        /// The question without an answer.
        ask: QuestionId,
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
        ask: QuestionId,
        /// The manager's last challenge; 0 if there is none.
        proof: u64,
    },
    /// Report all totals that are owed and, if the report is whole, all active leases.
    Report {
        /// The question's number.
        ask: QuestionId,
        /// Whether the report names every active lease.
        whole: bool,
        /// Whether this is the agent's last report.
        leaving: bool,
    },
    /// The totals in this report are in the ledger.
    Acknowledged {
        /// The report.
        ask: QuestionId,
    },
    /// The totals in this report may or may not have arrived.
    Unacknowledged {
        /// The report.
        ask: QuestionId,
    },
    /// The manager has a ledger to which the agent has not reported before: all remembered totals are owed to this
    /// ledger.
    OweAgain,
    /// The manager knows the agent.
    Joined,
    /// The manager does not know the agent any more, or is silent.
    Lost,
    /// The last report was answered, or the agent no longer waits for its answer.
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MembershipState {
    Unregistered { again: Duration },
    Registering { ask: QuestionId, until: Duration },
    Member { next: Duration },
    Reporting { ask: QuestionId, until: Duration },
    Leaving { ask: QuestionId, until: Duration },
    Left,
}

/// Membership of an agent as a state machine: registers, reports, and says goodbye.
#[derive(Debug)]
pub struct Membership {
    state: MembershipState,
    asks: u64,
    heartbeat: Duration,
    backoff: Duration,
    ledger: Option<u64>,
    /// Time from which the next report is whole. Zero means that reports are whole until the manager has accepted one.
    next_whole: Duration,
    /// Time at which the report under way was made, if it is whole.
    whole: Option<Duration>,
    /// The last challenge since the last registration; 0 if there was none.
    proof: u64,
}

impl Membership {
    /// Makes the membership of an agent that starts at `now`. The first [`MembershipEvent::Tick`] registers the agent.
    pub fn new(now: Duration) -> Self {
        Self {
            state: MembershipState::Unregistered { again: now },
            asks: 0,
            heartbeat: HEARTBEAT,
            backoff: BACKOFF_MIN,
            ledger: None,
            next_whole: Duration::ZERO,
            whole: None,
            proof: 0,
        }
    }

    /// Latest time of the next call of [`step`](Self::step); `None` once the agent has left.
    pub fn next_step(&self) -> Option<Duration> {
        match self.state {
            MembershipState::Unregistered { again: at } | MembershipState::Member { next: at } => Some(at),
            MembershipState::Registering { until, .. }
            | MembershipState::Reporting { until, .. }
            | MembershipState::Leaving { until, .. } => Some(until),
            MembershipState::Left => None,
        }
    }

    /// Whether the manager knows the agent, according to the manager's last answer.
    pub fn is_member(&self) -> bool {
        matches!(
            self.state,
            MembershipState::Member { .. } | MembershipState::Reporting { .. } | MembershipState::Leaving { .. }
        )
    }

    /// Whether the agent has left.
    pub fn has_left(&self) -> bool {
        self.state == MembershipState::Left
    }

    /// Applies an event that happened at `now`, and returns the actions to carry out.
    pub fn step(&mut self, event: MembershipEvent, now: Duration) -> Vec<MembershipAction> {
        let mut actions = Vec::new();
        match event {
            MembershipEvent::Tick => {}
            MembershipEvent::Registered { ask, heartbeat, ledger } => {
                if matches!(self.state, MembershipState::Registering { ask: asked, .. } if asked == ask) {
                    self.on_registered(heartbeat, ledger, now, &mut actions);
                }
            }
            MembershipEvent::Challenged { ask, challenge } => {
                if matches!(self.state, MembershipState::Registering { ask: asked, .. } if asked == ask) {
                    // A second challenge in a row: the manager rejected the proof, so the agent waits before it
                    // tries again.
                    if std::mem::replace(&mut self.proof, challenge) == 0 {
                        self.state = MembershipState::Unregistered { again: now };
                    } else {
                        self.on_failed(now, &mut actions);
                    }
                }
            }
            MembershipEvent::ReportAnswered {
                ask,
                known,
                heartbeat,
                totals_every,
            } => match self.state {
                MembershipState::Reporting { ask: asked, .. } if asked == ask && known => {
                    self.set_heartbeat(heartbeat, self.heartbeat);
                    actions.push(MembershipAction::Acknowledged { ask });
                    if let Some(made) = self.whole {
                        self.next_whole = made + totals_every.min(TOTALS_EVERY_MAX);
                    }
                    self.state = MembershipState::Member {
                        next: now + self.heartbeat,
                    };
                }
                MembershipState::Reporting { ask: asked, .. } if asked == ask => {
                    actions.push(MembershipAction::Unacknowledged { ask });
                    actions.push(MembershipAction::Lost);
                    self.state = MembershipState::Unregistered { again: now };
                }
                MembershipState::Leaving { ask: asked, .. } if asked == ask => {
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
                if self.open_question() == Some(ask) {
                    self.on_failed(now, &mut actions);
                }
            }
            MembershipEvent::Leave => match self.state {
                MembershipState::Member { .. } => self.report(true, now, &mut actions),
                MembershipState::Reporting { ask, .. } => {
                    actions.push(MembershipAction::Unacknowledged { ask });
                    self.report(true, now, &mut actions);
                }
                MembershipState::Unregistered { .. } | MembershipState::Registering { .. } => self.leave(&mut actions),
                MembershipState::Leaving { .. } | MembershipState::Left => {}
            },
        }
        self.pass_time(now, &mut actions);
        actions
    }

    fn open_question(&self) -> Option<QuestionId> {
        match self.state {
            MembershipState::Registering { ask, .. }
            | MembershipState::Reporting { ask, .. }
            | MembershipState::Leaving { ask, .. } => Some(ask),
            MembershipState::Unregistered { .. } | MembershipState::Member { .. } | MembershipState::Left => None,
        }
    }

    fn next_ask(&mut self) -> QuestionId {
        self.asks += 1;
        QuestionId(self.asks)
    }

    fn on_registered(&mut self, heartbeat: Duration, ledger: u64, now: Duration, actions: &mut Vec<MembershipAction>) {
        self.set_heartbeat(heartbeat, HEARTBEAT);
        self.backoff = BACKOFF_MIN;
        self.proof = 0;
        // This may be another manager, or a restarted manager that has lost its memory, so the next report must be
        // whole.
        self.next_whole = now;
        actions.push(MembershipAction::Joined);
        if self.ledger.replace(ledger) != Some(ledger) {
            actions.push(MembershipAction::OweAgain);
        }
        self.state = MembershipState::Member { next: now };
    }

    /// Sets the pause that the manager wants, or `ours` if the manager leaves the choice to the agent.
    fn set_heartbeat(&mut self, wanted: Duration, ours: Duration) {
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
            MembershipState::Leaving {
                ask,
                until: now + GOODBYE_LIMIT,
            }
        } else {
            MembershipState::Reporting {
                ask,
                until: now + ANSWER_LIMIT,
            }
        };
    }

    fn leave(&mut self, actions: &mut Vec<MembershipAction>) {
        actions.push(MembershipAction::Left);
        self.state = MembershipState::Left;
    }

    fn on_failed(&mut self, now: Duration, actions: &mut Vec<MembershipAction>) {
        match self.state {
            MembershipState::Registering { .. } => {
                self.state = MembershipState::Unregistered {
                    again: now + self.backoff,
                };
                self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
            }
            MembershipState::Reporting { ask, .. } => {
                actions.push(MembershipAction::Unacknowledged { ask });
                actions.push(MembershipAction::Lost);
                self.state = MembershipState::Unregistered { again: now };
            }
            MembershipState::Leaving { ask, .. } => {
                actions.push(MembershipAction::Unacknowledged { ask });
                self.leave(actions);
            }
            MembershipState::Unregistered { .. } | MembershipState::Member { .. } | MembershipState::Left => {}
        }
    }

    fn pass_time(&mut self, now: Duration, actions: &mut Vec<MembershipAction>) {
        if self.next_step().is_none_or(|due| now < due) {
            return;
        }
        match self.state {
            MembershipState::Registering { .. }
            | MembershipState::Reporting { .. }
            | MembershipState::Leaving { .. } => {
                self.on_failed(now, actions);
                // A lost member registers again without a pause: its manager may just have been started.
                self.pass_time(now, actions);
            }
            MembershipState::Unregistered { .. } => {
                let ask = self.next_ask();
                let proof = self.proof;
                actions.push(MembershipAction::Register { ask, proof });
                self.state = MembershipState::Registering {
                    ask,
                    until: now + ANSWER_LIMIT,
                };
            }
            MembershipState::Member { .. } => self.report(false, now, actions),
            MembershipState::Left => {}
        }
    }
}

#[cfg(test)]
mod tests;
