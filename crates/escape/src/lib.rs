//! Level 1 of hotlease: attempts to escape from a sandbox, and the neighbour that they attack.
//!
//! * [`themes`] lists the attempts. Each is one function that does what a hostile function would do, in a process
//!   of its own (`hotlease-escape try NAME`). It does no damage if it succeeds: if the real action would break the
//!   host, it only probes whether the action is allowed.
//! * [`Neighbour`] is another tenant's process outside the sandbox, with secrets in all places where a process can
//!   have them. It notices what is done to it, so that the word of an attempt need not be believed.
//! * [`Residue`] is anything that attempts leave behind.
//! * [`take_turn`] is a tenant that comes after others on the same node (`hotlease sandbox hand-over`).
//! * `hotlease sandbox test` combines them: it starts each attempt in a sandbox next to a fresh neighbour.
//!
//! docs/escape-corpus.md lists the attempts for readers; a test of this crate compares it with the table.

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
