//! Periodic tasks: expiry of leases, killing of workers whose functions ignore their deadline or that use too much
//! memory, and the log of failed invocations.

use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState};
use crate::node::Node;
use hotlease_fabric::clock::monotonic_ns;
use hotlease_lease::agent::BookEvent;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// Time in which a function must react to its cancel flag.
const GRACE: Duration = Duration::from_millis(50);
/// Interval at which deadlines are checked while there are leases. Slots note in shared memory what they run, because a
/// report to another process would cost each invocation time. So this memory must be polled.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Shortest and longest time between two looks at the memory of a worker that no control group limits.
const MEMORY_EVERY: Duration = Duration::from_millis(100);
const MEMORY_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// Highest rate at which a program is expected to take memory: 4 bytes in a nanosecond.
const MEMORY_BYTES_PER_NS: u64 = 4;

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
            // The book cannot refuse this event, which only says that time has passed.
            () = due => drop(node.step(BookEvent::Tick)),
            // Cannot fail: the node owns the sender, and this task keeps the node alive.
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
        // Cannot fail, because this task keeps the node alive. Costs nothing while no lease is active.
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

/// Kills workers that use more memory than their leases allow, if no control group limits them, and workers in which
/// the kernel has killed a process. The next look at a worker is made before the worker could use up its remaining
/// memory at a rate that few programs reach.
pub(crate) async fn enforce_memory(node: Arc<Node>) {
    let mut active = node.active_leases();
    let mut looks = interval(MEMORY_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next: HashMap<(LeaseId, WorkerIndex, Epoch), Instant> = HashMap::new();
    loop {
        // Cannot fail, because this task keeps the node alive.
        let _ = active.wait_for(|leases| *leases > 0).await;
        looks.tick().await;
        let leases: Vec<_> = node.tables().leases.values().cloned().collect();
        let now = Instant::now();
        let workers = leases.iter().flat_map(|lease| {
            let name = |worker: &Incarnation| (lease.id, worker.index, worker.epoch);
            lease
                .incarnations()
                .into_iter()
                .map(move |worker| (name(&worker), worker))
        });
        let due: Vec<_> = workers
            .filter(|(name, _)| next.get(name).is_none_or(|next| *next <= now))
            .collect();
        next.retain(|_, next| *next > now);
        let looked = tokio::task::spawn_blocking(move || due.into_iter().map(look_at_memory).collect::<Vec<_>>());
        next.extend(looked.await.unwrap_or_default());
    }
}

/// Kills a worker that uses too much memory; returns the time of the next look.
fn look_at_memory<Name>((name, worker): (Name, Arc<Incarnation>)) -> (Name, Instant) {
    let left = match worker.state() {
        IncarnationState::Up(process) => process.check_memory_limit(),
        IncarnationState::Starting | IncarnationState::Gone { .. } => Ok(0),
    };
    let pause = match left {
        Err(held) => {
            tracing::warn!(
                pid = worker.pid(),
                held,
                "a worker, or a process that it started, has passed its limit on memory: it is killed"
            );
            worker.kill(KillReason::Memory);
            MEMORY_EVERY
        }
        Ok(left) => Duration::from_nanos(left / MEMORY_BYTES_PER_NS).clamp(MEMORY_EVERY, MEMORY_AT_LEAST_EVERY),
    };
    (name, Instant::now() + pause)
}

fn overdue(incarnation: &Incarnation, now_ns: u64) -> Option<KillReason> {
    let is_late = |deadline: Option<u64>| {
        deadline.is_some_and(|deadline| deadline.saturating_add(GRACE.as_nanos() as u64) <= now_ns)
    };
    incarnation.running().find_map(|(slot, seen)| {
        if !is_late(seen.deadline_ns) {
            return None;
        }
        // A slot may write to the block during a read. If two reads are equal, neither mixes two invocations.
        let again = incarnation.running_in(slot)?;
        (again == seen).then_some(KillReason::Deadline {
            function: seen.function,
            timeout_us: seen.timeout_us,
        })
    })
}
