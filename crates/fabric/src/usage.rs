//! The usage block: current work and past usage of a worker's slots, in memory that the agent made.
//!
//! The worker's threads write it with plain stores to their own cache lines; the agent reads it at any time, also after
//! the worker's death. A worker can write false values, but only about itself: the agent bills allocated time by the
//! agent's own clock.

mod meter;

pub use meter::SlotMeter;

use self::meter::add;
use crate::clock::{TickClock, monotonic_ns, ticks};
use crate::memory::{Memory, MemoryError};
use hotlease_wire::frame::{InvocationId, InvocationStatus};
use hotlease_wire::limits::FUNCTIONS_BILLED_MAX;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Counters of one slot; two cache lines, so that no two slots share a cache line.
#[repr(C, align(128))]
struct SlotCells {
    hot_ns: AtomicU64,
    compute_ns: AtomicU64,
    invocations: AtomicU64,
    /// Lower 16 bits: index of the running function + 1, or 0 while no function runs. Upper bits: number of the last
    /// invocation that began.
    running: AtomicU64,
    since_ticks: AtomicU64,
    deadline_ticks: AtomicU64,
    timeout_us: AtomicU64,
    /// End of the running function's output, for the fault handler.
    output_end: AtomicU64,
    output_capacity: AtomicU64,
    /// Invocations that were refused because the slot could not claim its core.
    refused: AtomicU64,
    /// Duration of the first invocation.
    first_ticks: AtomicU64,
    /// Number of times that another thread had the core while the slot could have run.
    preempted: AtomicU64,
    /// End of the last pause, in which the slot does not poll because of such a preemption.
    paused_until_ticks: AtomicU64,
}

/// Usage of one function in one slot.
#[repr(C)]
struct FunctionCells {
    /// Function index + 1; 0 if the row is free.
    function: AtomicU64,
    compute_ns: AtomicU64,
    invocations: AtomicU64,
}

/// Rows of one slot: one row for each of the first functions that the slot ran, and a last row for all other functions
/// together.
#[repr(C, align(128))]
struct FunctionRows([FunctionCells; FUNCTIONS_BILLED_MAX + 1]);

/// Number of failure records that a slot keeps.
const FAILURES_KEPT: usize = 16;

/// Record of a failed invocation.
#[repr(C)]
struct FailureCells {
    /// Function and invocation, packed as in `SlotCells::running`.
    packed_invocation: AtomicU64,
    /// Lower 32 bits: status. Upper 32 bits: the function's own error number.
    packed_status: AtomicU64,
}

/// Failure records of one slot. Not next to the slot's counters, because failure records are touched only on failures.
#[repr(C, align(128))]
struct FailureLog {
    /// Number of failures so far; only the last [`FAILURES_KEPT`] records are kept.
    count: AtomicU64,
    last: [FailureCells; FAILURES_KEPT],
}

/// Head of the block: reference times, the crash record, and the agent's flag.
#[repr(C, align(128))]
struct UsageHead {
    tick_hz: AtomicU64,
    ticks_at_start: AtomicU64,
    ns_at_start: AtomicU64,
    /// Signal + 1, or `CRASH_EXITED`; written last.
    crash: AtomicU64,
    crash_slot: AtomicU64,
    /// Value of `SlotCells::running` of the slot that crashed.
    crash_function: AtomicU64,
    /// Capacity of the overrun output + 1; 0 if there was no overrun.
    crash_overrun: AtomicU64,
    /// Written by the agent: not 0 while another tenant has its turn on a shared core. (If a worker clears this word,
    /// the agent still sees that the worker uses the core.)
    held_back: AtomicU64,
}

const CRASH_EXITED: u64 = 1 << 32;

/// Usage of a slot so far, and the slot's current invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotUsage {
    /// Time spent polling.
    pub hot_ns: u64,
    /// Time spent in functions.
    pub compute_ns: u64,
    /// Functions run.
    pub invocations: u64,
    /// Invocations that were refused because the slot could not claim its core.
    pub refused: u64,
    /// Number of times that another thread had the core while the slot could have run, as far as the slot has noticed.
    pub preempted: u64,
    /// Whether the slot has stopped polling for a while, because its core is contended.
    pub is_paused: bool,
    /// The function running now.
    pub running: Option<RunningInvocation>,
}

/// Usage of a function in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionUsage {
    /// Index of the function; `None` for the sum of all functions without a row of their own.
    pub function: Option<u16>,
    /// Time spent in the function.
    pub compute_ns: u64,
    /// Number of runs.
    pub invocations: u64,
}

/// Row of a slot that counts a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionCounter(u8);

