use super::*;
use parameters::{PROLOG, TASKS};

fn text(path: Option<&Path>, seed: u64, json: bool) -> String {
    let mut out = Vec::new();
    print(path, seed, json, &mut out).expect("a generated site");
    String::from_utf8(out).expect("text")
}

#[test]
fn a_seed_gives_the_same_results_each_time_and_another_one_others() {
    let [first, again, other] = [1, 1, 2].map(|seed| text(None, seed, true));
    assert!(first == again, "seed 1 gave two results");
    assert!(first != other, "seeds 1 and 2 gave the same result");
    let policies = POLICIES.len() + VARIANTS.len();
    assert_eq!(
        first.lines().count(),
        1 + 4 * (1 + policies * TASKS.len()),
        "a source, and four kinds of periods"
    );
}

/// The generated site's true periods are known, so this test shows by how much inferred periods are wrong.
#[test]
fn shares_from_inferred_periods_are_near_those_from_known_ones() {
    for seed in 0..3 {
        let known = generated(seed);
        let samples = periods::sampled(&known, SITE.length, SITE.sample_step);
        let median = periods::quantile(&periods::lengths(&known), 50);
        let inferred = periods::infer(&samples, Matching::Exchanging { median }, seed);
        for policy in &POLICIES {
            let [truth, guess] = [&known, &inferred].map(|periods| outcome::play(periods, policy, seed));
            let shares = |outcome: &outcome::Outcome| -> Vec<f64> {
                let used = outcome.loads.iter().map(|load| load.used);
                [outcome.offered()]
                    .into_iter()
                    .chain(used)
                    .map(|time| time as f64 / outcome.idle as f64)
                    .collect()
            };
            for (truth, guess) in shares(&truth).into_iter().zip(shares(&guess)) {
                assert!(
                    (truth - guess).abs() < 0.1,
                    "seed {seed}, {}: {truth:.3}, inferred {guess:.3}",
                    policy.name
                );
            }
        }
    }
}

#[test]
fn generated_site_is_as_idle_as_real_ones_and_offered_by_the_prolog_policy() {
    let periods = generated(0);
    let outcome = outcome::play(&periods, &PROLOG, 0);
    let idle = outcome.idle as f64 / (u64::from(SITE.nodes) * SITE.length) as f64;
    assert!((0.05..0.25).contains(&idle), "{idle:.3} of the site is idle");
    let offered = outcome.offered() as f64 / outcome.idle as f64;
    assert!(offered >= 0.9, "{offered:.4} of the idle time is offered");
}

#[test]
fn file_of_samples_is_replayed() {
    let file = std::env::temp_dir().join(format!("hotlease-samples-{}.csv", std::process::id()));
    // One of two nodes is idle for 600 s.
    let rows = "date,idle_nodes,total_nodes\n01-03-22 00:00:00,1,2\n01-03-22 00:05:00,1,2\n01-03-22 00:10:00,1,2\n";
    std::fs::write(&file, rows).expect("file");
    let [table, records] = [false, true].map(|json| text(Some(&file), 0, json));
    std::fs::remove_file(&file).expect("file");
    // 600 s of 12 cores are 2 core hours, half of the core hours of the two nodes.
    assert!(
        table.contains("1, 10.0 min in the median, 10.0 min in the mean; 2 core hours, 50.00 % of the site"),
        "{table}"
    );
    let outcomes = records
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    let idle: Vec<_> = outcomes
        .filter_map(|record| record.get("idle_us").and_then(serde_json::Value::as_u64))
        .collect();
    assert!(
        idle.contains(&600_000_000) && idle.iter().all(|idle| *idle == 600_000_000),
        "{idle:?}"
    );
}
