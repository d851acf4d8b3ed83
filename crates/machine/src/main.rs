//! `hotlease-machine`: a worker in a virtual machine of its own.
//!
//! ```text
//! agent, clients ══ control, channels ══ monitor ── one serial port ── guest ══ control, channels ══ worker
//!                                        └ in a sandbox of kind `namespace`, with QEMU ┘ └ in the machine ┘
//! ```
//!
//! The same program is both ends. Started by an agent, it is the *monitor*. For agent and clients the monitor is the
//! worker. It makes QEMU start a virtual machine, from the kernel that the site names and a first file system with
//! nothing but this program in it. There the program is started again, as process 1: the *guest*. The guest mounts the
//! sandbox's files, starts the worker's own program, and is the agent and client of that program.
//!
//! A machine can reach only what the sandbox around it can reach: it has no devices but the port and random numbers,
//! and gets the sandbox's files through the port. Code that breaks out of the machine is still in that sandbox.
//!
//! | file | job |
//! |---|---|
//! | `messages` | messages over the port |
//! | `monitor` | the end outside the machine |
//! | `monitor/boot` | the command line and the first file system of a machine |
//! | `monitor/modules` | the kernel modules that a machine needs |
//! | `monitor/guest_connection` | orders and calls for the worker inside |
//! | `monitor/files` | the sandbox's files for the machine |
//! | `monitor/saving` | machines that are saved, and resumed many times |
//! | `monitor/qemu` | orders to QEMU |
//! | `guest` | process 1 of the machine |
//! | `guest/program` | the worker's program |
//! | `guest/root` | the worker's root file system in the machine |
//! | `guest/worker_control` | orders for the worker and its slots |
//! | `guest/slot` | calls of one slot |
//! | `guest/output` | output of the worker |
//! | `guest/monitor_sender` | messages to the monitor, and the questions under way |

#![forbid(unsafe_code)]

mod guest;
mod messages;
mod monitor;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // No other part of the program is ever process 1: the sandbox around a monitor has its own process 1.
    if std::process::id() == 1 {
        return guest::run();
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match guest::confinement(&arguments) {
        Some((zygote, program)) => guest::run_confined(zygote, program),
        None => monitor::run(),
    }
}
