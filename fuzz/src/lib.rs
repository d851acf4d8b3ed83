//! The fuzz targets hold the same promises as the mutation tests of `hotlease-wire`, `hotlease-journal`, `hotlease-flow` and `hotlease-s3`:
//! these are their files.

#[path = "../../crates/wire/tests/decoders/mod.rs"]
pub mod decoders;
#[path = "../../crates/flow/tests/decoders/mod.rs"]
pub mod flow;
#[path = "../../crates/journal/tests/decoders/mod.rs"]
pub mod journal;
#[path = "../../crates/s3/tests/decoders/mod.rs"]
pub mod s3;

/// The check of the decoder of this name.
pub fn check(name: &str) -> fn(&[u8]) -> bool {
    let of_wire = decoders::DECODERS.iter().map(|decoder| (decoder.name, decoder.check));
    let of_journal = journal::DECODERS.iter().map(|decoder| (decoder.name, decoder.check));
    let of_flow = flow::DECODERS.iter().map(|decoder| (decoder.name, decoder.check));
    let of_s3 = s3::DECODERS.iter().map(|decoder| (decoder.name, decoder.check));
    let found = of_wire
        .chain(of_journal)
        .chain(of_flow)
        .chain(of_s3)
        .find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no decoder is called {name}")).1
}

/// A fuzz target for the decoder of this name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(
            init: {
                // A misspelt name fails here, not silently.
                let _ = $crate::check($name);
            },
            |bytes: &[u8]| {
                $crate::check($name)(bytes);
            }
        );
    };
}
