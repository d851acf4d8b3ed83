//! Fuzz target of one decoder. `decoders` in `crates/flow/tests` says what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("checkpoint");
