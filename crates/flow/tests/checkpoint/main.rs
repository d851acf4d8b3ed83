//! Tests that checkpoints survive crashes, damage and other processes ([`files`]), and any bytes ([`mutations`]).

#[path = "../../../wire/tests/committed/mod.rs"]
mod committed;
#[path = "../decoders/mod.rs"]
mod decoders;
mod files;
mod mutations;
#[path = "../../../wire/tests/mutator/mod.rs"]
mod mutator;
