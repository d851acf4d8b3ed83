//! Random work on all stores: their answers must be equal after every step.

use crate::fixture::{START_MS, TestStore, agent, lease, limits, local_stores, row, stores};
use hotlease_lease::agent::{OfferedCores, OfferedGpus};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_lease::manager::{NodeWish, OfferWish, WishedState};
use hotlease_store::{BillGrouping, BillQuery, LeaseRecord, LeaseState, LedgerRow, PERIOD_MS, ReportRecord, Store};
use hotlease_wire::ids::{AgentId, CodeHash, LeaseId};
use hotlease_wire::session::UsageTotals;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;

const SEEDS: u64 = 12;
const SEEDS_ON_SERVERS: u64 = 2;
const STEPS: usize = 120;

/// Operation on a store; returns the answer as text, to be compared.
type Step = Box<dyn Fn(&dyn Store) -> String>;

fn some_lease(random: &mut StdRng) -> LeaseRecord {
    let number = random.random_range(1..16);
    let over = random.random_bool(0.4);
    LeaseRecord {
        agent: AgentId([random.random_range(1..4); 8]),
        tenant: format!("uid:{}", number % 5),
        job: format!("{}", number % 3),
        memory_bytes: u64::from(number) << 28,
        gpus: u32::from(number) % 3,
        busy_slots: u32::from(number) % 5,
        state: match over {
            true => LeaseState::Ended { why: "over".into() },
            false => LeaseState::Active,
        },
        ..lease(number, random.random_range(1..3))
    }
}

fn some_usage(random: &mut StdRng, lease: &LeaseRecord) -> LedgerRow {
    let mut any = || random.random_range(0..100_000_000_000);
    LedgerRow {
        tenant: lease.tenant.clone(),
        usage: UsageTotals {
            allocated_ns: any(),
            hot_ns: any(),
            compute_ns: any(),
            invocations: any(),
        },
        functions: some_functions(random),
        settled: lease.state != LeaseState::Active,
        ..row(lease.key(), 0, false)
    }
}

/// Makes more functions than fit into a lease's table, with more time than the lease has.
fn some_functions(random: &mut StdRng) -> FunctionTotals {
    let mut told = FunctionTotals::default();
    for _ in 0..random.random_range(0..5) {
        let id = FunctionId::new(
            CodeHash([random.random_range(1..3); 32]),
            &format!("f{}", random.random_range(0..40)),
        );
        let used = FunctionUse {
            compute_ns: random.random_range(0..1_000_000_000),
            invocations: random.random_range(0..100_000_000),
        };
        told.add(&id, used);
    }
    told
}

fn some_report(random: &mut StdRng, at_ms: u64) -> ReportRecord {
    let by = agent(random.random_range(1..4), random.random_range(1..3));
    let leases: Vec<LeaseRecord> = (0..random.random_range(0..5))
        .map(|_| LeaseRecord {
            agent: by.id,
            boot: by.boot,
            ..some_lease(random)
        })
        .collect();
    let usage = leases.iter().map(|lease| some_usage(random, lease)).collect();
    let before = (0..3).map(|_| LeaseId([random.random_range(1..16); 8]));
    let before: BTreeSet<LeaseId> = before.collect();
    ReportRecord {
        agent: by.id,
        boot: by.boot,
        at_ms,
        leases,
        usage,
        missing_before: random.random_bool(0.5).then_some(before),
    }
}

fn some_wish(random: &mut StdRng, at_ms: u64) -> NodeWish {
    let cores = match random.random_range(0..5) {
        0 => OfferedCores::Unchanged,
        1 => OfferedCores::All,
        2 => OfferedCores::Count(random.random()),
        3 => OfferedCores::These([].into()),
        _ => OfferedCores::These((0..random.random_range(1..9)).collect()),
    };
    let offer = OfferWish {
        cores,
        memory_bytes: random.random_bool(0.5).then_some(1 << 40),
        gpus: match random.random_range(0..3) {
            0 => None,
            1 => Some(OfferedGpus::Count(4)),
            _ => Some(OfferedGpus::These((0..random.random_range(0..5)).collect())),
        },
        by_ms: at_ms,
    };
    let mut state = || WishedState {
        drained_by_ms: random.random_bool(0.5).then_some(at_ms + 5),
        offer: random.random_bool(0.6).then(|| offer.clone()),
    };
    NodeWish {
        number: at_ms,
        state: state(),
        earlier: vec![state(), state()],
    }
}

