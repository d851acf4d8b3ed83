//! What really happened, seen from outside: no process knows it, and every promise is held against it.

use hotlease_lease::ledger::FunctionTotals;
use hotlease_wire::Ran;
use hotlease_wire::ids::{BootId, Epoch, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A worker's process, from its start until it is reaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    pub process: u64,
    pub lease: LeaseId,
    pub epoch: Epoch,
}

/// A lease that was ever granted.
#[derive(Debug, Clone)]
pub struct LeaseTruth {
    pub agent: usize,
    pub boot: BootId,
    pub tenant: String,
    pub slots: u32,
    /// True time.
    pub granted: Duration,
    /// When its cores were free again, or its agent's process was dead.
    pub freed: Option<Duration>,
    /// On its agent's clock.
    pub expires: Duration,
    /// The same, in true time.
    pub expires_truly: Duration,
    /// Time in functions.
    pub computed: Duration,
    pub invocations: u64,
    pub functions: FunctionTotals,
}

/// An invocation that an application wanted.
#[derive(Debug, Clone)]
pub struct TaskTruth {
    pub client: usize,
    pub idempotent: bool,
    pub submitted: Duration,
    /// How often its function was started.
    pub runs: u32,
    pub outcome: Option<Outcome>,
    /// When that was told.
    pub ended: Duration,
    /// Its client died with it.
    pub orphaned: bool,
    /// It must succeed.
    pub probe: bool,
}

/// How a future resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Result,
    Error(Ran),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Truth {
    pub cores: BTreeMap<(usize, u32), Occupant>,
    /// Which process has which GPU.
    pub gpus: BTreeMap<(usize, u32), u64>,
    /// Processes with places on shared cores.
    pub shared: BTreeMap<(usize, u32), BTreeSet<u64>>,
    pub leases: BTreeMap<LeaseId, LeaseTruth>,
    pub tasks: Vec<TaskTruth>,
    /// Totals that a manager has acknowledged, by agent, run and lease.
    pub acknowledged: BTreeMap<(usize, BootId, LeaseId), UsageTotals>,
    /// Totals that are in a journal that survives.
    pub journalled: BTreeMap<(usize, BootId, LeaseId), UsageTotals>,
    /// Agents that are given back: in which run, and when nothing of it may run any more, in true time.
    pub given_back: BTreeMap<usize, (BootId, Duration)>,
    /// Orders that agents have carried out.
    pub carried_out: BTreeSet<(usize, u64)>,
    /// What was granted for requests that were then refused, and when they were.
    pub refused: Vec<(LeaseId, Duration)>,
    processes: u64,
}

impl Truth {
    pub fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// The most that may be billed for a lease at this moment; clocks may be fast by so much.
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

/// Whether no counter of one is above the other's.
pub fn within(one: UsageTotals, most: UsageTotals) -> bool {
    one.allocated_ns <= most.allocated_ns
        && one.hot_ns <= most.hot_ns
        && one.compute_ns <= most.compute_ns
        && one.invocations <= most.invocations
}

/// Counter by counter.
pub fn sum(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    UsageTotals {
        allocated_ns: one.allocated_ns + other.allocated_ns,
        hot_ns: one.hot_ns + other.hot_ns,
        compute_ns: one.compute_ns + other.compute_ns,
        invocations: one.invocations + other.invocations,
    }
}
