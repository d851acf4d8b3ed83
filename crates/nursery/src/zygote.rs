//! A program from which workers are forked, each into a sandbox of its own.
//!
//! ```text
//! nursery ──clone3──► pid 1 of the zygote's sandbox ──fork──► zygote: has imported what its workers need, and WAITS
//!    │                  reaps, tells ends                        │ fork
//!    │                                                           ├─► between: joins the namespaces ──fork──► worker
//!    └─ nest: in the zygote's namespaces, clone3 ─► pid 1 of the worker's own sandbox, which WAITS             in there
//! ```
//!
//! Whoever joins a namespace has rights in the one that owns it. So a worker's user namespace is a child of the zygote's, and those rights
//! end there; code that a tenant had run at import gains nothing by taking them, because the calls that would need them do not exist in
//! a zygote either (see [`system_calls`](crate::system_calls)). The namespaces themselves are made, mounted and watched by this crate alone: the
//! nursery makes them (`nesting`), a pid 1 of its own keeps them (`nested`), and what the fork did is looked at from there before it
//! counts.
//!
//! A fork takes a while: a copy of the zygote's page tables, its namespaces, and above all its control groups, for each of which the kernel
//! waits for all processors in version 1. So it is made ahead: once a zygote has forked for somebody, the next fork is made, confined, looked
//! at and in its group before anybody asks for it, and waits for its streams with nothing of the zygote's open.
//!
//! * [`Orders`] is the zygote's side: what it waits for, and how it forks.
//! * `alone` has one fork where the zygote is, in a virtual machine with nobody else in it.
//! * `keeping` is what pid 1 of its sandbox does, `nesting` and `nested` make and are what its workers are forked into.

mod alone;
pub(crate) mod keeping;
pub(crate) mod nested;
pub(crate) mod nesting;
mod orders;

pub use alone::fork_here;
pub use orders::{Hooks, Orders};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The descriptor at which a zygote finds its orders.
pub const ORDERS_AT: i32 = 3;

/// To a zygote. Descriptors: where the fork waits to be [`Wanted`], where it reports, and the namespaces of [`KINDS`] in that order, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    /// Where it may write, beyond its own folders.
    pub writable: Vec<PathBuf>,
}

/// To a fork that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wanted {
    /// Somebody wants it. Descriptors: a worker's standard input, and its output.
    Go,
}

/// The namespaces of a worker's own, in the order in which they are joined: first the one that gives the right to join the others.
pub(crate) const KINDS: [(&str, libc::c_int); 7] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
];

/// What a fork reports into its pipe: how far it came, and why not farther; zeros: it is confined, and waits to become a worker.
pub(crate) type Report = [u8; 8];
/// The steps that reports count, from 1 on.
pub(crate) const STEPS: [&str; 7] = [
    "joining its namespaces",
    "forking into them",
    "leaving the zygote's streams",
    "making a session and a keyring",
    "setting up Landlock",
    "giving up capabilities",
    "limiting its system calls",
];

/// What a report says; `None`: it is done.
pub(crate) fn failure(report: Report) -> Option<(&'static str, std::io::Error)> {
    let (step, code) = report.split_at(4);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    // The tenant's word: it may be anything.
    let (step, code) = (number(step) as usize, number(code) as i32);
    if step == 0 {
        return None;
    }
    let what = STEPS.get(step - 1).copied().unwrap_or("an unknown step");
    Some((what, std::io::Error::from_raw_os_error(code)))
}
