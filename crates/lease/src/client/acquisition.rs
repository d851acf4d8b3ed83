//! Acquisition of a lease: which party a client asks, how long it waits, and when it gives up.
//!
//! *Managed*: the client asks the manager, which asks the agents. *Direct*: the client asks the agents itself, in a
//! random order, so that clients which begin at the same moment do not all queue at one agent. An agent that has
//! announced that it is full is left out. Once the manager, or every agent, has refused, the client pauses. The longest
//! pause doubles each time, and the pause is drawn between half and all of it, so that clients which were refused
//! together do not ask again together. The last pause ends with the patience. One last round follows.
//!
//! *Refusals that do not pass.* Waiting helps only if the reason of a refusal may pass by itself
//! ([`Rejection::may_pass`]). An agent that refuses for another reason is not asked again, and the next agent is asked
//! at once. Once no agent is left that could serve the lease, the acquisition is over, however long the patience, and
//! its error contains the reason of each agent. A manager refuses for all agents. The client does not wait for agents
//! that may join later, but asks an agent that joins during a pause at once.

use crate::request::EXCLUDED_MAX;
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use hotlease_wire::rejection::objections::Objections;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// First pause after all agents have refused.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause after all agents have refused.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// If some agents cannot serve the lease, further agents are tried until this time and the patience are over.
const TRIED_FOR: Duration = Duration::from_secs(5);

/// The party that the client asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantSource {
    /// The manager.
    Managed,
    /// These agents, asked in random order, see the module.
    Direct(Vec<AgentId>),
}

/// How long a client tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(pub Duration);

/// Event of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquisitionEvent {
    /// Time passed.
    Tick,
    /// There is a lease. Exactly one of `Granted`, `Refused` and `RefusedAt` follows each question.
    Granted,
    /// There is no lease, or there was no answer in time. If the manager was asked, the refusal comes from the manager.
    Refused(Rejection),
    /// An agent refuses: the agent that was asked, or an agent that granted a lease which then could not be used.
    RefusedAt {
        /// The agent.
        agent: AgentId,
        /// Name of the agent's node, for people.
        node: String,
        /// Reason of the refusal.
        refusal: Rejection,
    },
    /// An agent announced to all listeners whether it has room.
    Announced {
        /// The agent.
        agent: AgentId,
        /// Whether the agent has no room.
        full: bool,
    },
    /// There is a new list of the agents that a client may ask directly: an agent may have joined.
    Agents(Vec<AgentId>),
}

/// Action to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquisitionAction {
    /// Ask the manager for a lease.
    AskManager {
        /// Agents to leave out.
        without: BTreeSet<AgentId>,
    },
    /// Ask this agent.
    AskAgent(AgentId),
    /// The acquisition has ended without a lease.
    GiveUp(Rejection),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcquisitionState {
    Waiting { until: Duration },
    Asking,
    Ended,
}

/// Acquisition of one lease as a state machine: asks, waits, and gives up.
#[derive(Debug)]
pub struct Acquisition {
    way: GrantSource,
    state: AcquisitionState,
    /// Agents that are still to be asked in this round.
    round: VecDeque<AgentId>,
    /// Agents that have announced that they are full.
    full: BTreeSet<AgentId>,
    /// Agents that are not asked again.
    without: BTreeSet<AgentId>,
    /// Reasons of the agents in `without`.
    objections: Objections,
    /// Longest pause before the next round.
    pause: Duration,
    begun: Duration,
    /// Time at which the patience ends.
    give_up: Duration,
    /// The latest refusal that may pass, if there was one.
    last: Option<Rejection>,
    random: SmallRng,
}

