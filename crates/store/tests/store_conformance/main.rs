//! Conformance tests: checks every store for each promise, and compares stores with each other under random work.

mod attribution;
mod clock;
mod contract;
mod fixture;
mod people;
mod random;
#[path = "../postgres/server.rs"]
mod server;
mod wishes;
