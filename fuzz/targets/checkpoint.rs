//! See `decoders` in `crates/flow/tests`: what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("checkpoint");
