//! The worker: the process that runs functions.
//!
//! An agent starts the worker with a control socket as its standard input. The worker waits to be assigned to a lease,
//! then runs one thread per slot. The main thread obeys the agent and serves the clients' connections; a slot's thread
//! polls its channels, calls functions and publishes replies, and shares nothing with other threads on that path. End
//! of file on the control socket means that the agent is gone: the worker exits.
//!
//! `hotlease-worker` is [`Worker::take_over`] and [`Worker::serve`]. A program with a function of its own, like a
//! Python interpreter, becomes a worker of one slot by [`Worker::host`]: the same loop, on the calling thread. If such
//! a program calls functions of libraries itself, it loads them by [`Library`].
//!
//! | file | job |
//! |---|---|
//! | `control` | the agent's orders; the poll loop of the main thread |
//! | `connection` | one client's connection: channels and registered memory |
//! | `host` | the worker as a part of another program |
//! | `slot` | a slot's thread: polling, serving, sleeping |
//! | `slot/core` | the core of a slot: the slot's own, or shared and claimed for each invocation |
//! | `shared_place` | the place of a worker on a shared core, and its move to another core |
//! | `slot/landing` | landing buffers: data of a client on another host during a call |
//! | `slot/sleep` | sleeping on ports |
//! | `slot/idle` | idle policy: how long a slot polls before it sleeps |
//! | `slot/mailbox` | messages from the main thread to a slot |
//! | `memory_server` | the memory block of a worker without slots |
//! | `lease` | state of a worker that is assigned to a lease |
//! | `program` | the worker's program, and the threads that slots run on |
//! | `ports` | the slots' ports, for clients on other hosts |
//! | `function/arguments` | input and output of calls: located and checked |
//! | `function/invoke` | calling a function through either interface, with its bounds |
//! | `function/context` | the context that a function of the context interface gets |
//! | `function/seat` | a slot's place in a gang |
//! | `function/library` | loading function libraries |
//! | `function/state_hooks` | the functions of a library that save and restore its state |
//! | `function/remote_worker` | functions that run in a virtual machine, which this process represents |
//! | `state` | saving and restoring the state that functions leave in the process |
//! | `lifeline` | ends the worker when its agent is gone |
//! | `watchdog` | cancel flags of functions past their deadline |
//! | `crash` | crash records: why the process dies |
//! | `forks` | processes that functions fork |
//! | `float_state` | floating-point state of a thread, which functions may change |

mod connection;
mod control;
mod crash;
mod float_state;
mod forks;
mod function;
mod host;
mod lease;
mod lifeline;
mod memory_server;
mod ports;
mod program;
mod shared_place;
mod slot;
mod state;
mod watchdog;

pub use control::ControlError;
pub use float_state::FloatState;
pub use forks::is_child;
pub use function::arguments::MemoryPlace;
pub use function::context::{Context, FunctionContext};
pub use function::library::{Library, LoadedFunction};
pub use function::outcome::CallOutcome;
pub use function::remote_worker::{RemoteCall, RemoteCallResult, RemoteWorker, WorkerEnd};
pub use function::seat::{ForeignValue, SeatLayout, SeatValue};
pub use function::state_pieces::StatePieces;
pub use host::{HostedSlot, address_for_clients, exit_after_reply};
pub use state::StateFunctions;

use hotlease_fabric::socket::Socket;
use hotlease_wire::control::WorkerAnswer;
use hotlease_wire::limits::PROTOCOL_VERSION;
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A function of the context interface, of the program that hosts a worker. Its arguments: context, input, input size,
/// output, output capacity, and a place for the number of output bytes. Returns 0, or its own error number.
pub type HostFunction = unsafe extern "C" fn(*mut c_void, *const c_void, u64, *mut c_void, u64, *mut u64) -> i32;

/// A process that has become a worker, and that is not assigned to a lease yet.
pub struct Worker {
    socket: Socket,
    imports: Duration,
    boot: Duration,
    /// Floating-point state from before the imports.
    floats: FloatState,
}

impl Worker {
    /// Makes this process a worker: moves the control socket away from standard input, where functions would find it.
    /// Notes the floating-point state, and restores it before the worker serves. So the program's own code and imports
    /// may change the state until then.
    ///
    /// # Errors
    /// If standard input is no control socket: the process was not started by an agent.
    pub fn take_over() -> io::Result<Self> {
        let socket = Socket::from(crash::take_control_socket()?);
        Ok(Self {
            socket,
            imports: Duration::ZERO,
            boot: Duration::ZERO,
            floats: FloatState::current(),
        })
    }

    /// Sets the time that the program has spent on imports since its process was started. It is reported with the
    /// phases of the start.
    pub fn set_imports(&mut self, took: Duration) {
        self.imports = took;
    }

    /// Sets the time that the worker's virtual machine took to boot.
    pub fn set_boot(&mut self, took: Duration) {
        self.boot = took;
    }

    /// Makes this process a zygote instead of a worker: tells the agent that workers may be forked from it from now on.
    /// The caller must keep the returned descriptor open in this process, and in no other.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn become_zygote(self) -> io::Result<OwnedFd> {
        self.floats.restore();
        let ready = WorkerAnswer::Ready {
            version: PROTOCOL_VERSION,
            imports_us: self.imports.as_micros() as u64,
            boot_us: self.boot.as_micros() as u64,
        };
        self.socket.send(&ready, &[])?;
        Ok(self.socket.into())
    }

    /// Installs crash handlers, and the watch for the agent's end. `hosted`: another program hosts the worker.
    fn prepare(&self, hosted: bool) -> io::Result<()> {
        crash::install(hosted)?;
        lifeline::hold(&self.socket)
    }

    /// Obeys the agent until it is gone; then ends the process.
    pub fn serve(self) -> ! {
        if let Err(error) = self.prepare(false) {
            eprintln!("hotlease-worker: cannot watch the control socket or signals: {error}");
            crash::exit_now(1)
        }
        obey(self.socket, program::WorkerProgram::default())
    }

    /// Serves as [`serve`](Self::serve) does, for a worker in a virtual machine, whose program has this many functions
    /// from the beginning.
    pub fn serve_for(self, there: &'static dyn RemoteWorker, functions: u16) -> ! {
        if let Err(error) = self.prepare(false) {
            eprintln!("hotlease-worker: cannot watch the control socket or signals: {error}");
            crash::exit_now(1)
        }
        let program = program::WorkerProgram {
            functions: Arc::new(function::library::FunctionTable::of_remote_worker(there, functions)),
            imports: self.imports,
            boot: self.boot,
            remote_worker: Some(there),
            ..program::WorkerProgram::default()
        };
        obey(self.socket, program)
    }

    /// Ends this process as the worker that it represents has ended: by the same signal, or with the same exit status.
    pub fn end_as(end: WorkerEnd) -> ! {
        crash::end_as(end)
    }

    /// Tells the agent, and so the client, why this process cannot be a worker; then ends the process.
    pub fn reject(self, why: String) -> ! {
        // If the agent does not get the message, it still sees the end of the process.
        let _ = self.socket.send(&WorkerAnswer::Failed { why }, &[]);
        crash::exit_now(1)
    }
}

/// Obeys the agent until it is gone; then ends the process.
fn obey(socket: Socket, program: program::WorkerProgram) -> ! {
    let error = control::obey(socket, program).err();
    if let Some(error) = &error {
        eprintln!("hotlease-worker: {error}");
    }
    // This is no normal exit: destructors of function libraries must not run, because they could hang.
    crash::exit_now(if error.is_some() { 1 } else { 0 })
}
