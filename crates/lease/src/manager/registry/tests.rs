use super::*;
use crate::agent::HEARTBEAT;

fn agent(number: u8, offered: u32, free_cores: u32) -> AgentProfile {
    AgentProfile {
        id: AgentId([number; 8]),
        boot: BootId([number; 8]),
        address: format!("/run/agent{number}.sock"),
        session_socket: format!("/run/session{number}.sock"),
        endpoint: String::new(),
        owner: String::new(),
        cores: (0..offered).collect(),
        free_cores,
        places_per_core: 4,
        free_places: free_cores * 4,
        memory_bytes: 1 << 30,
        pool: 0,
        host: String::new(),
        availability: Availability::Serving,
        order: 0,
        gpus: 0,
        free_gpus: 0,
        gpu_numbers: Vec::new(),
        limits: None,
    }
}

fn numbered(number: usize) -> AgentProfile {
    AgentProfile {
        id: AgentId((number as u64).to_be_bytes()),
        ..agent(0, 1, 1)
    }
}

fn registry(agents: &[AgentProfile]) -> Registry {
    let mut registry = Registry::new();
    for agent in agents {
        registry.register(agent.clone(), Duration::ZERO).expect("room");
    }
    registry
}

fn state(registry: &Registry, number: u8) -> Option<AgentState> {
    registry.agent(AgentId([number; 8])).map(|(_, state, _)| state)
}

#[test]
fn silence_makes_an_agent_suspected_then_gone_then_forgotten() {
    let mut registry = registry(&[agent(1, 4, 4)]);
    let mut at = |now| {
        registry.tick(now);
        state(&registry, 1)
    };
    let moment = Duration::from_millis(1);
    assert_eq!(at(SUSPECTED_AFTER - moment), Some(AgentState::Serving));
    assert_eq!(at(SUSPECTED_AFTER), Some(AgentState::Suspected));
    assert_eq!(at(GONE_AFTER - moment), Some(AgentState::Suspected));
    assert_eq!(at(GONE_AFTER), Some(AgentState::Gone));
    assert_eq!(at(FORGOTTEN_AFTER), None);
}

#[test]
fn many_agents_report_less_often_and_have_as_many_reports_to_miss() {
    let mut registry = registry(&[agent(1, 4, 4)]);
    assert_eq!(registry.heartbeat_pause(), HEARTBEAT);
    assert_eq!(registry.suspected_after(), SUSPECTED_AFTER);
    let agents = 2 * REPORTS_PER_SECOND_MAX as usize;
    for number in 1..agents {
        assert_eq!(registry.register(numbered(number), Duration::ZERO), Ok(()));
    }
    let pause = registry.heartbeat_pause();
    assert_eq!((registry.len(), pause), (agents, Duration::from_secs(2)));
    let mut at = |now| {
        registry.tick(now);
        state(&registry, 1)
    };
    assert_eq!(at(3 * pause - Duration::from_millis(1)), Some(AgentState::Serving));
    assert_eq!(at(3 * pause), Some(AgentState::Suspected));
    let full = Duration::from_secs(1) * AGENTS_MAX as u32 / REPORTS_PER_SECOND_MAX;
    assert!(3 * full < GONE_AFTER, "no agent is gone that may miss another report");
}

#[test]
fn a_heartbeat_brings_a_gone_agent_back_with_what_it_says() {
    let mut registry = registry(&[agent(1, 4, 4)]);
    assert!(registry.tick(GONE_AFTER).is_empty());
    assert!(
        registry.candidates(Need::Cores(1)).is_empty(),
        "a gone agent is not asked"
    );
    assert!(registry.heartbeat(AgentId([1; 8]), BootId([1; 8]), (2, 2, 0), 7, GONE_AFTER));
    let (record, state, heard) = registry.agent(AgentId([1; 8])).expect("registered");
    assert_eq!((record.free_cores, record.pool), (2, 7));
    assert_eq!((state, heard), (AgentState::Serving, GONE_AFTER));
}

#[test]
fn an_unknown_agent_or_boot_is_told_to_register() {
    let mut registry = registry(&[agent(1, 4, 4)]);
    assert!(!registry.heartbeat(AgentId([2; 8]), BootId([1; 8]), (4, 4, 0), 0, Duration::ZERO));
    assert!(!registry.heartbeat(AgentId([1; 8]), BootId([9; 8]), (4, 4, 0), 0, Duration::ZERO));
    registry.deregister(AgentId([1; 8]), BootId([9; 8]));
    assert_eq!(registry.agents().count(), 1, "another boot's goodbye changes nothing");
    registry.deregister(AgentId([1; 8]), BootId([1; 8]));
    assert_eq!(registry.agents().count(), 0);
}

