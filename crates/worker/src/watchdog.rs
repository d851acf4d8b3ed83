//! Watchdog of a worker: sets the cancel flag of functions past their deadline. If a function does not react, the agent
//! kills the worker; the flag is the function's chance to return.

use hotlease_fabric::clock::ticks;
use hotlease_fabric::doorbell::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Greatest delay of a flag.
const STEP: Duration = Duration::from_millis(2);

/// No function with a deadline runs.
const NONE: u64 = 0;
/// The watchdog is about to set the flag.
const CANCELLING: u64 = 1;
/// The watchdog has set the flag.
const CANCELLED: u64 = 2;

/// One slot's deadline and flag.
///
/// The slot and the watchdog use `deadline` to agree on the next move. The watchdog may set the flag only after it has
/// removed the deadline (compare-exchange). A slot that finds the deadline removed waits the few instructions until the
/// flag is set. So the flag never leaks into the next call.
#[derive(Default)]
pub struct SlotDeadline {
    /// Deadline in ticks, or one of the constants above.
    deadline: AtomicU64,
    /// Cancel flag; see [`crate::function::context`].
    pub cancelled: Arc<AtomicU32>,
}

/// Watches all slots. Its thread sleeps unless a function with a deadline runs.
pub struct Watchdog {
    watched: Vec<SlotDeadline>,
    doorbell: Doorbell,
}

impl Watchdog {
    /// Watchdog of this many slots.
    pub fn new(slots: usize, doorbell: Doorbell) -> Self {
        Self {
            watched: (0..slots).map(|_| SlotDeadline::default()).collect(),
            doorbell,
        }
    }

    /// Deadline and flag of a slot.
    pub fn slot(&self, slot: u16) -> &SlotDeadline {
        &self.watched[usize::from(slot)]
    }

    /// Slot: starts to watch a function with this deadline.
    pub fn watch(&self, slot: u16, deadline_ticks: u64) {
        self.slot(slot)
            .deadline
            .store(deadline_ticks.max(CANCELLED + 1), Ordering::Relaxed);
        self.doorbell.ring();
    }

    /// Slot: stops watching, after the function has returned. Returns whether the flag was set.
    pub fn unwatch(&self, slot: u16) -> bool {
        let SlotDeadline { deadline, cancelled } = self.slot(slot);
        let watched = deadline.load(Ordering::Relaxed);
        if watched > CANCELLED
            && deadline
                .compare_exchange(watched, NONE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            return false;
        }
        // Acquire pairs with the release of CANCELLED: the flag's last write is before our own write.
        while deadline.load(Ordering::Acquire) != CANCELLED {
            std::hint::spin_loop();
        }
        cancelled.store(0, Ordering::Relaxed);
        deadline.store(NONE, Ordering::Relaxed);
        true
    }

    fn has_deadline(&self) -> bool {
        self.watched
            .iter()
            .any(|watched| watched.deadline.load(Ordering::Relaxed) > CANCELLED)
    }

    /// Sets the flags that are due.
    fn cancel_due(&self, now: u64) {
        for SlotDeadline { deadline, cancelled } in &self.watched {
            let due = deadline.load(Ordering::Relaxed);
            if due > CANCELLED
                && now >= due
                && deadline
                    .compare_exchange(due, CANCELLING, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                cancelled.store(1, Ordering::Relaxed);
                // Release: see `unwatch`.
                deadline.store(CANCELLED, Ordering::Release);
            }
        }
    }

    /// Runs the watchdog, on its own thread.
    pub fn run(&self) -> ! {
        loop {
            self.doorbell.sleep_unless(|| self.has_deadline(), None);
            while self.has_deadline() {
                self.cancel_due(ticks());
                std::thread::sleep(STEP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_set_after_the_deadline_and_gone_for_the_next_call() {
        let watchdog = Watchdog::new(1, Doorbell::create().unwrap());
        let flag = watchdog.slot(0).cancelled.clone();
        watchdog.watch(0, 1000);
        watchdog.cancel_due(999);
        assert_eq!(flag.load(Ordering::Relaxed), 0, "not due yet");
        assert!(!watchdog.unwatch(0));
        watchdog.cancel_due(2000);
        assert_eq!(flag.load(Ordering::Relaxed), 0, "nothing runs");
        watchdog.watch(0, 1000);
        watchdog.cancel_due(1000);
        assert_eq!(flag.load(Ordering::Relaxed), 1);
        assert!(!watchdog.has_deadline(), "told once");
        assert!(watchdog.unwatch(0));
        assert_eq!(flag.load(Ordering::Relaxed), 0);
    }
}
