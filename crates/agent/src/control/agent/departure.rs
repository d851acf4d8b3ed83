//! Giving the agent's node back, and waiting for the reasons to give it back.

use super::Agent;
use std::time::Duration;
use tokio::time::timeout;

impl Agent {
    /// Gives the node back: grants no more leases, and ends the remaining leases after `within` (zero: at once).
    /// Returns when no lease holds any resource of the node; call [`Agent::shutdown`] then. If this function is called
    /// again, the shorter time applies.
    pub async fn give_back(&self, within: Duration) {
        self.node.leave(within).await;
    }

    /// Returns once no lease has held any resource of the node for `limit`.
    pub async fn idle(&self, limit: Duration) {
        let mut active = self.node.active_leases();
        loop {
            // Cannot fail: the node owns the sender.
            let _ = active.wait_for(|leases| *leases == 0).await;
            // The node stayed idle if the time limit has passed.
            if timeout(limit, active.wait_for(|leases| *leases > 0)).await.is_err() {
                return;
            }
        }
    }

    /// Waits until no lease has held any resource of the node for `limit`. Then gives the node back at once, and
    /// refuses leases that are requested meanwhile.
    pub async fn unused(&self, limit: Duration) {
        loop {
            self.idle(limit).await;
            if self.node.leave_if_unused() {
                return;
            }
        }
    }

    /// Waits until the node's time ([`AgentConfig::until`]) is nearly over, and gives the node back in the remaining
    /// time; call [`Agent::shutdown`] then. Does not return if the node's time is not bounded.
    pub async fn out_of_time(&self) {
        self.node.run_out_of_time().await;
    }
}
