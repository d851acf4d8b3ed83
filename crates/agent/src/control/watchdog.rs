//! Periodic tasks: expiry of leases, the end of functions that ignore their deadline, and the log of failed
//! invocations.

use crate::leases::cause::KillReason;
use crate::leases::incarnation::Incarnation;
use crate::node::Node;
use hotlease_fabric::clock::monotonic_ns;
use hotlease_lease::agent::BookEvent;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// Time that a function has to react to its cancel flag.
const GRACE: Duration = Duration::from_millis(50);
/// Interval at which deadlines are checked while there are leases. A worker's slots show in memory what they run and
/// report it to no process, because a report would cost each invocation time; so the memory must be polled.
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
            // Cannot be refused: it only says that time has passed.
            () = due => drop(node.step(BookEvent::Tick)),
            // The sender lives in the node, which this task keeps alive.
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
        // Cannot fail, as above; costs nothing while no lease is active.
        let _ = active.wait_for(|leases| *leases > 0).await;
        looks.tick().await;
        let leases: Vec<_> = node.tables().leases.values().cloned().collect();
        for lease in leases {
            for incarnation in lease.incarnations() {
                incarnation.log_failures(lease.id, &lease.libraries);
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
        // The block is not read at one instant: if two reads are equal, they are no mix of two invocations.
        let again = incarnation.running_in(slot)?;
        (again == seen).then_some(KillReason::Deadline {
            function: seen.function,
            timeout_us: seen.timeout_us,
        })
    })
}