#[test]
fn the_tightest_fit_is_asked_first_and_the_suspected_later() {
    let mut registry = registry(&[
        agent(1, 16, 16),
        agent(2, 8, 5),
        agent(3, 8, 2),
        agent(4, 4, 4),
        agent(5, 2, 2),
    ]);
    let first_bytes = |registry: &Registry, cores| {
        registry
            .candidates(Need::Cores(cores))
            .iter()
            .map(|id| id.0[0])
            .collect::<Vec<_>>()
    };
    assert_eq!(first_bytes(&registry, 4), [4, 2, 1, 3], "5 offers too few");
    let later = SUSPECTED_AFTER;
    for number in [1, 2, 3, 5] {
        assert!(registry.heartbeat(AgentId([number; 8]), BootId([number; 8]), (8, 8, 0), 0, later));
    }
    assert!(registry.tick(later).is_empty());
    assert_eq!(state(&registry, 4), Some(AgentState::Suspected));
    assert_eq!(first_bytes(&registry, 4), [1, 2, 3, 4]);
    assert!(registry.candidates(Need::Cores(17)).is_empty());
    assert_eq!(registry.capacity(Need::Cores(1)), Capacity { free: 8, offered: 16 });
}

#[test]
fn a_full_registry_drops_only_the_gone() {
    let mut registry = Registry::new();
    for number in 0..AGENTS_MAX {
        registry
            .register(numbered(number), Duration::ZERO)
            .expect("below the limit");
    }
    assert_eq!(
        registry.register(numbered(AGENTS_MAX), Duration::ZERO),
        Err(RegistrationError::Full)
    );
    registry
        .register(numbered(3), Duration::ZERO)
        .expect("it is registered already");
    assert!(registry.tick(GONE_AFTER).is_empty());
    registry
        .register(numbered(AGENTS_MAX), GONE_AFTER)
        .expect("a gone agent makes room");
    assert_eq!(registry.agents().count(), AGENTS_MAX);
}

#[test]
fn a_late_message_brings_no_earlier_run_back() {
    let mut registry = registry(&[agent(1, 4, 4)]);
    let second = AgentProfile {
        boot: BootId([2; 8]),
        ..agent(1, 4, 4)
    };
    registry.register(second.clone(), Duration::ZERO).expect("a new run");
    assert_eq!(
        registry.register(agent(1, 4, 4), Duration::ZERO),
        Err(RegistrationError::RunEnded)
    );
    registry.deregister(second.id, second.boot);
    assert_eq!(
        registry.register(second, Duration::ZERO),
        Err(RegistrationError::RunEnded)
    );
    assert_eq!(registry.agents().count(), 0);
}

#[test]
fn cores_just_granted_are_not_offered_before_the_next_report() {
    let mut registry = registry(&[agent(1, 4, 4), agent(2, 4, 3)]);
    let [one, two] = [1, 2].map(|number| AgentId([number; 8]));
    assert_eq!(registry.candidates(Need::Cores(3)), [two, one]);
    registry.note_granted(two, Need::Cores(2));
    assert_eq!(
        registry.candidates(Need::Cores(3)),
        [one, two],
        "the one that seems full comes last"
    );
    registry.note_full(one, Need::Cores(0));
    assert_eq!(registry.candidates(Need::Cores(1))[..1], [two]);
    registry.note_released(one, Need::Cores(9));
    assert_eq!(
        registry.agent(one).map(|(record, ..)| record.free_cores),
        Some(4),
        "no more are free than are offered"
    );
    assert!(registry.heartbeat(two, BootId([2; 8]), (3, 3, 0), 0, Duration::ZERO));
    assert_eq!(
        registry.candidates(Need::Cores(3)),
        [two, one],
        "the agent itself knows best"
    );
}

/// The candidates that [`Registry::candidates`] promises, computed without the registry's sorted sets.
fn candidates(registry: &Registry, need: Need) -> Vec<AgentId> {
    let heard = registry.agents().filter(|(_, state, _)| *state != AgentState::Gone);
    let mut able: Vec<_> = heard
        .filter(|(record, ..)| record.room(need).1 >= need.count())
        .map(|(record, state, _)| (state, record.room(need).0, Reverse(record.pool), record.id))
        .collect();
    able.sort();
    let (fitting, mut lacking): (Vec<CandidateKey>, Vec<CandidateKey>) =
        able.into_iter().partition(|room| room.1 >= need.count());
    lacking.sort_by_key(|room| (room.0, Reverse((room.1, room.2, room.3))));
    let fitting = fitting.into_iter().take(CANDIDATES_MAX);
    fitting
        .chain(lacking.into_iter().take(LACKING_MAX))
        .map(|room| room.3)
        .collect()
}

