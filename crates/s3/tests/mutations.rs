//! Tests with a hundred thousand mutated requests and bodies: no request is passed on that must be refused, and no
//! decoder panics.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. `HOTLEASE_WRITE_CORPUS=1` writes the committed corpus anew.

#[path = "../../wire/tests/committed/mod.rs"]
mod committed;
mod decoders;
#[path = "../../wire/tests/mutator/mod.rs"]
mod mutator;

use decoders::DECODERS;
use mutator::Mutator;
use rand::{SeedableRng, rngs::StdRng};

const REQUESTS: u32 = 100_000;

#[test]
fn mutated_requests_reach_no_other_key() {
    let seed = mutator::seed();
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        let mut mutator = Mutator::new(&seeds, StdRng::seed_from_u64(seed));
        let accepted = (0..REQUESTS).filter(|_| (decoder.check)(&mutator.next())).count();
        assert!(
            accepted > 0 && accepted < REQUESTS as usize,
            "{}: {accepted} were accepted",
            decoder.name
        );
    }
}

#[test]
fn committed_corpus_is_what_is_understood() {
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        committed::hold(
            decoder.name,
            &seeds,
            "requests of yesterday's functions would be refused",
        );
        for bytes in &seeds {
            assert!((decoder.check)(bytes), "{}: a seed is not accepted", decoder.name);
        }
    }
}
