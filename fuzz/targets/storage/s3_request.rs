//! Fuzz target of one decoder. `decoders` in `crates/s3/tests` says what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("s3_request");
