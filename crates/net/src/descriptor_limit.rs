//! Limit of open files of a process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises this process's limit of open descriptors to the hard limit: daemons hold some for each worker, session and
/// agent. A failure is only logged; the daemon then runs with the old limit.
pub fn raise_descriptor_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
