//! Messages between the nursery and pid 1 of a sandbox.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// Message from the nursery to pid 1.
#[derive(Serialize, Deserialize)]
pub enum Pid1Order {
    /// The user and group maps are written.
    Prepare,
    /// Pid 1 is in its control groups, and so is everything that it starts from now on. Sent only if pid 1 starts a
    /// process before it gets the program.
    Grouped,
    /// Start a program. Descriptors: standard input, output, a
    /// [`ProgramDescription`](crate::program::ProgramDescription), a tree for each mount.
    Start {
        /// Path of each tree, and whether it may be written.
        targets: Vec<(OsString, bool)>,
        /// Whether the sandbox's loopback gives access to object storage.
        storage: bool,
    },
    /// A zygote is forking the program. Descriptor: the pipe in which the fork reports.
    Forking,
}

/// Message from pid 1 to the nursery.
#[derive(Serialize, Deserialize)]
pub enum Pid1Report {
    /// Pid 1 waits for its program. Descriptors, if the program is to be forked from a zygote: a pidfd of pid 1, and
    /// its namespaces.
    Prepared,
    /// The program runs. Descriptors: a pidfd of the program; if it is a zygote, also three namespaces of the sandbox;
    /// if it has access to object storage, also the listener for that.
    Started,
    /// Pid 1 is about to end.
    Failed { what: String },
    /// The program's exit status, or the negative signal that killed it. Pid 1 is about to end, unless the program was
    /// a zygote.
    Ended { status: i32 },
    /// The end of a process that was forked from this sandbox's zygote: its pid in this sandbox, and its status.
    Reaped { pid: i32, status: i32 },
}
