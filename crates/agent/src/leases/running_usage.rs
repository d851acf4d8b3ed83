//! Usage of a lease that is still running: the book's figures, and the figures of its living workers.

use super::active_lease::ActiveLease;
use super::incarnation::IncarnationState;
use super::usage;
use hotlease_lease::agent::CoreLease;
use hotlease_lease::ledger::FunctionTotals;
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

/// Usage of a running lease so far.
pub(crate) fn used_so_far(lease: &CoreLease, active: Option<&ActiveLease>, now: Duration) -> UsageTotals {
    let mut used = UsageTotals {
        allocated_ns: lease.allocated_ns(now),
        ..lease.retired
    };
    if let Some(active) = active {
        for incarnation in active.incarnations() {
            // The usage of dead workers is in the book.
            if !matches!(incarnation.state(), IncarnationState::Gone { .. }) {
                usage::add(&mut used, incarnation.usage());
            }
        }
    }
    used
}

/// Usage of a running lease by function, cut to the lease's usage `used`.
pub(crate) fn functions_so_far(lease: &CoreLease, active: Option<&ActiveLease>, used: UsageTotals) -> FunctionTotals {
    let Some(active) = active else {
        return FunctionTotals::default();
    };
    let mut counted = lease.retired_functions.clone();
    for incarnation in active.incarnations() {
        // The usage of dead workers is in the book.
        if !matches!(incarnation.state(), IncarnationState::Gone { .. }) {
            let (rows, within) = (incarnation.functions(), incarnation.usage());
            counted.add_all(&active.libraries.attribution().of_worker(&rows, within));
        }
    }
    active.libraries.attribution().so_far(&counted, used)
}
