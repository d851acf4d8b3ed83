//! Comparison of the kernel with a reference that is as plain as possible, over random graphs and random events.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. After every event kernel and reference must agree on every
//! task.

mod checks;
mod driver;
mod reference;

use driver::RandomDriver;
use rand::{SeedableRng, rngs::StdRng};

const SEEDS: u64 = 1000;
const EVENTS: usize = 300;

fn run(seed: u64) {
    let mut site = RandomDriver::new(StdRng::seed_from_u64(seed));
    for _ in 0..EVENTS {
        site.event();
    }
    site.wind_up();
}

#[test]
fn every_task_ends_once_after_its_inputs_within_all_bounds() {
    if let Ok(text) = std::env::var("HOTLEASE_SEED") {
        return run(text.parse().expect("HOTLEASE_SEED is a number"));
    }
    let first: u64 = u64::from(rand::random::<u32>());
    for seed in first..first + SEEDS {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("replay with HOTLEASE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
