//! A hundred thousand mutated frames, and journals of them: no decoder panics, none breaks a promise.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. `HOTLEASE_WRITE_CORPUS=1` writes the committed corpus anew.

mod decoders;
#[path = "../../wire/tests/mutator/mod.rs"]
mod mutator;

use decoders::DECODERS;
use mutator::Mutator;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FRAMES: u32 = 100_000;

#[test]
fn mutated_frames_and_journals_break_no_decoder() {
    let seed = match std::env::var("HOTLEASE_SEED") {
        Ok(text) => text.parse().expect("HOTLEASE_SEED is a number"),
        Err(_) => rand::random(),
    };
    eprintln!("replay with HOTLEASE_SEED={seed}");
    for decoder in DECODERS {
        let seeds = (decoder.seeds)();
        let mut mutator = Mutator::new(&seeds, StdRng::seed_from_u64(seed));
        // A journal is as many frames.
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
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for decoder in DECODERS {
        let folder = corpus.join(decoder.name);
        let seeds: BTreeMap<String, Vec<u8>> = (decoder.seeds)()
            .into_iter()
            .enumerate()
            .map(|(number, bytes)| (format!("seed-{number:02}"), bytes))
            .collect();
        if std::env::var_os("HOTLEASE_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&folder).expect("a folder");
            for (name, bytes) in &seeds {
                fs::write(folder.join(name), bytes).expect("a seed");
            }
        }
        for (name, bytes) in &seeds {
            let committed = fs::read(folder.join(name)).unwrap_or_default();
            assert!(
                committed == *bytes,
                "fuzz/corpus/{}/{name} is not what a record of today encodes to: the journals of nodes could not \
                 be read after an upgrade",
                decoder.name
            );
            assert!((decoder.check)(bytes), "{name} is not accepted");
        }
    }
}
