//! `hotlease-machine`: a worker in a virtual machine of its own.
//!
//! ```text
//! agent, clients ══ control, channels ══ monitor ── one serial port ── guest ══ control, channels ══ worker
//!                                        └ in a sandbox of kind `namespace`, with QEMU ┘ └ in the machine ┘
//! ```
//!
//! The same program is both ends. Started by an agent it is the *monitor*: to agent and clients it is the worker, and it has the
//! machine made, by QEMU, of the kernel that the site names and of a first file system with nothing but this program in it. There it is
//! started again, as process 1: the *guest*, which mounts what the sandbox shows, starts the worker's own program, and is agent and
//! client to it.
//!
//! Everything that a machine may reach is what the sandbox around it may reach: it has no devices but the port and random numbers, and asks for
//! the sandbox's files by the port. Who breaks out of the machine is in that sandbox.
//!
//! | file | job |
//! |---|---|
//! | `link` | messages over the port |
//! | `monitor` | the end outside |
//! | `monitor/boot` | the command line and the first file system of a machine |
//! | `monitor/modules` | which modules of the kernel it needs |
//! | `monitor/far` | orders and calls for the worker inside |
//! | `monitor/files` | the files that the machine sees |
//! | `monitor/saving` | machines that are saved, and go on |
//! | `monitor/control` | what QEMU is told |
//! | `guest` | process 1 |
//! | `guest/program` | the worker's program |
//! | `guest/root` | what the worker sees there |
//! | `guest/serving` | orders for the worker, its slots |
//! | `guest/slot` | calls of one slot |
//! | `guest/teller` | what is said to the monitor, and when nothing is under way |

#![forbid(unsafe_code)]

mod guest;
mod link;
mod monitor;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Nothing else is ever process 1: the sandbox around a monitor has its own.
    if std::process::id() == 1 {
        return guest::run();
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match guest::confinement(&arguments) {
        Some((zygote, program)) => guest::confined(zygote, program),
        None => monitor::run(),
    }
}
