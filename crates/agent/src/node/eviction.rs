//! Swapping out idle workers: after the time that the operator has set, and sooner if memory is short or the node is
//! given back. Only leases with a state are affected, because the next lease restores what these leases have in memory.

use crate::data::swap::listing;
use crate::data::swap::transfer::SaveError;
use crate::leases::active_lease::ActiveLease;
use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState};
use crate::node::Node;
use hotlease_lease::agent::{Availability, BookEvent};
use hotlease_wire::EndReason;
use hotlease_wire::ids::WorkerIndex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Interval at which leases are looked at while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A worker that ran a function less than this time ago is not idle, even if other leases need memory.
const IDLE_LEAST: Duration = Duration::from_secs(1);
/// Interval at which expired states are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(3600);
/// Time for which a request waits for memory that is being freed: less than managers wait for an agent.
const ROOM_LIMIT: Duration = Duration::from_secs(2);

/// The worker of a lease, if it has a state and may be swapped out; also the time for which it has been idle.
fn candidate(lease: &ActiveLease) -> Option<(Arc<Incarnation>, Duration)> {
    let worker = lease.incarnation(WorkerIndex(0)).ok()?;
    let keeping = worker.keeping.as_ref().filter(|keeping| keeping.may_save())?;
    let idle = keeping.idle_for(worker.usage().invocations, worker.running().next().is_some());
    matches!(worker.state(), IncarnationState::Up(_)).then_some((worker, idle))
}

/// While the agent runs, swaps out workers that are idle long enough, and removes states that are too old.
pub(crate) async fn swap_out_idle_ones(node: Arc<Node>) {
    let Some(options) = node.identity.swap.clone() else {
        return;
    };
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut expires = Instant::now();
    let mut active = node.active_leases();
    loop {
        if Instant::now() >= expires {
            expires = Instant::now() + EXPIRE_EVERY;
            let options = Arc::clone(&options);
            tokio::task::spawn_blocking(move || listing::expire(&options.directory, options.keep));
        }
        // Cannot fail: the node owns the sender. The limit makes states expire even on a node without leases.
        let _ = timeout(EXPIRE_EVERY, active.wait_for(|leases| *leases > 0)).await;
        looks.tick().await;
        let leases: Vec<_> = node.tables().leases.values().cloned().collect();
        let is_given_back = node.tables().book.availability() != Availability::Serving;
        for lease in leases {
            let Some((worker, since)) = candidate(&lease) else {
                continue;
            };
            let is_due = options.after.is_some_and(|after| since >= after);
            if since < IDLE_LEAST || !(is_due || is_given_back || node.borrowing.is_short()) {
                continue;
            }
            let node = Arc::clone(&node);
            tokio::spawn(async move { swap_out(&node, &lease, &worker).await });
        }
    }
}

/// Makes a worker save its state, and then ends its lease; returns whether the worker ends. A worker that cannot save
/// its state continues to serve. A worker that does not answer is killed.
async fn swap_out(node: &Arc<Node>, lease: &ActiveLease, worker: &Incarnation) -> bool {
    let (IncarnationState::Up(process), Some(keeping)) = (worker.state(), &worker.keeping) else {
        return false;
    };
    match keeping.save(&process, Duration::MAX).await {
        // Refused if the lease has ended meanwhile.
        Ok(()) => drop(node.step(BookEvent::End {
            lease: lease.id,
            // A request that the worker has not answered has not begun; clients rely on that.
            reason: EndReason::SwappedOut,
        })),
        Err(SaveError::Refused(_)) => return false,
        Err(SaveError::Lost(_)) => {
            worker.kill(KillReason::Unusable("its state was asked for, and did not come"));
        }
    }
    true
}

/// Swaps out idle workers, the largest first, if that frees enough memory for a request. The request waits for about as
/// long as that usually takes, and is then repeated by its client.
pub(crate) async fn make_room(node: &Arc<Node>, memory_bytes: u64) {
    let left = node.tables().book.memory_left();
    if left >= memory_bytes {
        return;
    }
    let leases: Vec<_> = node.tables().leases.values().cloned().collect();
    let idle = leases
        .into_iter()
        .filter_map(|lease| candidate(&lease).map(|(worker, idle)| (lease, worker, idle)));
    let mut idle: Vec<_> = idle.filter(|(.., idle)| *idle >= IDLE_LEAST).collect();
    let theirs = idle.iter().map(|(lease, ..)| lease.terms.request.spec.memory_bytes);
    // Swaps out no worker if the request would be refused in any case.
    if theirs.fold(left, u64::saturating_add) < memory_bytes {
        return;
    }
    idle.sort_by_key(|(lease, ..)| std::cmp::Reverse(lease.terms.request.spec.memory_bytes));
    let going = Arc::clone(node);
    // Runs as a separate task, so that saving a state continues even if the request is dropped.
    let made = tokio::spawn(async move {
        for (lease, worker, _) in idle {
            if going.tables().book.memory_left() >= memory_bytes {
                return;
            }
            if swap_out(&going, &lease, &worker).await {
                lease.wait_for_end().await;
            }
        }
    });
    let _ = timeout(ROOM_LIMIT, made).await;
}
