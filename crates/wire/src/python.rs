//! Workers that are Python interpreters: what client, agent and worker agree on.
//!
//! The bytes of their tasks are [`task`](crate::task)'s, and no concern of the agent.

use crate::code::{Function, Interface};
use crate::ids::CodeHash;

/// The one function of a Python worker: it runs a task.
pub const FUNCTION: &str = "hotlease.call";
/// The environment variable in which a worker finds [`Expected`], as `NAME=VERSION` separated by spaces.
pub const EXPECTED: &str = "HOTLEASE_PYTHON_EXPECTED";
/// The environment variable with what is to be appended to the import path, separated by colons.
pub const PATH: &str = "HOTLEASE_PYTHON_PATH";
/// The environment variable with the modules that a worker imports before it takes orders, separated by spaces. Workers that have some can
/// be forked from a zygote that has imported them.
pub const IMPORTS: &str = "HOTLEASE_PYTHON_IMPORTS";
/// Bytes of environment, import path and all other words of a lease's Python.
pub const BYTES_MAX: usize = 128 * 1024;

/// The address of the library that every Python worker has from the beginning. It has no bytes and cannot be sent.
pub fn library() -> CodeHash {
    CodeHash::of(b"hotlease: the library of Python workers, version 1")
}

/// Its functions.
pub fn functions() -> Vec<Function> {
    vec![Function {
        name: FUNCTION.to_owned(),
        interface: Interface::Context,
        idempotent: false,
    }]
}