/// A running function. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningInvocation {
    /// Index of the function.
    pub function: u16,
    /// The running invocation.
    pub invocation: InvocationId,
    /// Start of the run.
    pub since_ns: u64,
    /// Deadline of the run.
    pub deadline_ns: Option<u64>,
    /// Time limit of the invocation, microseconds.
    pub timeout_us: u64,
}

/// A failed invocation, as its worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvocationFailure {
    /// The invocation.
    pub invocation: InvocationId,
    /// Index of the requested function.
    pub function: u16,
    /// Status in the reply; `None` if the number is unknown.
    pub status: Option<InvocationStatus>,
    /// The function's own error number.
    pub code: i32,
}

/// Packs a function's index + 1 and its invocation.
fn pack(function: u16, invocation: InvocationId) -> u64 {
    // Indices are less than 65535, because the number of a lease's functions has 16 bits.
    invocation.bits() << 16 | u64::from(function.wrapping_add(1))
}

/// Returns the packed word for the time after the function has returned: only the invocation is left.
#[inline]
fn without_function(word: u64) -> u64 {
    word & !u64::from(u16::MAX)
}

fn unpack(word: u64) -> Option<(u16, InvocationId)> {
    let function = (word as u16).checked_sub(1)?;
    Some((function, InvocationId::from_bits(word >> 16)))
}

/// Crash record that a dying worker wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Slot whose thread failed; `None` for another thread.
    pub slot: Option<u16>,
    /// The signal; 0 if the worker exited.
    pub signal: i32,
    /// Index of the function that was running.
    pub function: Option<u16>,
    /// Invocation that was running.
    pub invocation: Option<InvocationId>,
    /// Capacity of the output, if the function wrote past its end.
    pub overrun_capacity: Option<u64>,
    /// Whether a function called `exit`.
    pub exited: bool,
}

/// A usage block, as the agent or the worker maps it; see the [module](self).
pub struct UsageBlock {
    memory: Memory,
    slots: u16,
}

impl UsageBlock {
    /// Bytes of a slot: counters, rows of functions, failures. (In memory, the counters of all slots come first, then
    /// the rows of all slots, then the failures of all slots.)
    const SLOT_BYTES: usize = size_of::<SlotCells>() + size_of::<FunctionRows>() + size_of::<FailureLog>();

    fn bytes(slots: u16) -> u64 {
        (size_of::<UsageHead>() + usize::from(slots) * Self::SLOT_BYTES) as u64
    }

    /// Creates a zeroed block; the agent's side.
    pub fn create(slots: u16) -> Result<Self, MemoryError> {
        Ok(Self {
            memory: Memory::create("hotlease-usage", Self::bytes(slots))?,
            slots,
        })
    }

    /// Attaches the agent's block; the worker's side.
    pub fn attach(fd: OwnedFd, slots: u16) -> Result<Self, MemoryError> {
        Ok(Self {
            memory: Memory::attach(fd, Self::bytes(slots))?,
            slots,
        })
    }

    /// Descriptor to pass to the worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Number of slots in the block.
    pub fn slots(&self) -> u16 {
        self.slots
    }

    fn head(&self) -> &UsageHead {
        // SAFETY: the block starts with a `UsageHead` of atomics, for which any bytes are valid, and stays mapped.
        unsafe { self.memory.start().cast::<UsageHead>().as_ref() }
    }

    /// # Panics
    /// If the block has no such slot: a bug of the caller, never of a peer.
    fn cells(&self, slot: u16) -> &SlotCells {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: slots follow the head; the index was just checked; atomics as above.
        unsafe {
            self.memory
                .start()
                .add(size_of::<UsageHead>())
                .cast::<SlotCells>()
                .add(slot.into())
                .as_ref()
        }
    }

    /// # Panics
    /// As [`cells`](Self::cells).
    fn rows(&self, slot: u16) -> &FunctionRows {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: the rows of all slots follow the cells of all slots; both have the alignment of the head and sizes
        // that are multiples of it; the index was just checked; atomics as above.
        unsafe {
            self.memory
                .start()
                .add(size_of::<UsageHead>() + usize::from(self.slots) * size_of::<SlotCells>())
                .cast::<FunctionRows>()
                .add(slot.into())
                .as_ref()
        }
    }

    /// # Panics
    /// As [`cells`](Self::cells).
    fn failures(&self, slot: u16) -> &FailureLog {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let before = size_of::<SlotCells>() + size_of::<FunctionRows>();
        // SAFETY: the failures of all slots follow the rows of all slots; otherwise as in `rows`.
        unsafe {
            self.memory
                .start()
                .add(size_of::<UsageHead>() + usize::from(self.slots) * before)
                .cast::<FailureLog>()
                .add(slot.into())
                .as_ref()
        }
    }

