//! See `decoders` in `crates/journal/tests`: what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("journal");
