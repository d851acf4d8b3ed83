//! The state that functions leave in this process: saved when its lease ends, and restored for the next lease.
//! Functions of the program that hosts the worker, or of the library that the worker has loaded, save and restore it.
//! They run on the slot's thread between two invocations, so no function changes the state meanwhile.

use crate::function::context::Context;
use crate::function::state_hooks::StateHooks;
use crate::function::state_pieces::StatePieces;
use crate::slot::mailbox::{Mailbox, SlotMessage};
use std::fs::File;
use std::sync::{Arc, mpsc};

/// Functions of a host program that save and restore its functions' state. Each returns an error text on failure.
#[derive(Clone, Copy)]
pub struct StateFunctions {
    /// Checks whether the program can save and restore.
    pub check: fn() -> Result<(), String>,
    /// Reads this many bytes from the pipe, and restores the state from them.
    pub restore: fn(&mut File, u64) -> Result<(), String>,
    /// Saves the state in pieces.
    pub save: fn(&mut StatePieces<File>) -> Result<(), String>,
}

/// The party that saves and restores: the host program or a library.
#[derive(Clone)]
pub(crate) enum StateKeeper {
    Program(StateFunctions),
    Library(StateHooks),
}

impl StateKeeper {
    /// Checks whether a state could be saved.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Program(functions) => (functions.check)(),
            Self::Library(_) => Ok(()),
        }
    }

    pub fn restore(&self, context: &mut Context, mut pipe: File, bytes: u64) -> Result<(), String> {
        match self {
            Self::Program(functions) => (functions.restore)(&mut pipe, bytes),
            Self::Library(hooks) => hooks.restore(context, pipe, bytes),
        }
    }

    pub fn save(&self, context: &mut Context, pipe: File) -> Result<(), String> {
        let mut pieces = StatePieces::new(pipe);
        match self {
            Self::Program(functions) => (functions.save)(&mut pieces)?,
            Self::Library(hooks) => hooks.save(context, &mut pieces)?,
        }
        pieces.end().map_err(|error| error.to_string())
    }
}

/// Makes the only slot of a worker run `job`, and waits for it. `job` returns its result, and whether the slot
/// continues to serve.
pub(crate) fn run_on_slot(
    keeper: Option<&StateKeeper>,
    slots: &[Arc<Mailbox>],
    job: impl FnOnce(&StateKeeper, &mut Context) -> (Result<(), String>, bool) + Send + 'static,
) -> Result<(), String> {
    let (Some(keeper), [slot]) = (keeper.cloned(), slots) else {
        return Err("nothing in this worker says how its state is saved".into());
    };
    let (sender, done) = mpsc::sync_channel(1);
    slot.put(SlotMessage::Job(Box::new(move |context| {
        let (result, serves_on) = job(&keeper, context);
        // The receiver waits below.
        let _ = sender.send(result);
        serves_on
    })));
    let gone = "the slot has ended";
    done.recv().unwrap_or_else(|mpsc::RecvError| Err(gone.into()))
}
