//! News of agents, for clients of this host that ask agents directly: the time of the socket's file says when an agent
//! last joined. Clients look at this time instead of requesting the list of agents again and again.

use crate::MANAGER_SOCKET;
use crate::state::ManagerState;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Announces each agent that joins, for as long as the manager runs.
pub(crate) async fn announce(state: Arc<ManagerState>) {
    let socket = state.config.runtime_dir.join(MANAGER_SOCKET);
    let mut newest = state.newest_agent.subscribe();
    // An agent may have joined before this task began.
    newest.mark_changed();
    let mut last = Duration::ZERO;
    // Cannot fail: the sender is part of the state.
    while newest.changed().await.is_ok() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // Never the same time twice, even if the clock is set back.
        last = now.unwrap_or_default().max(last + Duration::from_nanos(1));
        let time = TimeSpec::from_duration(last);
        if let Err(error) = utimensat(AT_FDCWD, &socket, &time, &time, UtimensatFlags::FollowSymlink) {
            tracing::debug!(%error, "clients hear of a new agent only when they ask");
        }
    }
}
