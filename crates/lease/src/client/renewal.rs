//! Renewal of a lease, and detection of its loss.
//!
//! The agent's time to live begins when it receives a renewal, which is after the client sent it. The client's time to
//! live begins when it sends the renewal. So the lease never expires later for the client than for the agent, as far as
//! their clocks run equally fast. [`FENCED_AFTER`] is added so that a client does not lose its lease because the agent
//! is silent for a moment. After this time the lease is lost, even if the agent reports otherwise later: the client has
//! resolved its invocations and may have asked for another lease.

use std::time::Duration;

/// Time after the known expiry at which a client regards a silent agent's lease as lost.
pub const FENCED_AFTER: Duration = Duration::from_secs(1);
/// Shortest pause between renewals.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Event that is reported to the renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalEvent {
    /// Time passed.
    Tick,
    /// The agent renewed the lease. Each question is followed by exactly one of `Renewed` and `NotRenewed`.
    Renewed {
        /// The new time to live.
        ttl: Duration,
    },
    /// The agent did not renew the lease, or did not answer in time.
    NotRenewed,
    /// Like `Tick` or `NotRenewed`, but a request is pending that may take long at the agent. While the agent works on
    /// such a request, it renews the lease itself once each period.
    Pending {
        /// Time for which the oldest such request has been pending. If it is less than a period, the agent has perhaps
        /// not renewed the lease during this request yet.
        oldest: Duration,
    },
}

/// Action to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewalAction {
    /// Ask the agent to renew.
    Renew,
    /// Regard the lease as lost. Returned once, as the last action.
    Lost,
}

/// Renewal of one lease as a state machine.
#[derive(Debug)]
pub struct Renewal {
    ttl: Duration,
    /// Expiry by the last known renewal.
    expires: Duration,
    /// Time of the next question; `None` while the client waits for an answer.
    next: Option<Duration>,
    /// Time at which the last question was sent.
    sent: Duration,
    lost: bool,
    /// Whether the client asks for renewals at all.
    asks: bool,
}

impl Renewal {
    /// Makes the renewal of a lease whose attachment was requested at `sent` and confirmed at `now`.
    pub fn new(ttl: Duration, sent: Duration, now: Duration) -> Self {
        let mut renewal = Self {
            ttl,
            expires: sent + ttl,
            next: None,
            sent,
            lost: false,
            asks: true,
        };
        renewal.ask_again(now);
        renewal
    }

    /// Never asks the agent to renew: the lease ends after its time to live.
    #[must_use]
    pub fn without_asking(self) -> Self {
        Self {
            asks: false,
            next: None,
            ..self
        }
    }

    /// When to call [`step`](Self::step) at the latest.
    pub fn next_step(&self) -> Option<Duration> {
        let fenced = self.fenced_at();
        match (self.lost, self.next) {
            (true, _) => None,
            (false, Some(next)) => Some(next.min(fenced)),
            (false, None) => Some(fenced),
        }
    }

    /// When the lease is lost, if it is not renewed.
    pub fn fenced_at(&self) -> Duration {
        self.expires + FENCED_AFTER
    }

    /// Time between renewals, which are three times as frequent as necessary.
    fn period(&self) -> Duration {
        (self.ttl / 3).max(PAUSE_MIN)
    }

    /// Whether the lease is lost.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Applies an event that happened at `now`; returns the action to carry out, if any.
    pub fn step(&mut self, event: RenewalEvent, now: Duration) -> Option<RenewalAction> {
        if self.lost {
            return None;
        }
        match event {
            // If the answer comes too late, the lease is lost, see below.
            RenewalEvent::Renewed { ttl } if now < self.fenced_at() => {
                self.ttl = ttl;
                self.expires = self.sent + ttl;
                self.ask_again(now);
            }
            RenewalEvent::NotRenewed => self.ask_again(now),
            RenewalEvent::Pending { oldest } if oldest < self.period() && self.next.is_none() => self.ask_again(now),
            RenewalEvent::Pending { oldest } if oldest >= self.period() => {
                self.sent = now;
                self.expires = now + self.ttl;
                self.ask_again(now);
            }
            RenewalEvent::Renewed { .. } | RenewalEvent::Pending { .. } | RenewalEvent::Tick => {}
        }
        if now >= self.fenced_at() {
            self.lost = true;
            return Some(RenewalAction::Lost);
        }
        if self.next.is_some_and(|next| next <= now) {
            self.next = None;
            self.sent = now;
            return Some(RenewalAction::Renew);
        }
        None
    }

