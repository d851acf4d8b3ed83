//! Level 1 of hotlease: the helper program that makes sandboxes of kind `namespace`.
//!
//! An agent is large and has many threads; copying it to make a sandbox would take longer than all other steps
//! together. So the agent starts this small program once, and sends it orders over a socket:
//!
//! ```text
//! agent ──► nursery ──clone3──► pid 1 of a sandbox ──fork──► the worker
//!   Order     │                  mounts, pivots, WAITS         system calls limited,
//!             │                  (prepared)                    then exec
//!             │                  reaps; its end ends all
//!             └ reports the end of each sandbox in a separate pipe
//! ```
//!
//! * [`order`] has the messages between agent and nursery. [`policy`] has what a site lets sandboxes see and use.
//!   [`program`] is the description of a program, and its start. `pid1_message` has the messages of pid 1.
//! * [`system_calls`] is the table of system calls that code inside may make, each with its reason.
//! * [`directory`] is a directory of the host that a lease has asked for, and how it is opened.
//! * [`container`] makes sandboxes with a container runtime, if a site has a runtime.
//! * [`program::inner_environment`] carries a worker's variables through the environment of a process outside.
//! * [`cgroup`] makes the control groups of workers.
//! * [`zygote`] is a program from which workers are forked, each into a sandbox of its own.
//! * `loopback` leads to object storage, for leases that have access to it.
//! * `nursery` is the loop. `sandbox_process` makes a sandbox from outside. `inside` is pid 1. `root`, `filter` and
//!   `confinement` contain one mechanism each. `message` sends and receives. `kernel` has the system calls that no
//!   library wraps.
//!
//! No part outlives the part that started it. The nursery ends when its agent's socket closes. The kernel kills every
//! sandbox when the nursery ends, and everything in a sandbox when its pid 1 ends.

pub mod cgroup;
mod confinement;
pub mod container;
pub mod directory;
mod filter;
mod inside;
mod kernel;
mod loopback;
mod message;
mod nursery;
pub mod order;
mod pid1_message;
pub mod policy;
pub mod program;
mod root;
mod sandbox_process;
pub mod system_calls;
pub mod zygote;

/// Limits the calling process, and every program that it runs, to the system calls of a sandbox: [`system_calls`],
/// without a network. The process can gain no privileges any more. `forks`: also allows the calls of a [`zygote`].
///
/// # Errors
/// The kernel rejects the filter.
pub fn limit_system_calls(forks: bool) -> std::io::Result<()> {
    let filter = match forks {
        false => filter::allowing(system_calls::table(false)),
        true => filter::allowing(system_calls::table_of_zygote()),
    };
    confinement::limit_system_calls(&filter.map_err(std::io::Error::other)?)
}

pub use confinement::forbid_capabilities;
pub use kernel::mix_entropy;
pub use message::{receive, send};
pub use nursery::{NurseryError, serve};
