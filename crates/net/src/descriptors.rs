//! The limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows this process as many descriptors as the system lets it have: daemons have some for each worker, session and
/// agent. What cannot be raised is logged, and met when it is reached.
pub fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
