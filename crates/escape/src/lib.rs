//! Level 1 of hotlease: what tries to get out of a sandbox, and whom it would meet there.
//!
//! * [`themes`] lists the attempts. Each is one function that does what a hostile function would do, a process of its
//!   own (`hotlease-escape try NAME`), and harmless where it succeeds: it probes where doing would break the machine.
//! * [`Neighbour`] is another tenant's process outside the sandbox, with secrets wherever a process can have them. It
//!   notices what is done to it, so that it need not be believed what an attempt says of itself.
//! * [`Residue`] is what attempts leave behind.
//! * [`take_turn`] is a tenant that comes after others on the same node (`hotlease sandbox hand-over`).
//! * `hotlease sandbox test` brings them together: it starts each attempt in a sandbox beside a fresh neighbour.
//!
//! docs/escape-corpus.md is the list for people; a test here holds it to the table.

mod attempt;
mod attempts;
mod given;
mod neighbour;
mod residue;
mod syscall;
mod tenant;

pub use attempt::{Attempt, Evidence, Outcome, Teeth, Theme};
pub use attempts::themes;
pub use given::PREFIX;
pub use neighbour::{Neighbour, Pulse, serve as serve_as_neighbour};
pub use residue::{Residue, names_for};
pub use syscall::{effective_capabilities, may_be_traced};
pub use tenant::{DONE, take_turn};

/// What `hotlease-escape several` says before an attempt; its name follows.
pub const BEGUN: &str = "begun ";
/// What it says after it; its exit status follows, or else the signal that killed it, negative.
pub const ENDED: &str = "ended ";

/// File name of the program that makes the attempts.
pub const BINARY: &str = "hotlease-escape";
