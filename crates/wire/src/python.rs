//! Workers that are Python interpreters: constants shared by client, agent and worker.
//!
//! The format of their tasks is that of [`task`](crate::task), and no concern of the agent.

use crate::code::{ExportedFunction, Interface};
use crate::ids::CodeHash;

/// Name of the one function of a Python worker, which runs a task.
pub const FUNCTION: &str = "hotlease.call";
/// Environment variable in which a worker finds the versions that its client expects, as `NAME=VERSION` separated by
/// spaces.
pub const EXPECTED: &str = "HOTLEASE_PYTHON_EXPECTED";
/// Environment variable with the import path of the program, separated by colons.
pub const PATH: &str = "HOTLEASE_PYTHON_PATH";
/// Environment variable with the modules that a worker imports before it accepts orders, separated by spaces. Workers
/// with such modules can be forked from a zygote that has imported them.
pub const IMPORTS: &str = "HOTLEASE_PYTHON_IMPORTS";
/// Most bytes of environment, import path and all other strings of a lease's Python.
pub const BYTES_MAX: usize = 128 * 1024;

/// Address of the library that every Python worker has from the beginning. It has no bytes and cannot be sent.
pub fn library() -> CodeHash {
    CodeHash::of(b"hotlease: the library of Python workers, version 1")
}

/// Functions of that library.
pub fn functions() -> Vec<ExportedFunction> {
    vec![ExportedFunction {
        name: FUNCTION.to_owned(),
        interface: Interface::Context,
        idempotent: false,
    }]
}
