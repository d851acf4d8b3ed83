//! Zygote: a program from which workers are forked, each into a sandbox of its own.
//!
//! ```text
//! nursery ──clone3──► pid 1 of the zygote's sandbox ──fork──► zygote: has imported what its workers need, and WAITS
//!    │                  reaps, reports ends                      │ fork
//!    │                                                           ├─► between: joins the namespaces ──fork──► worker
//!    └─ nest: in the zygote's namespaces, clone3 ─► pid 1 of the worker's sandbox, which WAITS                in there
//! ```
//!
//! A process that joins a user namespace gets rights in this namespace and its children. So a worker's user namespace
//! is a child of the zygote's user namespace: a fork that joins it gets no rights outside of it. Code that a tenant ran
//! at import could take these rights, but would gain nothing: a zygote may not make the calls that need them (see
//! [`system_calls`](crate::system_calls)). Only this crate makes, mounts and watches the namespaces: the nursery makes
//! them (`nesting`), and their pid 1 keeps them (`nested`). This pid 1 inspects each fork before the fork is used.
//!
//! A fork takes a while: the kernel copies the zygote's page tables and makes namespaces. Above all it joins control
//! groups: in version 1, the kernel waits for all processors for each group. So a fork is made ahead. Once a zygote has
//! forked on request, its next fork is made, confined, inspected and moved into its group before it is requested. That
//! fork waits for its streams with no descriptor of the zygote open.
//!
//! * [`Orders`] is the zygote's side: it waits for orders, and forks.
//! * `in_machine` makes one fork where the zygote is, in a virtual machine that contains nothing else.
//! * `pid1` is pid 1 of the zygote's sandbox; `nursery::nesting` makes the sandboxes that workers are forked into, and
//!   `nursery::nesting::nested` is their pid 1.

mod in_machine;
mod orders;
pub(crate) mod pid1;

pub use crate::program::ORDERS_AT;
pub use in_machine::fork_here;
pub use orders::{ForkHooks, Orders};

use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Namespaces of a zygote's sandbox.
pub(crate) struct ZygoteNamespaces {
    pub user: OwnedFd,
    pub pid: OwnedFd,
    pub mnt: OwnedFd,
}

impl ZygoteNamespaces {
    /// Names of the namespaces.
    pub const KINDS: [&str; 3] = ["user", "pid", "mnt"];

    /// Makes the set from the descriptors that pid 1 of the sandbox sent, in the order of [`ZygoteNamespaces::KINDS`].
    pub fn from_fds(fds: Vec<OwnedFd>) -> Option<Self> {
        let [user, pid, mnt] = fds.try_into().ok()?;
        Some(Self { user, pid, mnt })
    }
}

/// Order to a zygote. Descriptors: the socket at which the fork waits for [`ForkRequest`], the pipe for its report, and
/// the namespaces: none, or all of [`KINDS`] in the order of `KINDS`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForkOrder {
    /// Paths that the fork may write, in addition to its own folders.
    pub writable: Vec<PathBuf>,
}

/// Message to a fork that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ForkRequest {
    /// Become a worker. Descriptors: the worker's standard input, and its output.
    Go,
}

/// Namespaces of a worker, in the order in which they are joined: the first gives the right to join the others.
pub(crate) const KINDS: [(&str, libc::c_int); 7] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
];

/// A fork's report in its pipe: the step that failed, and the error number. Two zeros mean that the fork is confined,
/// and waits to become a worker.
pub(crate) type ForkReport = [u8; 8];
/// Steps, by their numbers in reports, which begin at 1.
pub(crate) const STEPS: [&str; 7] = [
    "joining its namespaces",
    "forking into them",
    "leaving the zygote's streams",
    "making a session and a keyring",
    "setting up Landlock",
    "giving up capabilities",
    "limiting its system calls",
];

/// Error in a report; `None` if the fork is confined.
pub(crate) fn failure(report: ForkReport) -> Option<(&'static str, std::io::Error)> {
    let (step, code) = report.split_at(4);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    // The tenant's code wrote this, so it may be anything.
    let (step, code) = (number(step) as usize, number(code) as i32);
    if step == 0 {
        return None;
    }
    let what = STEPS.get(step - 1).copied().unwrap_or("an unknown step");
    Some((what, std::io::Error::from_raw_os_error(code)))
}
