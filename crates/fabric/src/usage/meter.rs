//! The writing end of the usage block: one slot's counters.

use super::{SlotCells, pack, without_function};
use crate::clock::ticks;
use hotlease_wire::frame::InvocationId;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The writing end of one slot's counters; used by the slot's thread only.
pub struct SlotMeter<'a>(&'a SlotCells);

/// Adds without a locked instruction: the slot's thread is the only writer.
#[inline]
pub(super) fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl<'a> SlotMeter<'a> {
    #[inline]
    pub(super) fn new(cells: &'a SlotCells) -> Self {
        Self(cells)
    }

    /// Records that a function starts.
    #[inline]
    pub fn start(
        &self,
        (function, invocation): (u16, InvocationId),
        now_ticks: u64,
        deadline_ticks: u64,
        timeout_us: u32,
    ) {
        self.0.since_ticks.store(now_ticks, Relaxed);
        self.0.deadline_ticks.store(deadline_ticks, Relaxed);
        self.0.timeout_us.store(timeout_us.into(), Relaxed);
        // One store for function and invocation: at the cost of two instructions, a crash record names the invocation
        // too.
        self.0.running.store(pack(function, invocation), Relaxed);
    }

    /// Records the function's output area, for the diagnosis of overruns; both numbers are 0 if there is no output.
    #[inline]
    pub fn set_output(&self, end: u64, capacity: u64) {
        self.0.output_end.store(end, Relaxed);
        self.0.output_capacity.store(capacity, Relaxed);
    }

    /// Records that the function has returned. The invocation's number stays, so that the last invocation can be found
    /// later.
    #[inline]
    pub fn stop(&self) {
        self.cancel();
        let before = self.0.invocations.load(Relaxed);
        if before == 0 {
            self.record_first_call();
        }
        self.0.invocations.store(before.wrapping_add(1), Relaxed);
    }

    /// Records that no function runs, and counts no run: the function that was recorded last could not be called.
    #[inline]
    pub fn cancel(&self) {
        let running = &self.0.running;
        running.store(without_function(running.load(Relaxed)), Relaxed);
    }

    /// Records the duration of the first call. It is part of the cold start, because this call loads imports and pages
    /// of a function.
    #[cold]
    fn record_first_call(&self) {
        let took = ticks().wrapping_sub(self.0.since_ticks.load(Relaxed));
        self.0.first_ticks.store(took.max(1), Relaxed);
    }

    /// Counts an invocation that was refused because the slot could not claim its core.
    #[inline]
    pub fn count_refused_call(&self) {
        add(&self.0.refused, 1);
    }

    /// Counts a time in which another thread had the core; the slot does not poll until `paused_until_ticks`.
    #[cold]
    pub fn count_preemption(&self, paused_until_ticks: u64) {
        add(&self.0.preempted, 1);
        self.0.paused_until_ticks.store(paused_until_ticks, Relaxed);
    }

    /// Adds polling and compute time.
    #[inline]
    pub fn add_ns(&self, hot_ns: u64, compute_ns: u64) {
        add(&self.0.hot_ns, hot_ns);
        add(&self.0.compute_ns, compute_ns);
    }
}
