//! What every store promises, held against each of them; and each against the others, with random work.

mod attribution;
mod clock;
mod people;
mod promises;
mod random;
mod scene;
#[path = "../postgres/server.rs"]
mod server;
mod wishes;
