//! See `decoders` in `crates/wire/tests`: what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("from_guest");
