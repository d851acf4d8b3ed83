//! Level 1 of hotlease: the helper program that makes sandboxes of kind `namespace`.
//!
//! An agent is large and has many threads; copying it to make a sandbox would take longer than all the rest. It
//! starts this small program once instead, and gives it orders over a socket:
//!
//! ```text
//! agent ──► nursery ──clone3──► pid 1 of a sandbox ──fork──► the worker
//!   Order     │                  mounts, pivots, WAITS         system calls limited,
//!             │                  (prepared)                    then exec
//!             │                  reaps; its end ends all
//!             └ tells each end into a pipe of its sandbox's own
//! ```
//!
//! * [`order`] is what agent and nursery say to each other; [`policy`] what a site lets sandboxes see and use.
//! * [`system_calls`] is the table of what code inside may ask of the kernel, each with its reason.
//! * [`declared`] is a directory of the host that a lease has asked for, and how it is opened.
//! * [`container`] is what becomes of them where a site has a container runtime.
//! * [`zygote`] is a program from which others are forked, each into a sandbox of its own.
//! * `loopback` is the way to object storage of leases that have one.
//! * `nursery` is the loop; `making` makes one from outside; `inside` is pid 1; `root`, `landing`, `cgroup`,
//!   `confinement` are one mechanism each; `kernel` is what no library wraps.
//!
//! Nobody outlives anybody: the nursery ends when its agent's socket closes, every sandbox is killed by the kernel when the
//! nursery ends, and everything in a sandbox when its pid 1 does.

mod cgroup;
mod confinement;
pub mod container;
pub mod declared;
mod filter;
mod inside;
mod kernel;
mod loopback;
mod making;
mod message;
mod nursery;
pub mod order;
pub mod policy;
mod root;
pub mod system_calls;
pub mod zygote;

/// Limits the calling process, and what it becomes, to what code in a sandbox may ask of the kernel: [`system_calls`], without a
/// network. It has no privileges to gain any more. `forks`: and to what a [`zygote`] needs.
///
/// # Errors
/// The kernel takes no filter.
pub fn limit_system_calls(forks: bool) -> std::io::Result<()> {
    let filter = match forks {
        false => filter::of(system_calls::table(false)),
        true => filter::of(system_calls::table_of_zygote()),
    };
    confinement::limit_system_calls(&filter.map_err(std::io::Error::other)?)
}

pub use confinement::forbid_capabilities;
pub use kernel::stir;
pub use message::{receive, send};
pub use nursery::{NurseryError, serve};
