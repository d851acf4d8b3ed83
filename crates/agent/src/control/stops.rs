//! Workers that a signal has stopped. A worker that stays stopped for longer than the operator allows is killed, and
//! another worker replaces it.
//!
//! A function may compute for any time, so a silent slot need not be stopped. The kernel shows which processes are
//! stopped: by SIGSTOP, or because they read a terminal that is not theirs (SIGTTIN). It reports stops only to the
//! parent of a process. Workers in sandboxes are not children of the agent, so the agent reads the state from `/proc`.

use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState};
use crate::node::Node;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Number of looks within the time for which a worker may be stopped.
const LOOKS: u32 = 10;

/// Kills workers that are stopped for longer than this time.
pub(crate) async fn replace_stopped(node: Arc<Node>, limit: Duration) {
    let mut active = node.active_leases();
    let mut looks = interval((limit / LOOKS).max(Duration::from_millis(1)));
    // The agent may have been stopped together with its workers. Looks that it missed meanwhile are not repeated.
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = StopCounts::default();
    loop {
        // Cannot fail, because this task keeps the node alive. Costs nothing while no lease is active.
        let _ = active.wait_for(|leases| *leases > 0).await;
        looks.tick().await;
        let leases: Vec<_> = node.tables().leases.values().cloned().collect();
        let mut workers: HashMap<(LeaseId, WorkerIndex, Epoch), Arc<Incarnation>> = HashMap::new();
        for lease in leases {
            let incarnations = lease.incarnations().into_iter().filter(|worker| is_stopped(worker));
            workers.extend(incarnations.map(|worker| ((lease.id, worker.index, worker.epoch), worker)));
        }
        for of in stopped.count(workers.keys().copied()) {
            let (lease, index, epoch) = of;
            tracing::warn!(%lease, worker = %index, %epoch, ?limit, "a worker stays stopped; killing it");
            workers[&of].kill(KillReason::Unusable(
                "it was stopped, by SIGSTOP or a read of the terminal, for longer than --stopped-limit allows",
            ));
        }
    }
}

/// Whether a worker that serves is stopped by a signal. Under a debugger its state is "t": then the result is `false`.
fn is_stopped(worker: &Incarnation) -> bool {
    matches!(worker.state(), IncarnationState::Up(_))
        && std::fs::read_to_string(format!("/proc/{}/stat", worker.pid()))
            .is_ok_and(|stat| state_in(&stat) == Some('T'))
}

/// State in the text of `/proc/PID/stat`. It follows the program's name, which may contain any character.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Numbers of looks in a row that found each worker stopped. Looks are counted, not time, because time also passes
/// while the agent is stopped together with the worker.
struct StopCounts<W>(HashMap<W, u32>);

impl<W> Default for StopCounts<W> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<W: Copy + Eq + Hash> StopCounts<W> {
    /// Counts a look that found these workers stopped; returns the workers that have been stopped for too long.
    fn count(&mut self, stopped: impl Iterator<Item = W>) -> Vec<W> {
        let looks = stopped.map(|worker| (worker, self.0.get(&worker).map_or(0, |looks| looks + 1)));
        self.0 = looks.collect();
        let overdue = self.0.iter().filter(|(_, looks)| **looks >= LOOKS);
        overdue.map(|(worker, _)| *worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_every_look_finds_stopped_is_stopped_for_too_long() {
        let mut stopped = StopCounts::default();
        for look in 0..LOOKS {
            // Worker 2 runs during one look.
            let found = [1, 2].into_iter().filter(|worker| *worker == 1 || look != 3);
            assert_eq!(stopped.count(found), [0; 0], "look {look}");
        }
        assert_eq!(stopped.count([1, 2].into_iter()), [1]);
        assert_eq!(stopped.count([2].into_iter()), [0; 0]);
        assert_eq!(stopped.0.len(), 1, "those that are gone or go on are forgotten");
    }

    #[test]
    fn the_state_stands_behind_any_name() {
        assert_eq!(state_in("7 (python3) T 1 7 7 0"), Some('T'));
        assert_eq!(state_in("7 (a) T b) S 1 7 7 0"), Some('S'));
        assert_eq!(state_in(""), None);
    }
}
