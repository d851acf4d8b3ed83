//! Checks of the manager's promises against what really happened.

use super::{ManagerNode, NODE};
use crate::agent::id;
use crate::shared_state::SharedState;
use crate::truth::{sum, within};
use hotlease_lease::ledger::FunctionUse;
use hotlease_lease::manager::{AgentState, SUSPECTED_AFTER};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

/// Tolerance for a manager's clock that runs slow.
const SLACK: Duration = Duration::from_millis(20);

impl ManagerNode {
    /// Checks that no tenant pays for more than was used.
    pub(super) fn check_bill(&self, tenant: &str, site: &mut SharedState) {
        let bill = self.durable.bill(tenant);
        let drift = site.scenario.drift_ppm_max;
        let leases = site.truth.leases.values().filter(|lease| lease.tenant == tenant);
        let most = leases.fold(UsageTotals::default(), |most, lease| {
            sum(most, site.truth.bill_max(lease, site.now, drift))
        });
        site.check_promise(NODE, within(bill, most), || {
            format!("{tenant} is billed {bill:?} and has used {most:?} at most")
        });
    }

    /// Checks that no function is billed for more time than was spent in it, and that all functions of a lease together
    /// are billed for no more than the lease.
    pub(super) fn check_functions(&self, reported: &[LeaseId], site: &mut SharedState) {
        for (lease, usage, functions) in self.durable.functions() {
            let Some(truth) = site.truth.leases.get(&lease).filter(|_| reported.contains(&lease)) else {
                continue;
            };
            let sum = functions.sum();
            let sound = truth.functions.covers(functions) && FunctionUse::from(usage).covers(sum);
            let truly = truth.functions.clone();
            site.check_promise(NODE, sound, || {
                format!("functions of lease {lease} are billed {functions:?} of {usage:?} and have used {truly:?}")
            });
        }
    }

    /// Checks that silent agents are suspected in time.
    pub(super) fn check_suspicion(&self, site: &mut SharedState) {
        let Some(process) = &self.process else { return };
        for (record, state, _) in process.cluster.registry().agents() {
            let heard = self.heard.get(&record.id).copied().unwrap_or_default();
            let silent = site.now - heard;
            site.check_promise(
                NODE,
                state != AgentState::Serving || silent <= SUSPECTED_AFTER + SLACK,
                || format!("agent {} is silent for {silent:?} and not suspected", record.id),
            );
        }
    }

    /// Checks that the ledger contains all acknowledged usage.
    pub fn check_acknowledged(&self, site: &mut SharedState) {
        let mut lost = None;
        for ((agent, boot, lease), usage) in &site.truth.acknowledged {
            let durable = self.durable.usage((id(*agent), *boot, *lease));
            if !within(*usage, durable) {
                lost = Some(format!(
                    "{usage:?} of lease {lease} was acknowledged, and {durable:?} is left"
                ));
            }
        }
        if let Some(lost) = lost {
            site.record_violation(NODE, || lost);
        }
    }
}
