//! Tests with a hundred thousand mutated frames, and with journals of such frames: no decoder panics or breaks a
//! promise.
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

const FRAMES: u32 = 100_000;

#[test]
fn mutated_frames_and_journals_break_no_decoder() {
    let seed = mutator::seed();
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        let mut mutator = Mutator::new(&seeds, StdRng::seed_from_u64(seed));
        // A journal consists of about this many frames.
        let count = FRAMES / if decoder.name == "journal" { 20 } else { 1 };
        let accepted = (0..count).filter(|_| (decoder.check)(&mutator.next())).count();
        assert!(accepted > 0, "{}: nothing was accepted", decoder.name);
        if decoder.name == "journal_frame" {
            assert!(accepted < count as usize, "everything was accepted");
        }
    }
}

#[test]
fn committed_corpus_is_what_records_encode_to() {
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        committed::hold(
            decoder.name,
            &seeds,
            "the journals of nodes could not be read after an upgrade",
        );
        for bytes in &seeds {
            assert!((decoder.check)(bytes), "{}: a seed is not accepted", decoder.name);
        }
    }
}
