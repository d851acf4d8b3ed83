//! Belonging to a manager: register, report, and begin anew whenever the manager does not know us or does
//! not answer. Leases and invocations go on whether or not there is a manager.
//!
//! ```text
//!            answer                     every heartbeat
//!  Apart ─► Registering ─► Member ─────────────────────► Reporting ─┐
//!    ▲          │ no answer  ▲ ▲                 answer │   │       │ not known,
//!    └──────────┘            │ └────────────────────────┘   │       │ no answer
//!    └──────── backoff ──────┴──────────────────────────────┴───────┘
//! ```
//!
//! A manager that knows another run of this agent, or takes ours for one that is over because an earlier one's words
//! came late, does not believe what may have been sent long ago: it challenges us, and we register again with the
//! challenge as proof that we live.
//!
//! One question is under way at a time. An answer that comes after its time counts for nothing: what it
//! would have acknowledged is sent again, and totals that arrive twice are billed once.

use std::time::Duration;

/// Pause between reports until the manager says another.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Shortest pause that a manager may ask for.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(50);
/// Longest; beyond, its own suspicion would be the rule.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(10);
/// Longest pause between reports of leases that go on: so much of their usage is lost with the node's disk.
pub const TOTALS_EVERY_MAX: Duration = Duration::from_secs(120);
/// First pause after a failed attempt to register; doubled each time.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest: a manager that was started again knows its agents soon after.
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How long a manager may take to answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long the goodbye may take.
pub const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// One question to the manager; numbered by the agent, never reused in a run of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ask(pub u64);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEvent {
    /// Time passed.
    Tick,
    /// The manager has noted us.
    Registered {
        /// Which question.
        ask: Ask,
        /// The pause between reports that it wants; zero: its choice is ours.
        heartbeat: Duration,
        /// Which ledger it keeps: another one knows nothing of what the last one acknowledged.
        ledger: u64,
    },
    /// The manager knows another run, or takes this one for over, and wants it to repeat this.
    Challenged {
        /// Which question.
        ask: Ask,
        /// What.
        challenge: u64,
    },
    /// The manager took a report, or (not known) wants us to register first and took nothing.
    Heard {
        /// Which question.
        ask: Ask,
        /// Whether it knows us in this run.
        known: bool,
        /// The pause until the next report that it wants; zero: as before.
        heartbeat: Duration,
        /// How often it wants to hear of leases that go on; zero: in every report.
        totals_every: Duration,
    },
    /// There is no answer and there will be none.
    Failed {
        /// Which question.
        ask: Ask,
    },
    /// The agent stops: say goodbye.
    Leave,
}

/// What is to be done, in this order.
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
        /// It names every active lease.
        whole: bool,
        /// It is the last one.
        leaving: bool,
    },
    /// What this report carried is in the ledger.
    Acknowledged {
        /// The report.
        ask: Ask,
    },
    /// What this report carried may or may not have arrived.
    Unacknowledged {
        /// The report.
        ask: Ask,
    },
    /// The manager keeps a ledger that we have not reported to before: everything remembered is owed to it.
    OweAgain,
    /// The manager knows us.
    Joined,
    /// The manager does not know us any more, or is silent.
    Lost,
    /// The goodbye is said, or was given up on.
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

/// See the module.
#[derive(Debug)]
pub struct Membership {
    state: State,
    asks: u64,
    heartbeat: Duration,
    backoff: Duration,
    ledger: Option<u64>,
    /// When the next report is whole; with the first one that the manager hears.
    next_whole: Duration,
    /// When the report under way was made, if it is whole.
    whole: Option<Duration>,
    /// The last challenge since we were registered.
    proof: u64,
}

impl Membership {
    /// Of an agent that starts at `now`. The first [`MembershipEvent::Tick`] registers.
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

    /// When to call [`step`](Self::step) at the latest; never again once left.
    pub fn due(&self) -> Option<Duration> {
        match self.state {
            State::Apart { again: at } | State::Member { next: at } => Some(at),
            State::Registering { until, .. }
            | State::Reporting { until, .. }
            | State::Leaving { until, .. } => Some(until),
            State::Left => None,
        }
    }

    /// Whether the manager knows us, as far as we know.
    pub fn is_member(&self) -> bool {
        matches!(
            self.state,
            State::Member { .. } | State::Reporting { .. } | State::Leaving { .. }
        )
    }

    /// Whether the goodbye is over.
    pub fn has_left(&self) -> bool {
        self.state == State::Left
    }

    /// Takes note of what happened at `now`.
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
                    // Who is not believed either has time.
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
        // This may be another manager, or the same one without what it knew.
        self.next_whole = now;
        actions.push(MembershipAction::Joined);
        if self.ledger.replace(ledger) != Some(ledger) {
            actions.push(MembershipAction::OweAgain);
        }
        self.state = State::Member { next: now };
    }

    /// Takes the pause that the manager wants, or ours if it leaves us the choice.
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
