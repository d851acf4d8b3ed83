//! Phases of a lease's cold start.

use crate::options::reach::Reach;
use hotlease_wire::session::StartPhases;
use std::time::Duration;

/// Phases of a cold start, as the client saw them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ColdPhases {
    /// Manager and agent granted the lease; the agent starts workers meanwhile.
    pub acquire: Duration,
    /// Session with the agent, until the workers were configured.
    pub attach: Duration,
    /// The library was sent and loaded; meanwhile the workers were connected.
    pub load: Duration,
    /// Part of `load` that the workers took.
    pub worker_load: Duration,
    /// Introductions to all workers, while the library was loaded: not a part of the total.
    pub connect: Duration,
    /// Rest of the time to connect to the workers and to exchange rings with all slots.
    pub open: Duration,
    /// The agent's report about the workers, and why they had to be started.
    pub start: StartPhases,
    /// Resources that the functions may use, as the grant states them. In a sandbox of kind `process` that includes
    /// the network and everything else that the agent's user may use.
    pub reach: Reach,
    /// Folders of a Python program's import path that its workers do not see. For the agent's own user, these are home
    /// folders, folders that contain home folders, and folders that belong to all users; for other tenants, folders
    /// that the site does not show.
    pub hidden: Vec<String>,
}

impl ColdPhases {
    /// Total time: from the request for the lease until it is ready for the first hot call.
    pub fn total(&self) -> Duration {
        self.acquire + self.attach + self.load + self.open
    }
}
