//! What a session knows before the agent says anything.

use std::time::Duration;

/// Attaching waits until the workers are started, and connecting may start one again.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How much longer that may take where a machine has to boot: the agent itself gives up after two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(130);

/// What is known of a lease before the agent says anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// Workers that it may have.
    pub workers: usize,
    /// How long one may take to start.
    pub start_limit: Duration,
}

impl Expected {
    /// So many workers, in a sandbox of this kind.
    pub fn of(workers: usize, sandbox: &str) -> Self {
        let boot = match sandbox {
            "microvm" => BOOT_LIMIT,
            _ => Duration::ZERO,
        };
        Self {
            workers,
            start_limit: START_LIMIT + boot,
        }
    }
}
