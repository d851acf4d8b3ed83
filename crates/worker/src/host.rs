//! The worker as a part of another program, which brings a function of its own: a Python interpreter, say.
//!
//! Its one slot runs on the program's own thread, because that is where such programs expect their functions to run
//! (Python delivers signals to its main thread only). The agent is obeyed on a thread of its own.

use crate::control::{Program, SlotThreads};
use crate::library::FunctionTable;
use crate::mailbox::{Letter, Mailbox};
use crate::state::StateFunctions;
use crate::{HostFunction, Worker, obey};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a slot does for ever.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// Of the one slot; there is one worker in a process.
static MAILBOX: OnceLock<Arc<Mailbox>> = OnceLock::new();
/// What clients have said last.
static REACHED_AT: Mutex<Option<IpAddr>> = Mutex::new(None);

/// The slot of a worker that was assigned to a lease.
pub struct HostedSlot(Body);

impl HostedSlot {
    /// Serves for ever, on this thread and its core.
    pub fn run(self) -> ! {
        (self.0)();
        unreachable!("a slot serves for ever")
    }
}

impl Worker {
    /// Waits until the agent has assigned this process to a lease. `function` has index 0; clients load libraries beside it.
    /// `state`: what saves and restores what functions have left in this process.
    ///
    /// # Errors
    /// If the system gives no thread to obey the agent on.
    pub fn host(self, function: HostFunction, state: Option<StateFunctions>) -> io::Result<HostedSlot> {
        self.prepare()?;
        let (sender, bodies) = mpsc::sync_channel(1);
        let program = Program {
            functions: Arc::new(FunctionTable::of_host(function)),
            threads: SlotThreads::Handed(sender),
            imports: self.imports,
            state,
            ..Program::default()
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
    // Assigned once.
    let _ = MAILBOX.set(mailbox);
}

/// Under which address the client of this worker, on another host, reaches this one; `None`: no such client has come.
pub fn reached_at() -> Option<IpAddr> {
    *REACHED_AT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client on another host reaches this one so.
pub(crate) fn set_reached_at(host: IpAddr) {
    *REACHED_AT.lock().unwrap_or_else(PoisonError::into_inner) = Some(host);
}

/// For a host's function: the process ends with this status once the reply to the present invocation is out. What waits
/// behind it is not run, and its client is told so.
pub fn leave_after_this(status: i32) {
    if let Some(mailbox) = MAILBOX.get() {
        mailbox.put(Letter::Leave(status));
    }
}
