//! End of the node's time, such as the end of the agent's own batch job; end of an agent that no lease needs.

use crate::AgentError;
use crate::node::Node;
use hotlease_lease::agent::BookEvent;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Time between the end of the last leases and the end of the node. In this time the usage of these leases is recorded
/// and reported, and the agent stops.
const STOPPING: Duration = Duration::from_secs(2);
/// Longest time, before the end of the leases, in which no lease is granted, as it could hardly compute.
const DRAINING_MAX: Duration = Duration::from_secs(30);
/// The time in which no lease is granted is at most one part in this many of the time until the leases end.
const DRAINING_PART: u32 = 10;

/// Times of a node that is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// Time from which no lease is granted.
    pub drains: Instant,
    /// Time at which the last leases end.
    pub leases_end: Instant,
}

impl Lifetime {
    /// Times of a node that is taken away after `left`. `saving`: time for saving a state at the end of a lease.
    pub fn of(left: Duration, saving: Duration, now: Instant) -> Option<Self> {
        let lasting = left
            .checked_sub(STOPPING + saving)
            .filter(|lasting| !lasting.is_zero())?;
        let leases_end = now.checked_add(lasting)?;
        Some(Self {
            drains: leases_end - (lasting / DRAINING_PART).min(DRAINING_MAX),
            leases_end,
        })
    }

    /// Times of a node that is taken away at a time of the host's clock.
    pub fn until(until: SystemTime, saving: Duration) -> Result<Self, AgentError> {
        let left = until.duration_since(SystemTime::now()).unwrap_or_default();
        Self::of(left, saving, Instant::now()).ok_or_else(|| AgentError::Config {
            what: format!(
                "the node's time ends in {left:.1?}, which is too short for a lease (at least {:?}) or too long to count",
                STOPPING + saving
            ),
        })
    }
}

impl Node {
    /// Waits until the node's time is nearly over, and drains the node. Returns when no lease holds any resource of it;
    /// never returns if the node's time is not bounded.
    pub(crate) async fn run_out_of_time(self: &Arc<Self>) {
        let Some(lifetime) = self.identity.lifetime else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(lifetime.drains.into()).await;
        tracing::info!("the node's time is nearly over: no more leases are granted");
        self.leave_by(self.time_of(lifetime.leases_end)).await;
    }

    /// Drains the node for good if no lease holds any resource of it; returns whether it did.
    pub(crate) fn leave_if_unused(self: &Arc<Self>) -> bool {
        let mut tables = self.tables();
        if tables.book.leases().next().is_some() {
            return false;
        }
        tables.leaving = true;
        // The book cannot refuse a drain.
        let _ = self.step_locked(&mut tables, BookEvent::Drain { until: self.now() });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_before_the_node_does_and_none_is_granted_shortly_before() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let of = |left: u32, saving| {
            let times = Lifetime::of(left * second, saving, now)?;
            Some((times.drains - now, times.leases_end - now))
        };
        assert_eq!(of(3602, Duration::ZERO), Some((3570 * second, 3600 * second)));
        assert_eq!(of(12, Duration::ZERO), Some((9 * second, 10 * second)));
        assert_eq!(of(12, 5 * second), Some((4500 * second / 1000, 5 * second)));
        assert_eq!(of(2, Duration::ZERO), None);
        assert_eq!(of(0, Duration::ZERO), None);
    }
}
