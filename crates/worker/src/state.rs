//! The state that functions have left in this process: saved when its lease ends, and restored for the next one, by functions of the
//! program that hosts the worker. They run on the slot's thread between two invocations, so no function changes meanwhile what they see.

use crate::control::{Lease, Program};
use crate::mailbox::Letter;
use std::fs::File;
use std::sync::mpsc;

/// What a program that hosts a worker can do with its functions' state. Each says in words why it could not.
#[derive(Clone, Copy)]
pub struct StateFunctions {
    /// Whether there is anything that saves and restores.
    pub check: fn() -> Result<(), String>,
    /// Reads so many bytes from the pipe, and restores the state that they are.
    pub restore: fn(&mut File, u64) -> Result<(), String>,
    /// Writes the length of the state (64 bits, little endian) and its bytes to the pipe.
    pub save: fn(&mut File) -> Result<(), String>,
}

/// Has the only slot of a hosted worker do it, and waits. `job` says whether the slot serves on.
pub(crate) fn with(
    program: &Program,
    lease: &Lease,
    job: impl FnOnce(StateFunctions) -> (Result<(), String>, bool) + Send + 'static,
) -> Result<(), String> {
    let (Some(functions), [slot]) = (program.state, &lease.slots[..]) else {
        return Err("workers of this kind have no state that could be saved".into());
    };
    let (sender, done) = mpsc::sync_channel(1);
    slot.put(Letter::Job(Box::new(move || {
        let (result, serves_on) = job(functions);
        // Waited for below.
        let _ = sender.send(result);
        serves_on
    })));
    let gone = "the slot has ended";
    done.recv().unwrap_or_else(|mpsc::RecvError| Err(gone.into()))
}
