//! The fuzz targets hold the same promises as the mutation test of `hotlease-wire`: these are its files.

#[path = "../../crates/wire/tests/decoders/mod.rs"]
pub mod decoders;

/// The check of the decoder of this name.
pub fn check(name: &str) -> fn(&[u8]) -> bool {
    let found = decoders::DECODERS.iter().find(|decoder| decoder.name == name);
    found
        .unwrap_or_else(|| panic!("no decoder is called {name}"))
        .check
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
