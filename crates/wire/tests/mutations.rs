//! A hundred thousand mutated frames per decoder: none panics, none breaks a promise.
//!
//! The seed is printed; `HOTLEASE_SEED=N` replays a run. The fuzz targets (`make fuzz`) check the same promises for any
//! length of time.

mod decoders;
mod mutator;

use decoders::{DECODERS, Decoder};
use mutator::Mutator;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::process::Command;

const FRAMES: u32 = 100_000;

fn named(name: &str) -> &'static Decoder {
    let found = DECODERS.iter().find(|decoder| decoder.name == name);
    found.unwrap_or_else(|| panic!("no decoder is called {name}"))
}

/// Runs `FRAMES` mutations of `corpus` through the decoder; returns how many it accepted.
fn hammer(decoder: &Decoder, corpus: &[Vec<u8>], seed: u64) -> u32 {
    let mut mutator = Mutator::new(corpus, StdRng::seed_from_u64(seed));
    let mut accepted = 0;
    for frame in 0..FRAMES {
        let bytes = mutator.next();
        let outcome = std::panic::catch_unwind(|| (decoder.check)(&bytes));
        match outcome {
            Ok(fine) => accepted += u32::from(fine),
            Err(_) => panic!("{}: frame {frame} of seed {seed} broke it: {bytes:02x?}", decoder.name),
        }
    }
    accepted
}

#[test]
fn mutated_frames_break_no_decoder() {
    let seed = mutator::seed();
    for decoder in DECODERS {
        let accepted = hammer(decoder, &(decoder.seeds)(), seed);
        eprintln!("{}: {FRAMES} frames, {accepted} accepted", decoder.name);
        // Otherwise this test covers only one of the two results.
        assert!(accepted > 0, "{}: no mutated frame was accepted", decoder.name);
        assert!(accepted < FRAMES, "{}: every mutated frame was accepted", decoder.name);
    }
}

#[test]
fn a_module_with_a_dot_is_another_module() {
    // The module `make` is admitted; a mutation found that the oracle took `make.` for it.
    let pickle = b"\x80\x05\x8c\x05make.\x94\x8c\x01x\x94\x93\x94K\x01\x85\x94R\x94.";
    assert!(!(named("task_pickle").check)(pickle));
}

#[test]
fn mutated_tokens_never_open() {
    let minted = named("token").seeds;
    let minted = &minted()[..2];
    let key = decoders::token_key();
    let mut mutator = Mutator::new(minted, StdRng::seed_from_u64(mutator::seed()));
    for _ in 0..FRAMES {
        let bytes = mutator.next();
        if !minted.contains(&bytes) {
            assert!(key.open(&bytes).is_err(), "a forged token opened: {bytes:02x?}");
        }
    }
}

#[test]
fn mutations_of_a_compiled_library_break_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("functions.c");
    let library = folder.path().join("functions.so");
    std::fs::write(
        &source,
        "const char hotlease_idempotent_add = 1;\n\
         unsigned add(const void *in, unsigned size, void *out) { (void)in; (void)out; return size; }\n\
         unsigned sub(const void *in, unsigned size, void *out) { (void)in; (void)out; return size; }\n",
    )
    .unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler is installed (make setup-tests)");
    assert!(status.success(), "cc: {status}");
    let mut bytes = std::fs::read(&library).unwrap();
    let functions = hotlease_wire::code::functions(&bytes).unwrap();
    let names: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.idempotent)).collect();
    assert_eq!(names, [("add", true), ("sub", false)]);

    bytes.truncate(64 * 1024);
    let accepted = hammer(named("code"), &[bytes], mutator::seed());
    assert!((1..FRAMES).contains(&accepted), "{accepted} of {FRAMES} accepted");
}

#[test]
fn random_bytes_are_no_message() {
    let mut random = StdRng::seed_from_u64(mutator::seed());
    for decoder in DECODERS {
        for length in (0..200).chain([4096, 65_536, 65_537, 200_000]) {
            let mut bytes = vec![0; length];
            random.fill_bytes(&mut bytes);
            (decoder.check)(&bytes);
        }
    }
}
