//! Level 1 of hotlease: attempts to escape from a sandbox, and the neighbour that they attack.
//!
//! * [`themes`] lists the attempts. Each attempt is one function that does what a hostile function would do, in a
//!   separate process (`hotlease-escape try NAME`). A successful attempt does no damage: if the real action would break
//!   the host, the attempt only probes whether the action is allowed.
//! * [`Neighbour`] is another tenant's process outside the sandbox, with secrets in all places where a process can have
//!   them. It notices attacks on itself, so that the attempts' own reports need not be trusted.
//! * [`Residue`] is anything that attempts leave behind.
//! * [`take_turn`] acts as a tenant that uses a node after other tenants (`hotlease sandbox hand-over`).
//! * `hotlease sandbox test` combines these parts: it starts each attempt in a sandbox beside a new neighbour.
//!
//! docs/escape-corpus.md lists the attempts; a test of this crate compares the page with the table.

mod attempt;
mod attempts;
mod neighbour;
mod residue;
mod syscall;
mod tenant;
mod variables;

pub use attempt::{Attempt, AttemptOutcome, Evidence, MustSucceed, Threat};
pub use attempts::themes;
pub use neighbour::{LoopTimes, Neighbour, serve as serve_as_neighbour};
pub use residue::{Residue, names_for};
pub use syscall::{allow_tracing, effective_capabilities};
pub use tenant::{DONE, take_turn};
pub use variables::PREFIX;

/// Line of `hotlease-escape several` before an attempt, followed by the attempt's name.
pub const BEGUN: &str = "begun ";
/// Line of `hotlease-escape several` after an attempt, followed by its exit status, or by the negative number of
/// the signal that killed it.
pub const ENDED: &str = "ended ";

/// File name of the program that makes the attempts.
pub const BINARY: &str = "hotlease-escape";
