//! Getting a lease, with patience.
//!
//! *Managed*: the manager is asked, and asks the agents. *Direct*: the client asks the agents themselves, in a
//! random order of its own, so that clients which begin at the same moment do not all queue at the same agent;
//! an agent that has announced to be full is left out. Once all have refused, both wait: the pause doubles, and
//! is drawn between its half and its whole, so that those who were refused together do not come back together.

use hotlease_wire::Refusal;
use hotlease_wire::ids::AgentId;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// First pause after everybody refused.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Who is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// The manager.
    Managed,
    /// These agents, the best first; the order is not followed, see the module.
    Direct(Vec<AgentId>),
}

/// How long it is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(pub Duration);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquisitionEvent {
    /// Time passed.
    Tick,
    /// There is a lease. Exactly one of this and `Refused` follows each question.
    Granted,
    /// There is none, or no answer in time.
    Refused(Refusal),
    /// An agent said, to whoever listens, whether it has room.
    Announced {
        /// Who.
        agent: AgentId,
        /// It has none.
        full: bool,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquisitionAction {
    /// Ask the manager for a lease.
    AskManager,
    /// Ask this agent.
    AskAgent(AgentId),
    /// It is over, without a lease.
    GiveUp(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting { until: Duration },
    Asking,
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Acquisition {
    way: Way,
    state: State,
    /// Agents that are still to be asked in this round.
    round: VecDeque<AgentId>,
    full: BTreeSet<AgentId>,
    pause: Duration,
    give_up: Duration,
    last: Refusal,
    random: SmallRng,
}

impl Acquisition {
    /// Begins at `now`; the first [`AcquisitionEvent::Tick`] asks. `seed` decides what is left to chance.
    pub fn new(way: Way, patience: Patience, seed: u64, now: Duration) -> Self {
        Self {
            way,
            state: State::Waiting { until: now },
            round: VecDeque::new(),
            full: BTreeSet::new(),
            pause: PAUSE_MIN,
            give_up: now.saturating_add(patience.0),
            last: Refusal::NoAgent,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// When to call [`step`](Self::step) at the latest.
    pub fn due(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Asking | State::Over => None,
        }
    }

    /// Whether there is a lease, or there will be none.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Takes note of what happened at `now`.
    pub fn step(&mut self, event: AcquisitionEvent, now: Duration) -> Option<AcquisitionAction> {
        match (event, self.state) {
            (AcquisitionEvent::Announced { agent, full: true }, _) => {
                self.full.insert(agent);
                None
            }
            (AcquisitionEvent::Announced { agent, full: false }, _) => {
                self.full.remove(&agent);
                None
            }
            (AcquisitionEvent::Tick, State::Waiting { until }) if until <= now => self.begin_round(now),
            (AcquisitionEvent::Granted, State::Asking) => {
                self.state = State::Over;
                None
            }
            (AcquisitionEvent::Refused(refusal), State::Asking) => self.refused(refusal, now),
            _ => None,
        }
    }

    fn begin_round(&mut self, now: Duration) -> Option<AcquisitionAction> {
        let agents = match &self.way {
            Way::Managed => {
                self.state = State::Asking;
                return Some(AcquisitionAction::AskManager);
            }
            Way::Direct(agents) => agents,
        };
        let mut round: Vec<_> = agents
            .iter()
            .copied()
            .filter(|agent| !self.full.contains(agent))
            .collect();
        round.shuffle(&mut self.random);
        self.round = round.into();
        self.ask_next(now)
    }

    fn ask_next(&mut self, now: Duration) -> Option<AcquisitionAction> {
        match self.round.pop_front() {
            Some(agent) => {
                self.state = State::Asking;
                Some(AcquisitionAction::AskAgent(agent))
            }
            None => self.wait(now),
        }
    }

    fn refused(&mut self, refusal: Refusal, now: Duration) -> Option<AcquisitionAction> {
        if !may_pass(&refusal) {
            return self.give_up(refusal);
        }
        self.last = refusal;
        self.ask_next(now)
    }

    fn wait(&mut self, now: Duration) -> Option<AcquisitionAction> {
        let nanos = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
        let until = now + Duration::from_nanos(self.random.random_range(nanos / 2..=nanos));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if until > self.give_up {
            let last = self.last.clone();
            return self.give_up(last);
        }
        self.state = State::Waiting { until };
        None
    }

    fn give_up(&mut self, refusal: Refusal) -> Option<AcquisitionAction> {
        self.state = State::Over;
        Some(AcquisitionAction::GiveUp(refusal))
    }
}

/// Whether asking again later can help.
fn may_pass(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NoCapacity { .. }
            | Refusal::NoPlaces { .. }
            | Refusal::NoGpus { .. }
            | Refusal::NotTogether { .. }
            | Refusal::NoAgent
            | Refusal::TooMany { .. }
            | Refusal::Timeout { .. }
            | Refusal::Unavailable { .. }
            | Refusal::WorkerDied { .. }
            | Refusal::LeaseEnded(_)
            | Refusal::UnknownLease
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(count: u8) -> Vec<AgentId> {
        (0..count).map(|number| AgentId([number; 8])).collect()
    }

    fn full() -> AcquisitionEvent {
        AcquisitionEvent::Refused(Refusal::NoCapacity {
            asked: 1,
            free: 0,
            offered: 1,
        })
    }

    /// The agents asked in the first round.
    fn round(acquisition: &mut Acquisition) -> Vec<AgentId> {
        let mut asked = Vec::new();
        let mut action = acquisition.step(AcquisitionEvent::Tick, Duration::ZERO);
        while let Some(AcquisitionAction::AskAgent(agent)) = action {
            asked.push(agent);
            action = acquisition.step(full(), Duration::ZERO);
        }
        asked
    }

    #[test]
    fn each_client_asks_every_agent_once_a_round_in_an_order_of_its_own() {
        let patience = Patience(Duration::from_secs(60));
        let order = |seed| {
            let way = Way::Direct(agents(8));
            round(&mut Acquisition::new(way, patience, seed, Duration::ZERO))
        };
        let (first, second) = (order(1), order(2));
        assert_ne!(first, second);
        assert_eq!(first, order(1), "a seed replays");
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, agents(8));
    }

    #[test]
    fn who_announced_to_be_full_is_not_asked() {
        let way = Way::Direct(agents(3));
        let mut acquisition = Acquisition::new(way, Patience(Duration::ZERO), 1, Duration::ZERO);
        let announced = AcquisitionEvent::Announced {
            agent: AgentId([1; 8]),
            full: true,
        };
        assert_eq!(acquisition.step(announced, Duration::ZERO), None);
        let asked = round(&mut acquisition);
        assert_eq!(asked.len(), 2);
        assert!(!asked.contains(&AgentId([1; 8])));
    }

    #[test]
    fn pauses_grow_are_drawn_and_end_with_the_patience() {
        let patience = Patience(Duration::from_secs(10));
        let mut acquisition = Acquisition::new(Way::Managed, patience, 5, Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut pause = PAUSE_MIN;
        for _round in 0..1000 {
            let asked = acquisition.step(AcquisitionEvent::Tick, now);
            assert_eq!(asked, Some(AcquisitionAction::AskManager));
            if let Some(action) = acquisition.step(full(), now) {
                assert!(matches!(
                    action,
                    AcquisitionAction::GiveUp(Refusal::NoCapacity { .. })
                ));
                assert!(acquisition.is_over());
                assert!(now > Duration::from_secs(8), "it gave up at {now:?}");
                return;
            }
            let due = acquisition.due().expect("it waits");
            assert!(
                due - now >= pause / 2 && due - now <= pause,
                "{:?} of {pause:?}",
                due - now
            );
            now = due;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        panic!("it never gave up");
    }

    #[test]
    fn what_no_patience_helps_against_ends_it_at_once() {
        let patience = Patience(Duration::from_secs(10));
        let mut acquisition = Acquisition::new(Way::Managed, patience, 5, Duration::ZERO);
        assert!(acquisition.step(AcquisitionEvent::Tick, Duration::ZERO).is_some());
        let refusal = Refusal::WrongTenant;
        let given_up = acquisition.step(AcquisitionEvent::Refused(refusal.clone()), Duration::ZERO);
        assert_eq!(given_up, Some(AcquisitionAction::GiveUp(refusal)));
    }

    #[test]
    fn without_patience_everybody_is_asked_once() {
        let mut acquisition = Acquisition::new(Way::Managed, Patience(Duration::ZERO), 5, Duration::ZERO);
        assert!(acquisition.step(AcquisitionEvent::Tick, Duration::ZERO).is_some());
        let given_up = acquisition.step(full(), Duration::ZERO);
        assert!(matches!(given_up, Some(AcquisitionAction::GiveUp(_))));
    }
}
