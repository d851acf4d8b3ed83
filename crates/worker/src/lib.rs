//! The worker: the process that runs functions.
//!
//! Started by an agent with a control socket as its standard input, it waits to be assigned to a lease,
//! then runs one thread per slot. The main thread obeys the agent and serves the clients' connections;
//! a slot's thread polls its channels, calls functions and publishes replies, and shares nothing with
//! anybody on that path. End of file on the control socket means that the agent is gone: the worker exits.
//!
//! `hotlease-worker` is [`Worker::take_over`] and [`Worker::serve`]. A program with a function of its own, like a
//! Python interpreter, is a worker of one slot by [`Worker::host`]: the same loop, on the calling thread. Such a program loads
//! libraries by [`Library`], where it calls functions of them itself.
//!
//! | file | job |
//! |---|---|
//! | `control` | the agent's orders; the poll loop of the main thread |
//! | `connection` | one client's connection: channels and registered memory |
//! | `host` | the worker as a part of another program |
//! | `slot` | a slot's thread: polling, serving, sleeping |
//! | `core` | whose a slot's core is: its own, or claimed for each invocation |
//! | `fabrics` | the slots' ports, for clients on other hosts |
//! | `landing` | where data of a client on another host stands during a call |
//! | `sleep` | sleeping on ports |
//! | `idle` | how long a slot polls before it sleeps |
//! | `mailbox` | how the main thread hands things to a slot |
//! | `invoke` | calling a function through either interface, with its bounds |
//! | `context` | what a function of the context interface is given |
//! | `seat` | a slot's place in a gang |
//! | `library` | loading function libraries |
//! | `state` | having what functions have left behind saved and restored |
//! | `hooks` | the functions of a library that do it |
//! | `elsewhere` | functions that run in a virtual machine, which this process speaks for |
//! | `lifeline` | ends the worker when its agent is gone |
//! | `watchdog` | cancel flags of functions past their deadline |
//! | `fault` | writing down why the process dies |

mod connection;
mod context;
mod control;
mod core;
mod elsewhere;
mod fabrics;
mod fault;
mod hooks;
mod host;
mod idle;
mod invoke;
mod landing;
mod library;
mod lifeline;
mod mailbox;
mod seat;
mod sleep;
mod slot;
mod state;
mod watchdog;

pub use context::{Context, FunctionContext};
pub use control::ControlError;
pub use elsewhere::{Call, Elsewhere, End, Returned};
pub use host::{HostedSlot, leave_after_this, reached_at};
pub use invoke::{Outcome, Place};
pub use library::{Library, Loaded};
pub use seat::{Foreign, Keep, Seat};
pub use state::{StateFunctions, StatePieces};

use hotlease_fabric::socket::Socket;
use hotlease_wire::control::Answer;
use hotlease_wire::limits::PROTOCOL_VERSION;
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A function of the context interface, of the program that hosts a worker: context, input, its bytes, output, its
/// capacity, and where to say how many bytes it produced. Gives 0, or its own error number.
pub type HostFunction =
    unsafe extern "C" fn(*mut c_void, *const c_void, u64, *mut c_void, u64, *mut u64) -> i32;

/// A process that has become a worker, and was not assigned to a lease yet.
pub struct Worker {
    socket: Socket,
    imports: Duration,
    boot: Duration,
}

impl Worker {
    /// Becomes one: takes the control socket away from standard input, where functions would find it.
    ///
    /// # Errors
    /// If standard input is no control socket: the process was not started by an agent.
    pub fn take_over() -> io::Result<Self> {
        let socket = Socket::from(fault::take_control_socket()?);
        Ok(Self {
            socket,
            imports: Duration::ZERO,
            boot: Duration::ZERO,
        })
    }

    /// Of the time since its process was started, what its program has spent on imports: told to whoever asks where the time of
    /// the start went.
    pub fn set_imports(&mut self, took: Duration) {
        self.imports = took;
    }

    /// How long the machine took to boot that the worker is in.
    pub fn set_boot(&mut self, took: Duration) {
        self.boot = took;
    }

    /// Tells the agent that workers may be forked from this process from now on, which is none itself. What is given back is to be kept open
    /// here, and nowhere else.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn become_zygote(self) -> io::Result<OwnedFd> {
        let ready = Answer::Ready {
            version: PROTOCOL_VERSION,
            imports_us: self.imports.as_micros() as u64,
            boot_us: self.boot.as_micros() as u64,
        };
        self.socket.send(&ready, &[])?;
        Ok(self.socket.into())
    }

    /// Prepares for crashes, and for the agent's end.
    fn prepare(&self) -> io::Result<()> {
        fault::install();
        lifeline::hold(&self.socket)
    }

    /// Obeys the agent until it is gone; then ends the process.
    pub fn serve(self) -> ! {
        if let Err(error) = self.prepare() {
            eprintln!("hotlease-worker: cannot watch the control socket: {error}");
            fault::leave(1)
        }
        obey(self.socket, control::Program::default())
    }

    /// As [`serve`](Self::serve), for a worker elsewhere whose program has so many functions from the beginning.
    pub fn serve_for(self, there: &'static dyn Elsewhere, functions: u16) -> ! {
        if let Err(error) = self.prepare() {
            eprintln!("hotlease-worker: cannot watch the control socket: {error}");
            fault::leave(1)
        }
        let program = control::Program {
            functions: Arc::new(library::FunctionTable::of_elsewhere(there, functions)),
            imports: self.imports,
            boot: self.boot,
            elsewhere: Some(there),
            ..control::Program::default()
        };
        obey(self.socket, program)
    }

    /// Ends the process as the worker that it speaks for has ended.
    pub fn end_as(end: End) -> ! {
        fault::end_as(end)
    }

    /// Tells the agent, and so the client, why this process cannot be a worker; ends it.
    pub fn refuse(self, why: String) -> ! {
        // Who does not hear it hears of the end.
        let _ = self.socket.send(&Answer::Failed { why }, &[]);
        fault::leave(1)
    }
}

/// Obeys until the agent is gone; then ends the process.
fn obey(socket: Socket, program: control::Program) -> ! {
    let error = control::obey(socket, program).err();
    if let Some(error) = &error {
        eprintln!("hotlease-worker: {error}");
    }
    // Not a normal exit: destructors of function libraries must not run, they could hang.
    fault::leave(if error.is_some() { 1 } else { 0 })
}
