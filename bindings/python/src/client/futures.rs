//! Python's view of tasks: futures, their outcomes as objects, and futures among arguments.

pub mod decode;
pub mod future;
pub mod inputs;