#[test]
fn the_kept_orders_are_those_of_all_agents() {
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        // The generator of Numerical Recipes is random enough to mix agents.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut registry = Registry::new();
    let mut now = Duration::ZERO;
    for _ in 0..20_000 {
        let number = draw(40) as u8 + 1;
        let (id, boot) = (AgentId([number; 8]), BootId([number; 8]));
        let cores = draw(9) as u32;
        match draw(8) {
            0 => drop(registry.register(agent(number, 8, cores), now)),
            1 => registry.note_granted(id, Need::Cores(cores)),
            2 => registry.note_released(id, Need::Cores(cores)),
            3 => registry.note_full(id, Need::Cores(cores)),
            4 if draw(2) == 0 => registry.note_granted(id, Need::Places(cores)),
            5 if draw(2) == 0 => registry.note_released(id, Need::Places(cores)),
            4 => now += Duration::from_millis(draw(900)),
            5 => drop(registry.tick(now)),
            6 if draw(50) == 0 => registry.deregister(id, boot),
            _ => drop(registry.heartbeat(id, boot, (cores, cores, 0), draw(3) as u32, now)),
        }
        for count in [0, 1, 5, 8, 9, 30, 33] {
            for need in [Need::Cores(count), Need::Places(count)] {
                assert_eq!(registry.candidates(need), candidates(&registry, need), "{need:?}");
            }
        }
        assert_eq!(registry.silence.len(), registry.agents.len());
    }
    assert!(registry.agents().count() > 10, "most came back");
}

/// Demand of a lease for GPUs beside its cores.
fn with_gpus(cores: u32, gpus: u32) -> Demand {
    Demand {
        room: Need::Cores(cores),
        gpus,
    }
}

#[test]
fn gpus_are_asked_of_agents_that_have_enough_and_the_full_ones_come_last() {
    let gpus = |number, cores, free_cores, gpus, free_gpus| AgentProfile {
        gpus,
        free_gpus,
        ..agent(number, cores, free_cores)
    };
    let mut registry = registry(&[
        gpus(1, 8, 8, 0, 0),
        gpus(2, 8, 8, 8, 8),
        gpus(3, 8, 8, 2, 2),
        gpus(4, 8, 8, 4, 1),
        gpus(5, 8, 1, 4, 4),
        gpus(6, 1, 1, 4, 4),
    ]);
    let first_bytes = |registry: &Registry, cores, gpus| {
        let candidates = registry.candidates(with_gpus(cores, gpus));
        candidates.iter().map(|id| id.0[0]).collect::<Vec<_>>()
    };
    assert_eq!(
        first_bytes(&registry, 2, 2),
        [3, 2, 5, 4],
        "the tightest fit first; 5 lacks cores and 4 GPUs just now; 1 and 6 do not offer it"
    );
    assert_eq!(
        registry.candidates(Need::Cores(8)).len(),
        5,
        "cores alone are asked of all"
    );
    let (two, three) = (AgentId([2; 8]), AgentId([3; 8]));
    registry.note_granted(three, with_gpus(1, 1));
    assert_eq!(first_bytes(&registry, 2, 2), [2, 5, 4, 3], "3 has one left");
    registry.note_no_gpus(two, 1);
    assert_eq!(
        registry.gpu_capacity(Need::Cores(2)),
        Capacity { free: 4, offered: 8 },
        "of those that offer the cores"
    );
    registry.note_released(three, with_gpus(1, 9));
    assert_eq!(
        registry.agent(three).expect("there").0.free_gpus,
        2,
        "no more than it has"
    );
    registry.offers(
        two,
        AgentOffer {
            cores: (0..8).collect(),
            memory_bytes: 1 << 30,
            ..AgentOffer::default()
        },
    );
    assert_eq!(first_bytes(&registry, 2, 2), [3, 5, 4], "2 offers none any more");
    assert!(registry.gpus.iter().all(|room| room.3 != two));
}

#[test]
fn a_share_has_gpus_for_all_its_workers() {
    let record = |number, cores, gpus| AgentProfile {
        gpus,
        free_gpus: gpus,
        ..agent(number, cores, cores)
    };
    let registry = registry(&[record(1, 8, 0), record(2, 8, 3), record(3, 2, 8)]);
    let share = |asked: &BTreeMap<AgentId, Option<u32>>| {
        let share = registry.share(4, with_gpus(1, 1), asked, |_| true);
        share.map(|share| (share.agent.0[0], share.workers))
    };
    let mut asked = BTreeMap::new();
    assert_eq!(share(&asked), Some((3, 2)), "it has the GPUs, and two cores");
    asked.insert(AgentId([3; 8]), Some(0));
    assert_eq!(share(&asked), Some((2, 3)));
    asked.insert(AgentId([2; 8]), Some(0));
    assert_eq!(share(&asked), None, "1 has none");
}
