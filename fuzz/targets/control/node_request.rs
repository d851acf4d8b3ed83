//! Fuzz target of one decoder. `decoders` in `crates/wire/tests` says what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("node_request");
