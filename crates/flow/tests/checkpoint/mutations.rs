//! Twenty thousand mutated checkpoints: they give no wrong result, and every byte that is skipped is reported.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. `HOTLEASE_WRITE_CORPUS=1` writes the committed corpus anew.

use crate::committed;
use crate::decoders::DECODERS;
use crate::mutator::{self, Mutator};
use rand::{SeedableRng, rngs::StdRng};

const FILES: u32 = 20_000;

#[test]
fn no_damage_of_a_checkpoint_makes_a_wrong_result() {
    let seed = mutator::seed();
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        let mut mutator = Mutator::new(&seeds, StdRng::seed_from_u64(seed));
        let accepted = (0..FILES).filter(|_| (decoder.check)(&mutator.next())).count();
        assert!(accepted > 0, "{}: nothing was accepted", decoder.name);
        assert!(accepted < FILES as usize, "{}: everything was accepted", decoder.name);
    }
}

#[test]
fn committed_corpus_is_what_checkpoints_look_like() {
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        committed::hold(
            decoder.name,
            &seeds,
            "checkpoints of users could not be read after an upgrade",
        );
        for (number, bytes) in seeds.iter().enumerate() {
            assert!(
                (decoder.check)(bytes) || number == 0,
                "{}: seed {number} is not accepted",
                decoder.name
            );
        }
    }
}
