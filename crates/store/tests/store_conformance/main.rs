//! Conformance tests: checks every store for each promise, and compares stores with each other under random work.

mod attribution;
mod clock;
mod people;
mod promises;
mod random;
mod scene;
#[path = "../postgres/server.rs"]
mod server;
mod wishes;
