//! Usage of slots: read from the usage blocks, and made plausible.
//!
//! A worker writes its block itself and can write wrong figures. So the agent measures the allocated time itself,
//! counts at most that time as polling or computing, and never lowers billed totals.

use hotlease_fabric::clock::monotonic_ns;
use hotlease_fabric::usage::{FunctionUsage, UsageBlock};
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

/// Slots times time, nanoseconds.
pub(crate) fn slot_time(slots: usize, held: Duration) -> u64 {
    u64::try_from(held.as_nanos().saturating_mul(slots as u128)).unwrap_or(u64::MAX)
}

/// Usage of a worker that has no block yet.
pub(crate) fn only_allocated(allocated_ns: u64) -> UsageTotals {
    UsageTotals {
        allocated_ns,
        ..UsageTotals::default()
    }
}

/// Usage of a worker that may be running functions. The time of a running function is added when it returns.
pub(crate) fn usage_of_living(block: &UsageBlock, allocated_ns: u64) -> UsageTotals {
    totals(block, allocated_ns, None)
}

/// Usage of a worker that is gone. Includes the time of the function in which it died, until now.
pub(crate) fn usage_of_dead(block: &UsageBlock, allocated_ns: u64) -> UsageTotals {
    totals(block, allocated_ns, Some(monotonic_ns()))
}

/// Usage by function of a living worker, as the worker reports it.
pub(crate) fn functions_of_living(block: &UsageBlock) -> Vec<FunctionUsage> {
    functions(block, None)
}

/// Usage by function of a worker that is gone. Includes the time of the function in which it died, until now.
pub(crate) fn functions_of_dead(block: &UsageBlock) -> Vec<FunctionUsage> {
    functions(block, Some(monotonic_ns()))
}

fn functions(block: &UsageBlock, died_ns: Option<u64>) -> Vec<FunctionUsage> {
    let mut rows = Vec::new();
    for slot in 0..block.slots() {
        rows.extend(block.functions(slot).filter(|row| row.invocations > 0));
        if let (Some(running), Some(died)) = (block.read(slot).running, died_ns) {
            rows.push(FunctionUsage {
                function: Some(running.function),
                compute_ns: died.saturating_sub(running.since_ns),
                invocations: 0,
            });
        }
    }
    rows
}

fn totals(block: &UsageBlock, allocated_ns: u64, died_ns: Option<u64>) -> UsageTotals {
    let mut totals = only_allocated(allocated_ns);
    for slot in 0..block.slots() {
        let used = block.read(slot);
        let unfinished = match (used.running, died_ns) {
            (Some(running), Some(died)) => died.saturating_sub(running.since_ns),
            _ => 0,
        };
        totals.hot_ns = totals.hot_ns.saturating_add(used.hot_ns);
        totals.compute_ns = totals
            .compute_ns
            .saturating_add(used.compute_ns)
            .saturating_add(unfinished);
        totals.invocations = totals.invocations.saturating_add(used.invocations);
    }
    totals.hot_ns = totals.hot_ns.min(allocated_ns);
    totals.compute_ns = totals.compute_ns.min(allocated_ns);
    totals
}

/// Adds a worker's usage to the usage of its lease, except allocated time, which the lease itself measures.
pub(crate) fn add(lease: &mut UsageTotals, worker: UsageTotals) {
    lease.hot_ns = lease.hot_ns.saturating_add(worker.hot_ns);
    lease.compute_ns = lease.compute_ns.saturating_add(worker.compute_ns);
    lease.invocations = lease.invocations.saturating_add(worker.invocations);
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::clock::ticks;
    use hotlease_wire::frame::InvocationId;

    fn blocks() -> (UsageBlock, UsageBlock) {
        let agent = UsageBlock::create(2).expect("memory");
        let fd = agent.fd().try_clone_to_owned().expect("a descriptor");
        let worker = UsageBlock::attach(fd, 2).expect("memory");
        worker.set_clock(1_000_000_000);
        (agent, worker)
    }

    #[test]
    fn slots_are_added_up() {
        let (agent, worker) = blocks();
        for slot in [0, 1] {
            worker.meter(slot).add_ns(10, 20);
            worker.meter(slot).start((0, InvocationId::from_bits(1)), ticks(), 0, 0);
            worker.meter(slot).stop();
        }
        let expected = UsageTotals {
            allocated_ns: 1000,
            hot_ns: 20,
            compute_ns: 40,
            invocations: 2,
        };
        assert_eq!(usage_of_living(&agent, 1000), expected);
        assert_eq!(
            usage_of_living(&agent, 15).compute_ns,
            15,
            "no lease computes longer than it holds a slot"
        );
    }

    #[test]
    fn a_function_that_never_returned_counts_once_its_worker_is_dead() {
        let (agent, worker) = blocks();
        worker.meter(0).start((0, InvocationId::from_bits(1)), ticks(), 0, 0);
        assert_eq!(usage_of_living(&agent, u64::MAX).compute_ns, 0);
        std::thread::sleep(Duration::from_millis(2));
        assert!(usage_of_dead(&agent, u64::MAX).compute_ns > 0);
    }
}