impl Acquisition {
    /// Begins at `now`; the first [`AcquisitionEvent::Tick`] asks. `seed` is the seed of the random choices.
    pub fn new(way: GrantSource, patience: Patience, seed: u64, now: Duration) -> Self {
        Self {
            way,
            state: AcquisitionState::Waiting { until: now },
            round: VecDeque::new(),
            full: BTreeSet::new(),
            without: BTreeSet::new(),
            objections: Objections::default(),
            pause: PAUSE_MIN,
            begun: now,
            give_up: now.saturating_add(patience.0),
            last: None,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Latest time of the next call of [`step`](Self::step); `None` if only an event requires a call.
    pub fn next_step(&self) -> Option<Duration> {
        match self.state {
            AcquisitionState::Waiting { until } => Some(until),
            AcquisitionState::Asking | AcquisitionState::Ended => None,
        }
    }

    /// Whether the acquisition has ended, with a lease or without one.
    pub fn is_over(&self) -> bool {
        self.state == AcquisitionState::Ended
    }

    /// Applies an event that happened at `now`; returns the action to carry out, if any.
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
            (AcquisitionEvent::Tick, AcquisitionState::Waiting { until }) if until <= now => self.begin_round(now),
            (AcquisitionEvent::Agents(agents), state) => {
                let GrantSource::Direct(known) = &mut self.way else {
                    return None;
                };
                *known = agents;
                match state {
                    AcquisitionState::Waiting { .. } => self.begin_round(now),
                    AcquisitionState::Asking | AcquisitionState::Ended => None,
                }
            }
            (AcquisitionEvent::Granted, AcquisitionState::Asking) => {
                self.state = AcquisitionState::Ended;
                None
            }
            (AcquisitionEvent::Refused(refusal), AcquisitionState::Asking) if refusal.may_pass() => {
                self.last = Some(refusal);
                self.ask_next(now)
            }
            // The manager refuses for all agents. For agents that have refused before, their own reasons are reported.
            (AcquisitionEvent::Refused(refusal), AcquisitionState::Asking) => {
                self.objections.add("the other agents", refusal);
                self.give_up(self.objections.sum())
            }
            (AcquisitionEvent::RefusedAt { refusal, .. }, AcquisitionState::Asking) if refusal.may_pass() => {
                self.last = Some(refusal);
                self.ask_next(now)
            }
            (AcquisitionEvent::RefusedAt { agent, node, refusal }, AcquisitionState::Asking) => {
                self.without.insert(agent);
                self.objections.add(&node, refusal);
                self.ask_another(now)
            }
            _ => None,
        }
    }

    fn begin_round(&mut self, now: Duration) -> Option<AcquisitionAction> {
        let agents = match &self.way {
            GrantSource::Managed => return Some(self.ask_manager()),
            GrantSource::Direct(agents) => agents,
        };
        let mut round: Vec<_> = agents
            .iter()
            .copied()
            .filter(|agent| !self.full.contains(agent) && !self.without.contains(agent))
            .collect();
        round.shuffle(&mut self.random);
        self.round = round.into();
        self.ask_next(now)
    }

    fn ask_next(&mut self, now: Duration) -> Option<AcquisitionAction> {
        match self.round.pop_front() {
            Some(agent) => {
                self.state = AcquisitionState::Asking;
                Some(AcquisitionAction::AskAgent(agent))
            }
            None => self.wait(now),
        }
    }

    fn ask_manager(&mut self) -> AcquisitionAction {
        self.state = AcquisitionState::Asking;
        AcquisitionAction::AskManager {
            without: self.without.clone(),
        }
    }

    /// Asks an agent that has not refused for good.
    fn ask_another(&mut self, now: Duration) -> Option<AcquisitionAction> {
        let are_left = match &self.way {
            GrantSource::Managed => self.without.len() < EXCLUDED_MAX,
            GrantSource::Direct(agents) => agents.iter().any(|agent| !self.without.contains(agent)),
        };
        if !are_left || now > self.give_up.max(self.begun + TRIED_FOR) {
            return self.give_up(self.objections.sum());
        }
        match self.way {
            GrantSource::Managed => Some(self.ask_manager()),
            GrantSource::Direct(_) => self.ask_next(now),
        }
    }

    fn wait(&mut self, now: Duration) -> Option<AcquisitionAction> {
        if now >= self.give_up {
            // Agents that never serve the lease do not matter here: a full agent may serve a client with more patience.
            let last = self.last.take().unwrap_or_else(|| match self.objections.is_empty() {
                true => Rejection::NoAgent,
                false => Rejection::Unavailable {
                    what: "every agent that could serve the lease: each has announced that it is full".into(),
                },
            });
            return self.give_up(last);
        }
        let nanos = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
        let pause = Duration::from_nanos(self.random.random_range(nanos / 2..=nanos));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.state = AcquisitionState::Waiting {
            until: (now + pause).min(self.give_up),
        };
        None
    }

