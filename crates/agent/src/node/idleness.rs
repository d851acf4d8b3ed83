//! End of idle leases, if the operator limits idle time. A lease is idle while no invocation begins or ends on it.

use crate::leases::active_lease::ActiveLease;
use crate::leases::incarnation::IncarnationState;
use crate::node::Node;
use hotlease_lease::agent::BookEvent;
use hotlease_wire::EndReason;
use hotlease_wire::ids::LeaseId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Longest time between two looks at the leases.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// While the agent runs, ends leases that are idle for longer than the operator allows.
pub(crate) async fn end_idle_leases(node: Arc<Node>) {
    let Some(longest) = node.identity.bounds.idle else {
        return;
    };
    let mut looks = interval((longest / 4).min(LOOK_EVERY));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut active = node.active_leases();
    let mut known: HashMap<LeaseId, Activity> = HashMap::new();
    loop {
        // Cannot fail: the node owns the sender.
        let _ = active.wait_for(|leases| *leases > 0).await;
        looks.tick().await;
        let leases: HashMap<_, _> = node
            .tables()
            .leases
            .iter()
            // No invocation runs on memory alone: it is in use as long as its client holds it.
            .filter(|(_, lease)| !lease.terms.is_memory_alone())
            .map(|(id, lease)| (*id, Arc::clone(lease)))
            .collect();
        known.retain(|id, _| leases.contains_key(id));
        let now = Instant::now();
        for (id, lease) in leases {
            let activity = known.entry(id).or_insert(Activity { counted: 0, since: now });
            if activity.idle_for(count(&lease), now) >= longest {
                tracing::info!(lease = %id, "nothing runs on a lease for longer than --lease-idle allows: it ends");
                // Fails if the lease is ending already.
                let reason = EndReason::Idle;
                let _ = node.step(BookEvent::End { lease: id, reason });
            }
        }
    }
}

/// Number that changes with each invocation and each new worker of a lease; `None` while an invocation runs or a worker
/// starts.
fn count(lease: &ActiveLease) -> Option<u64> {
    lease.incarnations().iter().try_fold(1, |sum: u64, worker| {
        let is_busy = matches!(worker.state(), IncarnationState::Starting) || worker.running().next().is_some();
        let number = worker.usage().invocations.wrapping_add(u64::from(worker.epoch.0) << 32);
        (!is_busy).then(|| sum.wrapping_add(number))
    })
}

/// The last activity that was seen on a lease.
struct Activity {
    counted: u64,
    since: Instant,
}

impl Activity {
    /// Time for which nothing has happened.
    fn idle_for(&mut self, counted: Option<u64>, now: Instant) -> Duration {
        match counted {
            Some(counted) if counted == self.counted => {}
            counted => {
                self.counted = counted.unwrap_or(0);
                self.since = now;
            }
        }
        now.duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_idle_from_its_last_invocation_and_never_while_one_runs() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut activity = Activity {
            counted: 0,
            since: start,
        };
        for (counted, at, idle) in [
            (Some(7), 1, 0),
            (Some(7), 5, 4),
            (None, 6, 0),
            (None, 60, 0),
            (Some(8), 61, 0),
            (Some(8), 64, 3),
        ] {
            let seen = activity.idle_for(counted, second(at));
            assert_eq!(seen, Duration::from_secs(idle), "at {at} s");
        }
    }
}