    /// Schedules the next question.
    fn ask_again(&mut self, now: Duration) {
        self.next = self.asks.then(|| now + self.period());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_is_renewed_each_third_of_its_time() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, Duration::ZERO);
        assert_eq!(renewal.next_step(), Some(SECOND));
        assert_eq!(renewal.step(RenewalEvent::Tick, SECOND), Some(RenewalAction::Renew));
        assert_eq!(renewal.step(RenewalEvent::Tick, SECOND), None, "it asks once at a time");
        let renewed = RenewalEvent::Renewed { ttl: TTL };
        assert_eq!(renewal.step(renewed, SECOND), None);
        assert_eq!(
            (renewal.next_step(), renewal.fenced_at()),
            (Some(2 * SECOND), 5 * SECOND)
        );
    }

    #[test]
    fn a_silent_agents_lease_is_lost_a_second_after_its_expiry() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, Duration::ZERO);
        assert_eq!(renewal.step(RenewalEvent::Tick, SECOND), Some(RenewalAction::Renew));
        assert_eq!(renewal.next_step(), Some(TTL + FENCED_AFTER));
        let moment = Duration::from_millis(1);
        assert_eq!(renewal.step(RenewalEvent::Tick, TTL + FENCED_AFTER - moment), None);
        let lost = Some(RenewalAction::Lost);
        assert_eq!(renewal.step(RenewalEvent::Tick, TTL + FENCED_AFTER), lost);
        assert_eq!((renewal.next_step(), renewal.is_lost()), (None, true));
        let late = RenewalEvent::Renewed { ttl: TTL };
        assert_eq!(renewal.step(late, 5 * SECOND), None, "what is lost stays lost");
    }

    #[test]
    fn a_lease_that_the_agent_keeps_is_not_lost() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, Duration::ZERO);
        for second in 1..60 {
            let pending = RenewalEvent::Pending {
                oldest: second * SECOND,
            };
            assert_eq!(renewal.step(pending, second * SECOND), None);
        }
        assert_eq!(renewal.fenced_at(), 59 * SECOND + TTL + FENCED_AFTER);
    }

    #[test]
    fn a_lease_is_renewed_also_while_one_short_request_follows_another() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, Duration::ZERO);
        let moment = Duration::from_millis(1);
        let pending = RenewalEvent::Pending {
            oldest: SECOND - moment,
        };
        assert_eq!(renewal.step(pending, SECOND), Some(RenewalAction::Renew));
        assert_eq!(renewal.step(pending, 2 * SECOND), None, "there was no answer in time");
        assert_eq!(renewal.step(pending, 3 * SECOND), Some(RenewalAction::Renew));
        let answered = RenewalEvent::Renewed { ttl: TTL };
        assert_eq!(renewal.step(answered, 3 * SECOND), None);
        assert_eq!(renewal.fenced_at(), 3 * SECOND + TTL + FENCED_AFTER);
    }

    #[test]
    fn a_lease_that_is_not_to_be_renewed_is_lost_after_its_time() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, Duration::ZERO).without_asking();
        assert_eq!(renewal.next_step(), Some(TTL + FENCED_AFTER));
        let pending = RenewalEvent::Pending { oldest: SECOND };
        assert_eq!(renewal.step(pending, SECOND), None);
        assert_eq!(renewal.step(RenewalEvent::Tick, TTL), None, "nothing is asked");
        let lost = Some(RenewalAction::Lost);
        assert_eq!(renewal.step(RenewalEvent::Tick, SECOND + TTL + FENCED_AFTER), lost);
    }

    #[test]
    fn the_time_counts_from_the_question_and_not_from_its_answer() {
        let mut renewal = Renewal::new(TTL, Duration::ZERO, SECOND);
        assert_eq!(renewal.fenced_at(), TTL + FENCED_AFTER);
        assert_eq!(renewal.step(RenewalEvent::Tick, 2 * SECOND), Some(RenewalAction::Renew));
        let answered = RenewalEvent::Renewed { ttl: TTL };
        assert_eq!(renewal.step(answered, 3 * SECOND), None);
        assert_eq!(renewal.fenced_at(), 2 * SECOND + TTL + FENCED_AFTER);
    }
}