fn some_step(random: &mut StdRng, at_ms: u64) -> Step {
    match random.random_range(0..12) {
        0 => {
            let agent = agent(random.random_range(1..5), random.random_range(1..3));
            Box::new(move |store| format!("{:?}", store.put_agent(agent.clone(), at_ms)))
        }
        1 => {
            let agent = AgentId([random.random_range(1..5); 8]);
            Box::new(move |store| format!("{:?}", store.remove_agent(agent, at_ms)))
        }
        2..5 => {
            let granted = LeaseRecord {
                state: LeaseState::Active,
                granted_ms: at_ms,
                ..some_lease(random)
            };
            Box::new(move |store| format!("{:?}", store.open_lease(granted.clone(), at_ms)))
        }
        10 => {
            let (agent, wish) = (AgentId([random.random_range(1..7); 8]), some_wish(random, at_ms));
            Box::new(move |store| format!("{:?}", store.put_wish(agent, wish.clone(), None)))
        }
        11 => {
            let agent = AgentId([random.random_range(1..7); 8]);
            Box::new(move |store| format!("{:?}", store.remove_wish(agent)))
        }
        _ => {
            let report = some_report(random, at_ms);
            Box::new(move |store| format!("{:?}", store.report(report.clone())))
        }
    }
}

/// Answers to all queries.
fn seen(scene: &TestStore, at_ms: u64) -> Vec<String> {
    let store = &scene.store;
    let mut seen = vec![
        format!("{:?}", store.agents()),
        format!("{:?}", store.wishes()),
        format!("{:?}", store.leases(None)),
        format!("{:?}", store.leases(Some("uid:1"))),
        format!("{:?}", store.active_leases()),
        format!("{:?}", store.audit(at_ms)),
    ];
    for by in [
        BillGrouping::Tenant,
        BillGrouping::Job,
        BillGrouping::Lease,
        BillGrouping::Function,
    ] {
        for (since_ms, until_ms) in [
            (None, None),
            (Some(START_MS + 3 * PERIOD_MS), None),
            (None, Some(at_ms)),
        ] {
            let query = BillQuery {
                since_ms,
                until_ms,
                by,
                ..BillQuery::default()
            };
            seen.push(format!("{:?}", store.bill(&query)));
        }
    }
    let keys: Vec<_> = (1..16).map(|number| lease(number, 1).key()).collect();
    seen.push(format!("{:?}", store.rows(&keys)));
    seen.push(format!("{:?}", store.functions(&keys)));
    assert_eq!(store.lease(LeaseId([99; 8])).unwrap(), None);
    seen
}

#[test]
fn all_stores_answer_alike_after_any_changes() {
    for seed in 0..SEEDS {
        let mut random = StdRng::seed_from_u64(seed);
        // A server takes long for each statement, so it gets a few seeds only.
        let scenes = match seed < SEEDS_ON_SERVERS {
            true => stores(limits()),
            false => local_stores(limits()),
        };
        let mut at_ms = START_MS;
        for number in 0..STEPS {
            at_ms += random.random_range(0..PERIOD_MS / 8);
            let step = some_step(&mut random, at_ms);
            let answers: Vec<String> = scenes.iter().map(|scene| step(&*scene.store)).collect();
            for (scene, answer) in scenes.iter().zip(&answers) {
                assert_eq!(
                    answer, &answers[0],
                    "seed {seed}, step {number}: {} answers differently from {}",
                    scene.name, scenes[0].name
                );
            }
            let first = seen(&scenes[0], at_ms);
            for scene in &scenes[1..] {
                for (other, one) in seen(scene, at_ms).iter().zip(&first) {
                    assert_eq!(
                        other, one,
                        "seed {seed}, after step {number}: {} differs from {}",
                        scene.name, scenes[0].name
                    );
                }
            }
        }
        for scene in &scenes {
            scene.assert_sound(at_ms);
        }
    }
}
