//! Python's view of tasks: futures, their outcomes as objects, and futures among arguments.

pub mod check;
pub mod decode;
pub mod future;
pub mod inputs;