    /// Worker: records a failed invocation, after its reply is published. Called by the slot's thread only.
    #[cold]
    pub fn record_failure(&self, slot: u16, failure: InvocationFailure) {
        let failures = self.failures(slot);
        let number = failures.count.load(Relaxed);
        let cells = &failures.last[number as usize % FAILURES_KEPT];
        let status = failure.status.map_or(u32::MAX, |status| u32::from(status as u16));
        cells
            .packed_invocation
            .store(pack(failure.function, failure.invocation), Relaxed);
        let code = u64::from(failure.code as u32);
        cells.packed_status.store(u64::from(status) | code << 32, Relaxed);
        // Written after the record, so that a reader that sees the number finds the record.
        failures.count.store(number.wrapping_add(1), Release);
    }

    /// Agent: the number of failures of a slot so far, and the failures after the first `seen`, oldest first. Only the
    /// last `FAILURES_KEPT` failures are available. A failure that is recorded during the call may replace the oldest
    /// failure in the result.
    pub fn failures_since(&self, slot: u16, seen: u64) -> (u64, Vec<InvocationFailure>) {
        let failures = self.failures(slot);
        let count = failures.count.load(Acquire);
        let new = count.wrapping_sub(seen).min(FAILURES_KEPT as u64);
        let told = (0..new).rev().filter_map(|back| {
            let cells = &failures.last[count.wrapping_sub(back + 1) as usize % FAILURES_KEPT];
            let (function, invocation) = unpack(cells.packed_invocation.load(Relaxed))?;
            let how = cells.packed_status.load(Relaxed);
            Some(InvocationFailure {
                invocation,
                function,
                status: u16::try_from(how as u32).ok().and_then(InvocationStatus::from_number),
                code: (how >> 32) as i32,
            })
        });
        (count, told.collect())
    }

    /// Worker: sets the tick rate and the reference times. Called before any slot runs.
    pub fn set_clock(&self, tick_hz: u64) {
        self.head().tick_hz.store(tick_hz, Relaxed);
        self.head().ticks_at_start.store(ticks(), Relaxed);
        self.head().ns_at_start.store(monotonic_ns(), Relaxed);
    }

