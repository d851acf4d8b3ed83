//! See `decoders` in `crates/s3/tests`: what must hold for any bytes.
#![no_main]

hotlease_fuzz::target!("s3_removal");
