//! Twenty thousand mutated checkpoints: no wrong result, no byte passed over in silence.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. `HOTLEASE_WRITE_CORPUS=1` writes the committed corpus anew.

use crate::decoders::DECODERS;
use crate::mutator::Mutator;
use rand::{SeedableRng, rngs::StdRng};
use std::fs;
use std::path::Path;

const FILES: u32 = 20_000;

#[test]
fn no_damage_of_a_checkpoint_makes_a_wrong_result() {
    let seed = match std::env::var("HOTLEASE_SEED") {
        Ok(text) => text.parse().expect("HOTLEASE_SEED is a number"),
        Err(_) => rand::random(),
    };
    eprintln!("replay with HOTLEASE_SEED={seed}");
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        let mut mutator = Mutator::new(&seeds, StdRng::seed_from_u64(seed));
        let accepted = (0..FILES).filter(|_| (decoder.check)(&mutator.next())).count();
        assert!(accepted > 0, "{}: nothing was accepted", decoder.name);
        assert!(
            accepted < FILES as usize,
            "{}: everything was accepted",
            decoder.name
        );
    }
}

#[test]
fn committed_corpus_is_what_checkpoints_look_like() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for decoder in DECODERS {
        let folder = corpus.join(decoder.name);
        for (number, bytes) in (decoder.seeds)().into_iter().enumerate() {
            let seed = folder.join(format!("seed-{number:02}"));
            if std::env::var_os("HOTLEASE_WRITE_CORPUS").is_some() {
                fs::create_dir_all(&folder).expect("a folder");
                fs::write(&seed, &bytes).expect("a seed");
            }
            let committed = fs::read(&seed).unwrap_or_default();
            assert!(
                committed == bytes,
                "{} is not what a checkpoint of today looks like: those of users could not be read after an upgrade",
                seed.display()
            );
            assert!(
                (decoder.check)(&bytes) || number == 0,
                "{} is not accepted",
                seed.display()
            );
        }
    }
}
