//! The built-in table compared with the model's best recipes.

use super::*;
use std::fmt::Write;

/// Times for which the bounds of the built-in table were chosen.
fn prices() -> LinkPrices {
    let times = MessageTimes {
        latency_us: 16.0,
        gap_us: None,
        bandwidth_mb_s: 1000.0,
        origin: FigureOrigin {
            source: "choice/built_in.toml".into(),
            date: "2026-11-22".into(),
        },
    };
    LinkPrices::built_in().with_message_times(&times).expect("times")
}

/// Maximum time of the table's choice, as a multiple of the best recipe's time.
const FACTOR_MAX: f64 = 1.5;

#[test]
fn the_built_in_table_chooses_what_is_nearly_the_best() {
    let prices = prices();
    let (mut asked, mut worse) = (0, String::new());
    for link in [LinkKind::Tcp, LinkKind::Redis, LinkKind::S3, LinkKind::DynamoDb] {
        for ranks in [2, 3, 4, 7, 8, 9, 16, 31, 64, 100] {
            for (operation, _) in Operation::NAMES {
                for bytes in [8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20] {
                    let mut scenario = scenario(operation, bytes / 8, ranks);
                    scenario.call.datatype = Datatype::U64;
                    let candidates = candidates(&scenario, link, Table::built_in(), &prices).expect("candidates");
                    let seconds = |candidate: &RecipeCandidate| candidate.estimate.as_ref().ok().map(Estimate::seconds);
                    let best = seconds(&candidates[0]).expect("the best is known");
                    let chosen = candidates.iter().find(|candidate| candidate.chosen).expect("a choice");
                    let factor = seconds(chosen).expect("it is known") / best;
                    asked += 1;
                    if factor > FACTOR_MAX {
                        let (least, taken) = (candidates[0].recipe.algorithm, chosen.recipe.algorithm);
                        writeln!(
                            worse,
                            "{link:8} {operation:14} {ranks:4} ranks {bytes:9} bytes: {taken} takes {factor:.2} times as long as {least}"
                        )
                        .expect("a string");
                    }
                }
            }
        }
    }
    assert_eq!(asked, 4 * 10 * 14 * 6);
    assert!(worse.is_empty(), "\n{worse}");
}
