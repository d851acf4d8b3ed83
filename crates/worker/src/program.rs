//! The worker's program: its functions, and the threads that slots run on.

use crate::function::library::FunctionTable;
use crate::function::remote_worker::RemoteWorker;
use crate::state::StateFunctions;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Stack of a slot's thread: the size of a program's main stack, as functions expect.
pub const STACK_BYTES: usize = 8 << 20;

/// The endless loop of a slot.
pub(crate) type SlotLoop = Box<dyn FnOnce() + Send>;

/// Properties of the worker's program.
#[derive(Default)]
pub struct WorkerProgram {
    /// Functions that exist from the beginning.
    pub functions: Arc<FunctionTable>,
    /// Threads of the slots.
    pub threads: SlotThreads,
    /// Time that its imports took so far.
    pub imports: Duration,
    /// Functions that save and restore its functions' state, if there are any.
    pub state: Option<StateFunctions>,
    /// Time that its own virtual machine took to boot.
    pub boot: Duration,
    /// Worker that runs functions in place of this process, for instance in a virtual machine, if there is one.
    pub remote_worker: Option<&'static dyn RemoteWorker>,
}

/// Threads that slots run on.
#[derive(Default)]
pub enum SlotThreads {
    /// New threads.
    #[default]
    Spawned,
    /// A thread of the host program for the only slot; it waits for the slot's loop.
    Handed(SyncSender<SlotLoop>),
}

impl SlotThreads {
    pub fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
        match self {
            Self::Spawned => spawn(name, body),
            Self::Handed(thread) => thread
                .try_send(Box::new(body))
                .map_err(|_| "the thread of the only slot is taken".into()),
        }
    }
}

/// Starts a thread with a stack for functions.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(body)
        .map(drop)
        .map_err(|error| format!("cannot start thread {name}: {error}"))
}
