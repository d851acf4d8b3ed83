//! The worker: the process that runs functions.
//!
//! Started by an agent with a control socket as its standard input, it waits to be assigned to a lease,
//! then runs one thread per slot. The main thread obeys the agent and serves the clients' connections;
//! a slot's thread polls its channels, calls functions and publishes replies, and shares nothing with
//! anybody on that path. End of file on the control socket means that the agent is gone: the worker exits.
//!
//! | file | job |
//! |---|---|
//! | `control` | the agent's orders; the poll loop of the main thread |
//! | `connection` | one client's connection: channels and registered memory |
//! | `slot` | a slot's thread: polling, serving, sleeping |
//! | `core` | whose a slot's core is: its own, or claimed for each invocation |
//! | `fabrics` | the slots' ports, for clients on other hosts |
//! | `landing` | where data of a client on another host stands during a call |
//! | `sleep` | sleeping on ports |
//! | `idle` | how long a slot polls before it sleeps |
//! | `mailbox` | how the main thread hands things to a slot |
//! | `invoke` | calling a function through either interface, with its bounds |
//! | `context` | what a function of the context interface is given |
//! | `library` | loading function libraries |
//! | `lifeline` | ends the worker when its agent is gone |
//! | `watchdog` | cancel flags of functions past their deadline |
//! | `fault` | writing down why the process dies |

mod connection;
mod context;
mod control;
mod core;
mod fabrics;
mod fault;
mod idle;
mod invoke;
mod landing;
mod library;
mod lifeline;
mod mailbox;
mod sleep;
mod slot;
mod watchdog;

use hotlease_fabric::socket::Socket;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        eprintln!(
            "hotlease-worker {}: started by an agent, takes no arguments; see `hotlease up`",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::from(2);
    }
    let socket = match fault::take_control_socket() {
        Ok(fd) => Socket::from(fd),
        Err(error) => {
            eprintln!("hotlease-worker: standard input is not an agent's control socket: {error}");
            return ExitCode::from(2);
        }
    };
    fault::install();
    if let Err(error) = lifeline::hold(&socket) {
        eprintln!("hotlease-worker: cannot watch the control socket: {error}");
        return ExitCode::FAILURE;
    }
    let error = control::obey(socket).err();
    if let Some(error) = &error {
        eprintln!("hotlease-worker: {error}");
    }
    // Not a normal exit: destructors of function libraries must not run, they could hang.
    fault::leave(if error.is_some() { 1 } else { 0 })
}
