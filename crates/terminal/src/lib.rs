//! L4: code that the programs `hotlease` and `hotlease-lab` share, for the terminal and the running platform.
//!
//! * [`output`]: results on stdout, as text for people or JSON for programs; [`quantity`]: times and
//!   sizes in results and on the command line.
//! * [`exit`]: exit status and text of errors.
//! * [`log`]: the log on stderr.
//! * [`platform`]: the manager that a command talks to.
//! * [`arguments`]: arguments of sandboxes.
//! * [`functions`]: libraries of functions that come with hotlease.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod exit;
pub mod functions;
pub mod log;
pub mod output;
pub mod platform;
pub mod quantity;