    /// Worker: the writing end of one slot.
    #[inline]
    pub fn meter(&self, slot: u16) -> SlotMeter<'_> {
        SlotMeter::new(self.cells(slot))
    }

    /// Worker: the row that counts a function's usage in a slot; assigns a row if there is none. Called by the slot's
    /// thread only, before it counts any usage of the function; not on the path of an invocation.
    pub fn row_for(&self, slot: u16, function: u16) -> FunctionCounter {
        let named = u64::from(function) + 1;
        let (rows, _others) = self.rows(slot).0.split_at(FUNCTIONS_BILLED_MAX);
        for (row, number) in rows.iter().zip(0..) {
            match row.function.load(Relaxed) {
                known if known == named => return FunctionCounter(number),
                0 => {
                    row.function.store(named, Relaxed);
                    return FunctionCounter(number);
                }
                _ => {}
            }
        }
        FunctionCounter(FUNCTIONS_BILLED_MAX as u8)
    }

    /// Worker: counts a run of this length in a row of the slot; two plain stores.
    #[inline]
    pub fn count_run(&self, slot: u16, row: FunctionCounter, compute_ns: u64) {
        // The index is in range, because the row comes from `row_for`.
        let cells = &self.rows(slot).0[usize::from(row.0)];
        add(&cells.compute_ns, compute_ns);
        add(&cells.invocations, 1);
    }

    /// Agent: usage of the functions in a slot, as the worker reports it. A run that ends during the call may or may
    /// not be counted.
    pub fn functions(&self, slot: u16) -> impl Iterator<Item = FunctionUsage> {
        let (rows, others) = self.rows(slot).0.split_at(FUNCTIONS_BILLED_MAX);
        let used = |row: &FunctionCells, function| FunctionUsage {
            function,
            compute_ns: row.compute_ns.load(Relaxed),
            invocations: row.invocations.load(Relaxed),
        };
        // A number that is no function's index is reported as `None`, like the last row.
        let named = rows.iter().map_while(move |row| match row.function.load(Relaxed) {
            0 => None,
            named => Some(used(row, u16::try_from(named - 1).ok())),
        });
        named.chain(others.iter().map(move |row| used(row, None)))
    }

    /// Agent: duration of a slot's first invocation, from the start of its function until its reply was published, as
    /// the worker reports it; `None` before that.
    pub fn first_call_ns(&self, slot: u16) -> Option<u64> {
        let ticks = self.cells(slot).first_ticks.load(Relaxed);
        let clock = TickClock::new(self.head().tick_hz.load(Relaxed));
        (ticks != 0).then(|| clock.ns(ticks))
    }

    fn ns_of(&self, at_ticks: u64) -> u64 {
        let head = self.head();
        let clock = TickClock::new(head.tick_hz.load(Relaxed));
        let since = at_ticks.saturating_sub(head.ticks_at_start.load(Relaxed));
        head.ns_at_start.load(Relaxed).saturating_add(clock.ns(since))
    }

    /// Agent: a slot's counters. The counters are not read in one atomic step: a function that starts or ends during
    /// the call may be reported as running or as not running, and may or may not be counted.
    pub fn read(&self, slot: u16) -> SlotUsage {
        let cells = self.cells(slot);
        let running = unpack(cells.running.load(Relaxed));
        let running = running.map(|(function, invocation)| RunningInvocation {
            function,
            invocation,
            since_ns: self.ns_of(cells.since_ticks.load(Relaxed)),
            deadline_ns: match cells.deadline_ticks.load(Relaxed) {
                0 => None,
                deadline => Some(self.ns_of(deadline)),
            },
            timeout_us: cells.timeout_us.load(Relaxed),
        });
        SlotUsage {
            hot_ns: cells.hot_ns.load(Relaxed),
            compute_ns: cells.compute_ns.load(Relaxed),
            invocations: cells.invocations.load(Relaxed),
            refused: cells.refused.load(Relaxed),
            preempted: cells.preempted.load(Relaxed),
            is_paused: cells.paused_until_ticks.load(Relaxed) > ticks(),
            running,
        }
    }

    /// Agent: the last invocation that a slot began, and whether its function has returned, as the worker reports it.
    /// After the worker's death this shows which invocations never ran, because the word is written before the function
    /// is called.
    pub fn last_begun(&self, slot: u16) -> Option<(InvocationId, bool)> {
        let word = self.cells(slot).running.load(Relaxed);
        (word != 0).then(|| (InvocationId::from_bits(word >> 16), word == without_function(word)))
    }

    /// Agent: forbids (`true`) or allows (`false`) that the worker's slots claim their shared core.
    pub fn hold_back(&self, yes: bool) {
        self.head().held_back.store(yes.into(), Relaxed);
    }

    /// Worker: whether another tenant has its turn.
    #[inline]
    pub fn is_held_back(&self) -> bool {
        self.head().held_back.load(Relaxed) != 0
    }

    /// Agent: the crash record that the worker wrote when it died.
    pub fn crash(&self) -> Option<Crash> {
        let head = self.head();
        let written = head.crash.load(Relaxed);
        if written == 0 {
            return None;
        }
        let number = |cell: &AtomicU64| u16::try_from(cell.load(Relaxed).wrapping_sub(1)).ok();
        let running = unpack(head.crash_function.load(Relaxed));
        Some(Crash {
            slot: number(&head.crash_slot),
            signal: if written == CRASH_EXITED {
                0
            } else {
                (written - 1) as i32
            },
            function: running.map(|(function, _)| function),
            invocation: running.map(|(_, invocation)| invocation),
            overrun_capacity: head.crash_overrun.load(Relaxed).checked_sub(1),
            exited: written == CRASH_EXITED,
        })
    }

    /// Worker: records why the worker dies. Async-signal-safe. `slot` is the thread's slot, `address` the faulting
    /// address, `guard_bytes` the size of the guard behind an output. The first crash stays.
    pub fn record_crash(&self, slot: Option<u16>, signal: i32, address: u64, guard_bytes: u64) {
        let overrun = slot.filter(|slot| *slot < self.slots).and_then(|slot| {
            let cells = self.cells(slot);
            let end = cells.output_end.load(Relaxed);
            let is_guard = end != 0 && (end..end.saturating_add(guard_bytes)).contains(&address);
            is_guard.then(|| cells.output_capacity.load(Relaxed))
        });
        self.record_end(slot, signal, overrun);
    }

    /// Monitor: records the end of the worker in its virtual machine. `signal` is 0 if the worker exited. `overrun` is
    /// the capacity of the output, if a function wrote past its end. The first record stays.
    pub fn record_end(&self, slot: Option<u16>, signal: i32, overrun: Option<u64>) {
        let head = self.head();
        if head.crash.load(Relaxed) != 0 {
            return;
        }
        if let Some(slot) = slot.filter(|slot| *slot < self.slots) {
            let running = self.cells(slot).running.load(Relaxed);
            head.crash_slot.store(u64::from(slot) + 1, Relaxed);
            head.crash_function.store(running, Relaxed);
            if let Some(capacity) = overrun {
                head.crash_overrun.store(capacity.saturating_add(1), Relaxed);
            }
        }
        // The agent reads after the process is gone; the release keeps the order of the stores within this process.
        head.crash
            .store(if signal == 0 { CRASH_EXITED } else { signal as u64 + 1 }, Release);
    }
}

#[cfg(test)]
mod tests;
