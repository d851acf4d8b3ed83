//! Record of what really happened. No process of the site can read it, and every promise is checked against it.

use hotlease_lease::ledger::FunctionTotals;
use hotlease_wire::RunCertainty;
use hotlease_wire::ids::{BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Process of a worker, from its start until it is reaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    pub process: u64,
    pub lease: LeaseId,
    pub epoch: Epoch,
}

/// A lease that was granted at any time.
#[derive(Debug, Clone)]
pub struct LeaseTruth {
    pub agent: usize,
    pub boot: BootId,
    pub tenant: String,
    pub slots: u32,
    /// True time of the grant.
    pub granted: Duration,
    /// Time at which its cores were free again, or its agent's process was dead.
    pub freed: Option<Duration>,
    /// Expiry on the agent's clock.
    pub expires: Duration,
    /// Expiry in true time.
    pub expires_truly: Duration,
    /// Time spent in functions.
    pub computed: Duration,
    pub invocations: u64,
    pub functions: FunctionTotals,
}

/// An invocation that an application submitted.
#[derive(Debug, Clone)]
pub struct TaskTruth {
    pub client: usize,
    pub idempotent: bool,
    pub submitted: Duration,
    /// Number of times that its function was started.
    pub runs: u32,
    pub outcome: Option<FutureResult>,
    /// Time at which the outcome was reported.
    pub ended: Duration,
    /// Whether its client died.
    pub orphaned: bool,
    /// Whether the invocation must succeed.
    pub probe: bool,
}

/// Result of a future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FutureResult {
    Result,
    Error(RunCertainty),
}

/// Record of what really happened.
#[derive(Debug, Default)]
pub struct Truth {
    pub cores: BTreeMap<(usize, u32), Occupant>,
    /// Process that holds each GPU.
    pub gpus: BTreeMap<(usize, u32), u64>,
    /// Processes with places on shared cores.
    pub shared: BTreeMap<(usize, u32), BTreeSet<u64>>,
    pub leases: BTreeMap<LeaseId, LeaseTruth>,
    pub tasks: Vec<TaskTruth>,
    /// Totals that a manager has acknowledged, by agent, run and lease.
    pub acknowledged: BTreeMap<(usize, BootId, LeaseId), UsageTotals>,
    /// Totals that are durable in a journal.
    pub journalled: BTreeMap<(usize, BootId, LeaseId), UsageTotals>,
    /// Agents that are given back: the run, and the true time after which none of its processes may run.
    pub given_back: BTreeMap<usize, (BootId, Duration)>,
    /// Orders that agents have carried out.
    pub carried_out: BTreeSet<(usize, u64)>,
    /// Leases that were granted for requests that were then refused, and the times of the refusals.
    pub refused: Vec<(LeaseId, Duration)>,
    processes: u64,
}

impl Truth {
    pub fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// Largest bill for a lease at this time. Clocks may be fast by `drift_ppm`.
    pub fn bill_max(&self, lease: &LeaseTruth, now: Duration, drift_ppm: i32) -> UsageTotals {
        let held = (lease.freed.unwrap_or(now) - lease.granted).as_nanos() * u128::from(lease.slots);
        let fast = held * u128::from(drift_ppm.unsigned_abs()) / 1_000_000;
        UsageTotals {
            allocated_ns: (held + fast) as u64 + 1000,
            hot_ns: 0,
            compute_ns: lease.computed.as_nanos() as u64,
            invocations: lease.invocations,
        }
    }
}

/// Whether no counter of `one` exceeds the same counter of `most`.
pub fn within(one: UsageTotals, most: UsageTotals) -> bool {
    one.allocated_ns <= most.allocated_ns
        && one.hot_ns <= most.hot_ns
        && one.compute_ns <= most.compute_ns
        && one.invocations <= most.invocations
}

/// Sum of each counter.
pub fn sum(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    UsageTotals {
        allocated_ns: one.allocated_ns + other.allocated_ns,
        hot_ns: one.hot_ns + other.hot_ns,
        compute_ns: one.compute_ns + other.compute_ns,
        invocations: one.invocations + other.invocations,
    }
}
