//! The committed corpus (`fuzz/corpus/DECODER/NAME`) is what the messages of today encode to.
//!
//! A change here is a change of the protocol: raise `limits::PROTOCOL_VERSION`, then write the corpus
//! anew with `HOTLEASE_WRITE_CORPUS=1 cargo test --release -p hotlease-wire --features grpc --test corpus`.

#![cfg(feature = "grpc")]

mod decoders;

use decoders::DECODERS;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn committed_corpus_is_what_messages_encode_to() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let write = std::env::var_os("HOTLEASE_WRITE_CORPUS").is_some();
    for decoder in DECODERS {
        let folder = corpus.join(decoder.name);
        let seeds = (decoder.seeds)();
        let seeds: BTreeMap<String, Vec<u8>> = seeds
            .into_iter()
            .enumerate()
            .map(|(number, bytes)| (format!("seed-{number:02}"), bytes))
            .collect();
        if write {
            fs::create_dir_all(&folder).unwrap();
            for old in fs::read_dir(&folder).unwrap() {
                fs::remove_file(old.unwrap().path()).unwrap();
            }
            for (name, bytes) in &seeds {
                fs::write(folder.join(name), bytes).unwrap();
            }
        }
        // The fuzzer adds files of its own to a working copy's corpus; they are not committed.
        let committed: BTreeMap<String, Vec<u8>> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()))
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    fs::read(entry.path()).unwrap(),
                )
            })
            .filter(|(name, _)| name.starts_with("seed-"))
            .collect();
        assert!(
            committed == seeds,
            "fuzz/corpus/{} is not what today's messages encode to: see the top of this test",
            decoder.name
        );
    }
}

#[test]
fn every_seed_is_accepted() {
    for decoder in DECODERS {
        for (number, bytes) in (decoder.seeds)().iter().enumerate() {
            // The token corpus holds bare claims too, which are not tokens.
            let expected = decoder.name != "token" || number < 2;
            assert_eq!((decoder.check)(bytes), expected, "{} seed {number}", decoder.name);
        }
    }
}