    fn give_up(&mut self, refusal: Rejection) -> Option<AcquisitionAction> {
        self.state = AcquisitionState::Ended;
        Some(AcquisitionAction::GiveUp(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(count: u8) -> Vec<AgentId> {
        (0..count).map(|number| AgentId([number; 8])).collect()
    }

    fn full() -> AcquisitionEvent {
        AcquisitionEvent::Refused(Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 1,
        })
    }

    /// The agents asked in the first round, in order.
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
            let way = GrantSource::Direct(agents(8));
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
    fn an_agent_that_announced_to_be_full_is_not_asked() {
        let way = GrantSource::Direct(agents(3));
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
    fn pauses_grow_are_drawn_and_the_last_try_is_at_the_end_of_the_patience() {
        for patience in [Duration::from_secs(1), Duration::from_secs(10)] {
            uses_up(patience);
        }
    }

    /// Checks that a client with this patience asks for the last time when the patience ends.
    fn uses_up(patience: Duration) {
        let mut acquisition = Acquisition::new(GrantSource::Managed, Patience(patience), 5, Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut pause = PAUSE_MIN;
        for _round in 0..1000 {
            let asked = acquisition.step(AcquisitionEvent::Tick, now);
            assert!(matches!(asked, Some(AcquisitionAction::AskManager { .. })));
            if let Some(action) = acquisition.step(full(), now) {
                assert!(matches!(
                    action,
                    AcquisitionAction::GiveUp(Rejection::NoCapacity { .. })
                ));
                assert!(acquisition.is_over());
                assert_eq!(now, patience, "the time of the last try");
                return;
            }
            let due = acquisition.next_step().expect("it waits");
            assert!(
                due - now <= pause && (due - now >= pause / 2 || due == patience),
                "{:?} of {pause:?}",
                due - now
            );
            now = due;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        panic!("it never gave up");
    }

    #[test]
    fn a_refusal_that_does_not_pass_ends_the_acquisition_at_once() {
        let patience = Patience(Duration::from_secs(10));
        let mut acquisition = Acquisition::new(GrantSource::Managed, patience, 5, Duration::ZERO);
        assert!(acquisition.step(AcquisitionEvent::Tick, Duration::ZERO).is_some());
        let refusal = Rejection::WrongTenant;
        let given_up = acquisition.step(AcquisitionEvent::Refused(refusal.clone()), Duration::ZERO);
        assert_eq!(given_up, Some(AcquisitionAction::GiveUp(refusal)));
    }

    fn cannot(agent: u8, why: &str) -> AcquisitionEvent {
        AcquisitionEvent::RefusedAt {
            agent: AgentId([agent; 8]),
            node: format!("n{agent}"),
            refusal: Rejection::CodeRejected { why: why.into() },
        }
    }

    fn manager_without(agents: &[u8]) -> Option<AcquisitionAction> {
        let without = agents.iter().map(|agent| AgentId([*agent; 8])).collect();
        Some(AcquisitionAction::AskManager { without })
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn an_agent_that_cannot_serve_it_is_left_out_and_the_next_is_asked_at_once() {
        for patience in [0, 30] {
            let patience = Patience(Duration::from_secs(patience));
            let mut acquisition = Acquisition::new(GrantSource::Managed, patience, 5, NOW);
            assert_eq!(acquisition.step(AcquisitionEvent::Tick, NOW), manager_without(&[]));
            assert_eq!(acquisition.step(cannot(1, "no libm"), NOW), manager_without(&[1]));
            assert_eq!(acquisition.step(cannot(2, "no libc"), NOW), manager_without(&[1, 2]));
            // Only these two agents could serve the lease.
            let nowhere = AcquisitionEvent::Refused(Rejection::NoSuitableAgent { reasons: vec![] });
            let Some(AcquisitionAction::GiveUp(refusal)) = acquisition.step(nowhere, NOW) else {
                panic!("it waits for an agent that may come");
            };
            let told = refusal.to_string();
            assert!(told.contains("n1: ") && told.contains("no libm"), "{told}");
            assert!(told.contains("n2: ") && told.contains("no libc"), "{told}");
        }
    }

    #[test]
    fn a_reason_that_all_agents_give_is_reported_once() {
        let mut acquisition = Acquisition::new(GrantSource::Managed, Patience(NOW), 5, NOW);
        acquisition.step(AcquisitionEvent::Tick, NOW);
        acquisition.step(cannot(1, "no libm"), NOW);
        acquisition.step(cannot(2, "no libm"), NOW);
        let nowhere = AcquisitionEvent::Refused(Rejection::NoSuitableAgent { reasons: vec![] });
        let why = "no libm".into();
        assert_eq!(
            acquisition.step(nowhere, NOW),
            Some(AcquisitionAction::GiveUp(Rejection::CodeRejected { why }))
        );
    }

    #[test]
    fn full_agents_are_waited_for_though_another_one_cannot_serve_the_lease() {
        let patience = Patience(Duration::from_secs(10));
        let mut acquisition = Acquisition::new(GrantSource::Managed, patience, 5, NOW);
        acquisition.step(AcquisitionEvent::Tick, NOW);
        acquisition.step(cannot(1, "no libm"), NOW);
        assert_eq!(acquisition.step(full(), NOW), None);
        let due = acquisition.next_step().expect("it waits");
        assert_eq!(acquisition.step(AcquisitionEvent::Tick, due), manager_without(&[1]));
        let late = Duration::from_secs(11);
        let Some(AcquisitionAction::GiveUp(refusal)) = acquisition.step(full(), late) else {
            panic!("its patience is over");
        };
        assert!(matches!(refusal, Rejection::NoCapacity { .. }), "{refusal}");
        assert!(refusal.may_pass(), "a client with more patience is served");
    }

    #[test]
    fn directly_each_agent_is_asked_until_all_have_refused_for_good() {
        let patience = Patience(Duration::from_secs(30));
        let mut acquisition = Acquisition::new(GrantSource::Direct(agents(3)), patience, 5, NOW);
        let mut asked = BTreeSet::new();
        let mut action = acquisition.step(AcquisitionEvent::Tick, NOW);
        while let Some(AcquisitionAction::AskAgent(agent)) = action {
            assert!(asked.insert(agent), "{agent} was asked twice");
            action = acquisition.step(cannot(agent.0[0], "no libm"), NOW);
        }
        assert_eq!(asked.len(), 3);
        assert!(matches!(
            action,
            Some(AcquisitionAction::GiveUp(Rejection::CodeRejected { .. }))
        ));
    }

    #[test]
    fn agents_are_tried_no_longer_than_patience_lasts_and_not_all_of_a_large_site() {
        let mut acquisition = Acquisition::new(GrantSource::Managed, Patience(NOW), 5, NOW);
        acquisition.step(AcquisitionEvent::Tick, NOW);
        let late = TRIED_FOR + Duration::from_millis(1);
        let action = acquisition.step(cannot(1, "no libm"), late);
        assert!(matches!(action, Some(AcquisitionAction::GiveUp(_))), "{action:?}");

        let patience = Patience(Duration::from_secs(3600));
        let mut acquisition = Acquisition::new(GrantSource::Managed, patience, 5, NOW);
        acquisition.step(AcquisitionEvent::Tick, NOW);
        let tried = (0..=u8::MAX).take_while(|agent| {
            let action = acquisition.step(cannot(*agent, "no libm"), NOW);
            matches!(action, Some(AcquisitionAction::AskManager { .. }))
        });
        assert_eq!(tried.count(), EXCLUDED_MAX - 1);
    }

    #[test]
    fn an_agent_that_joins_during_a_pause_is_asked_at_once() {
        let patience = Patience(Duration::from_secs(60));
        let mut acquisition = Acquisition::new(GrantSource::Direct(agents(2)), patience, 1, NOW);
        for full in [0, 1] {
            let announced = AcquisitionEvent::Announced {
                agent: AgentId([full; 8]),
                full: true,
            };
            acquisition.step(announced, NOW);
        }
        assert_eq!(acquisition.step(AcquisitionEvent::Tick, NOW), None, "both are full");
        assert!(acquisition.next_step().is_some_and(|due| due > NOW), "it waits");
        let joined = acquisition.step(AcquisitionEvent::Agents(agents(3)), NOW);
        assert_eq!(joined, Some(AcquisitionAction::AskAgent(AgentId([2; 8]))));
        // If another agent joins while this agent is asked, the new agent is asked in the next round.
        assert_eq!(acquisition.step(AcquisitionEvent::Agents(agents(4)), NOW), None);
        assert_eq!(acquisition.step(AcquisitionEvent::Granted, NOW), None);
        assert!(acquisition.is_over());
    }

    #[test]
    fn without_patience_everybody_is_asked_once() {
        let mut acquisition = Acquisition::new(GrantSource::Managed, Patience(Duration::ZERO), 5, Duration::ZERO);
        assert!(acquisition.step(AcquisitionEvent::Tick, Duration::ZERO).is_some());
        let given_up = acquisition.step(full(), Duration::ZERO);
        assert!(matches!(given_up, Some(AcquisitionAction::GiveUp(_))));
    }
}
