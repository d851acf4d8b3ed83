//! Expectations of a session before the agent's first answer.

use std::time::Duration;

/// Limit for starting workers: attaching waits for it, and connecting may start a worker again.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Extra time if a virtual machine has to boot: the agent itself gives up after two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(130);

/// Expectations of a lease before the agent's first answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expectations {
    /// Largest number of workers of the lease.
    pub workers: usize,
    /// How long a worker may take to start.
    pub start_limit: Duration,
    /// Whether the lease is to be renewed.
    pub renewal: bool,
}

impl Expectations {
    /// Expects this many workers, in a sandbox of this kind.
    pub fn of(workers: usize, sandbox: &str) -> Self {
        let boot = match sandbox {
            "microvm" => BOOT_LIMIT,
            _ => Duration::ZERO,
        };
        Self {
            workers,
            start_limit: START_LIMIT + boot,
            renewal: true,
        }
    }
}
