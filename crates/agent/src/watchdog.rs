//! What has to happen although nobody asks: expiry, the end of functions that ignore their deadline, and the log of
//! invocations that failed.

use crate::cause::KillReason;
use crate::failures;
use crate::incarnation::Incarnation;
use crate::node::Node;
use hotlease_fabric::clock::monotonic_ns;
use hotlease_lease::agent::Event;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// How long a function has to react to its cancel flag.
const GRACE: Duration = Duration::from_millis(50);
/// How often deadlines are looked at while there are leases. A worker's slots show what they run in
/// memory and tell nobody, as telling would cost each invocation; so looking is all there is.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Ends leases when they expire.
pub(crate) async fn expire_leases(node: Arc<Node>) {
    let mut expiry = node.next_expiry();
    loop {
        let next = *expiry.borrow_and_update();
        let due = async {
            match next {
                Some(at) => sleep_until(node.instant(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Never refused: it only says that time passed.
            () = due => drop(node.step(Event::Tick)),
            // The sender lives in the node, which lives in this task.
            _ = expiry.changed() => {}
        }
    }
}

/// Kills workers whose functions are past their deadline and the grace.
pub(crate) async fn enforce_deadlines(node: Arc<Node>) {
    let mut active = node.active_leases();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Fails never, as above; costs nothing while no lease is active.
        let _ = active.wait_for(|leases| *leases > 0).await;
        looks.tick().await;
        let leases: Vec<_> = node.tables().leases.values().cloned().collect();
        for lease in leases {
            for incarnation in lease.incarnations() {
                failures::log(&lease, &incarnation);
                if let Some(reason) = overdue(&incarnation, monotonic_ns()) {
                    incarnation.kill(reason);
                }
            }
        }
    }
}

fn overdue(incarnation: &Incarnation, now_ns: u64) -> Option<KillReason> {
    let is_late = |deadline: Option<u64>| {
        deadline.is_some_and(|deadline| deadline.saturating_add(GRACE.as_nanos() as u64) <= now_ns)
    };
    incarnation.running().find_map(|(slot, seen)| {
        if !is_late(seen.deadline_ns) {
            return None;
        }
        // The block is not read at one instant: seen twice alike, it is no mix of two invocations.
        let again = incarnation.running_in(slot)?;
        (again == seen).then_some(KillReason::Deadline {
            function: seen.function,
            timeout_us: seen.timeout_us,
        })
    })
}
