use super::*;
use crate::replay::parameters::SECOND;

fn random_samples(seed: u64) -> Vec<Sample> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let mut at = 0;
    let mut idle: u32 = random.random_range(0..40);
    let mut samples = Vec::new();
    for _ in 0..300 {
        samples.push(Sample { at, idle });
        at += random.random_range(90..110) * SECOND;
        idle = (idle + random.random_range(0..20)).saturating_sub(random.random_range(0..20));
    }
    samples
}

fn matchings() -> [Matching; 3] {
    [
        Matching::OldestFirst,
        Matching::NewestFirst,
        Matching::Exchanging { median: 60 * SECOND },
    ]
}

#[test]
fn two_nodes_are_matched_as_by_hand() {
    // One node is idle from the start, a second node becomes idle in (0, 10]. One of them gets a job in (10, 20], the
    // other stays idle.
    let samples = [(0, 1), (10, 2), (20, 1), (30, 1)].map(|(at, idle)| Sample { at, idle });
    for (matching, first_is_over) in [(Matching::OldestFirst, true), (Matching::NewestFirst, false)] {
        let periods = infer(&samples, matching, 5);
        let [over, rest] = periods[..] else {
            panic!("two periods: {periods:?}");
        };
        assert_eq!(over.begin == 0, first_is_over, "{matching:?}: {periods:?}");
        assert_eq!(rest.begin == 0, !first_is_over, "{matching:?}: {periods:?}");
        assert!(
            over.end > 10 && over.end <= 20 && rest.end == 30,
            "{matching:?}: {periods:?}"
        );
    }
}

#[test]
fn samples_of_inferred_periods_are_the_samples() {
    for seed in 0..50 {
        let samples = random_samples(seed);
        for matching in matchings() {
            let periods = infer(&samples, matching, seed);
            assert!(
                periods.iter().all(|period| period.begin < period.end),
                "seed {seed}, {matching:?}"
            );
            // All periods end at the last sample.
            for sample in &samples[..samples.len() - 1] {
                let idle = periods
                    .iter()
                    .filter(|period| period.begin <= sample.at && sample.at < period.end)
                    .count();
                assert_eq!(
                    idle, sample.idle as usize,
                    "seed {seed}, {matching:?}, at {}",
                    sample.at
                );
            }
        }
    }
}

#[test]
fn matchings_agree_on_idle_time_and_bound_how_lengths_vary() {
    for seed in 0..50 {
        let samples = random_samples(seed);
        let [oldest, newest, _] = matchings().map(|matching| lengths(&infer(&samples, matching, seed)));
        assert_eq!(oldest.len(), newest.len(), "seed {seed}: the fewest periods");
        assert_eq!(
            oldest.iter().sum::<u64>(),
            newest.iter().sum::<u64>(),
            "seed {seed}: idle time"
        );
        let squares = |lengths: &[u64]| lengths.iter().map(|length| u128::from(*length).pow(2)).sum::<u128>();
        let any = Matching::Exchanging {
            median: Micros::MAX / 2000,
        };
        let random = lengths(&infer(&samples, any, seed));
        assert_eq!(random.len(), oldest.len(), "seed {seed}: no exchange");
        assert!(
            squares(&oldest) <= squares(&random),
            "seed {seed}: oldest first varies least"
        );
        assert!(
            squares(&random) <= squares(&newest),
            "seed {seed}: newest first varies most"
        );
    }
}

#[test]
fn exchanges_give_the_median_that_is_known() {
    // 2,000 nodes that are idle for 1,000 s.
    let periods = vec![
        Period {
            begin: 0,
            end: 1_000 * SECOND
        };
        2_000
    ];
    for median in [100 * SECOND, 500 * SECOND, 900 * SECOND] {
        let parts = exchanged(&periods, median, 3);
        let found = quantile(&lengths(&parts), 50);
        assert!(
            found <= median && found + median / 50 >= median,
            "wanted {median}, found {found}"
        );
        let sum: Micros = lengths(&parts).iter().sum();
        assert_eq!(sum, 2_000 * 1_000 * SECOND, "no idle time is lost");
    }
    assert_eq!(exchanged(&periods, 1_000 * SECOND, 3), periods, "already short enough");
}

#[test]
fn quantiles_are_found() {
    let lengths: Vec<Micros> = (0..=200).collect();
    let found = [0, 1, 50, 99, 100].map(|percent| quantile(&lengths, percent));
    assert_eq!(found, [0, 2, 100, 198, 200]);
    assert_eq!(quantile(&[], 50), 0);
}

#[test]
fn samples_count_idle_nodes() {
    let periods = [(0, 10), (5, 20), (5, 15)].map(|(begin, end)| Period { begin, end });
    let idle: Vec<_> = sampled(&periods, 20, 5).iter().map(|sample| sample.idle).collect();
    assert_eq!(idle, [1, 3, 2, 1, 0]);
}
