//! The worker as a part of another program, which brings a function of its own, such as a Python interpreter.
//!
//! Its one slot runs on the program's own thread, because such programs expect their functions to run there (Python
//! delivers signals to its main thread only). Another thread obeys the agent.

use crate::function::library::FunctionTable;
use crate::program::{SlotLoop, SlotThreads, WorkerProgram};
use crate::slot::mailbox::{Mailbox, SlotMessage};
use crate::state::StateFunctions;
use crate::{HostFunction, Worker, obey};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Mailbox of the one slot; a process has one worker.
static MAILBOX: OnceLock<Arc<Mailbox>> = OnceLock::new();
/// Last address that a client has reported.
static REACHED_AT: Mutex<Option<IpAddr>> = Mutex::new(None);

/// The slot of a worker that is assigned to a lease.
pub struct HostedSlot(SlotLoop);

impl HostedSlot {
    /// Serves for ever, on this thread and its core.
    pub fn run(self) -> ! {
        (self.0)();
        unreachable!("a slot serves for ever")
    }
}

impl Worker {
    /// Waits until the agent has assigned this process to a lease. `function` has index 0; clients load libraries
    /// beside it. `state`: functions that save and restore the state that functions leave in this process.
    ///
    /// # Errors
    /// If the system provides no thread to obey the agent on.
    pub fn host(self, function: HostFunction, state: Option<StateFunctions>) -> io::Result<HostedSlot> {
        self.prepare(true)?;
        self.floats.restore();
        let (sender, bodies) = mpsc::sync_channel(1);
        let program = WorkerProgram {
            functions: Arc::new(FunctionTable::of_host(function)),
            threads: SlotThreads::Handed(sender),
            imports: self.imports,
            state,
            ..WorkerProgram::default()
        };
        let control = std::thread::Builder::new().name("hotlease-control".into());
        control.spawn(move || obey(self.socket, program))?;
        match bodies.recv() {
            Ok(body) => Ok(HostedSlot(body)),
            // The thread above has ended, and the process with it.
            Err(mpsc::RecvError) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Remembers the mailbox of the slot.
pub(crate) fn set_mailbox(mailbox: Arc<Mailbox>) {
    // The worker is assigned only once.
    let _ = MAILBOX.set(mailbox);
}

/// Address by which a client on another host reaches this host; `None` if no such client has connected.
pub fn address_for_clients() -> Option<IpAddr> {
    *REACHED_AT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the address by which a client on another host reaches this host.
pub(crate) fn set_reached_at(host: IpAddr) {
    *REACHED_AT.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
}

/// For a host's function: ends the process with this status after the reply to the current invocation is published.
/// Requests that wait behind it are not run; their clients are informed of that.
pub fn exit_after_reply(status: i32) {
    if let Some(mailbox) = MAILBOX.get() {
        mailbox.put(SlotMessage::Leave(status));
    }
}
