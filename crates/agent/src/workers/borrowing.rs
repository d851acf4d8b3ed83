//! Waiting workers of this node: as many as leases are likely to need, in idle memory.

use crate::control::agent::POOL_MAX;
use crate::leases::active_lease::ActiveLease;
use crate::node::{Node, NodeState};
use crate::workers::idle_memory::{Alarm, IdleMemory, LOOK_EVERY};
use hotlease_lease::agent::Availability;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// After memory was short, no worker waits for at least this time.
const SHORT_AT_LEAST: Duration = Duration::from_secs(10);

/// Interval at which pools shrink if no leases come.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Record whether the node's memory is short; waiting workers use only idle memory.
pub(crate) struct Borrowing {
    memory: Arc<IdleMemory>,
    short_at_least: Duration,
    short: AtomicBool,
}

impl Borrowing {
    pub fn new(memory: Arc<IdleMemory>) -> Self {
        Self {
            memory,
            short_at_least: SHORT_AT_LEAST,
            short: AtomicBool::new(false),
        }
    }

    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Calls `changed` whenever memory becomes short, and when there is enough again.
    pub async fn watch(&self, mut changed: impl FnMut(bool)) {
        loop {
            // A new alarm each time: the report of an older one is already handled.
            let mut alarm = self.memory.alarm();
            Self::wait_for_alarm(&mut alarm, LOOK_EVERY, || self.memory.is_short()).await;
            let since = Instant::now();
            self.short.store(true, Ordering::Release);
            changed(true);
            while self.memory.is_short() || since.elapsed() < self.short_at_least {
                sleep(LOOK_EVERY).await;
            }
            self.short.store(false, Ordering::Release);
            changed(false);
        }
    }

    /// Waits until the alarm rings, or a periodic look finds that memory is short.
    async fn wait_for_alarm(alarm: &mut Alarm, every: Duration, is_short: impl Fn() -> bool) {
        while !is_short() {
            tokio::select! {
                () = alarm.wait() => return,
                () = sleep(every) => {}
            }
        }
    }
}

impl Node {
    /// Sets how many workers wait: as many as leases are likely to need.
    pub(crate) fn keep_waiting(&self, tables: &NodeState) {
        let most = match tables.book.availability() {
            Availability::Serving => tables.book.offered_cores() as usize,
            _ => 0,
        };
        let short = self.borrowing.is_short();
        let native = if short { 0 } else { most.min(POOL_MAX) };
        self.pools.iter().for_each(|pool| pool.set_limit(native));
        self.spares.keep(most);
    }

    /// Records that a lease of this many workers was granted.
    pub(crate) fn note_beginning(&self, lease: &ActiveLease, workers: usize) {
        let terms = &lease.terms;
        match &terms.program {
            Some(program) if terms.can_wait() => {
                self.spares.lease_began(&terms.tenant, terms.sandbox, program, workers);
            }
            None if terms.can_wait() => self.pools.of(terms.sandbox).lease_began(workers),
            _ => {}
        }
    }

    /// Records that a lease has ended. If its workers were interpreters and all came up, spares wait for the next
    /// lease.
    pub(crate) fn leave_spares(&self, lease: &ActiveLease) {
        self.starts.keep(lease);
        let terms = &lease.terms;
        let workers = lease.incarnations();
        let well = workers.iter().all(|worker| worker.start.was_up());
        match &terms.program {
            Some(program) if terms.can_wait() => {
                let ended = (workers.len(), well);
                let left = self.spares.lease_over(&terms.tenant, terms.sandbox, program, ended);
                if let Some(left) = left.filter(|_| well) {
                    self.starts.record_left(&terms.tenant, terms.sandbox, program, left);
                }
            }
            None if terms.can_wait() => self.pools.of(terms.sandbox).lease_over(workers.len()),
            _ => {}
        }
    }

    /// Gives the memory of waiting workers back as soon as other processes wait for it.
    pub(crate) async fn keep_borrowing(self: Arc<Self>) {
        let changed = |short| {
            let begin = Instant::now();
            if short {
                let native = self.pools.ready();
                self.pools.iter().for_each(|pool| pool.set_limit(0));
                let interpreters = self.spares.give_back();
                let took = begin.elapsed();
                // Again under the lock: a step may have looked before memory was short.
                self.keep_waiting(&self.tables());
                tracing::info!(native, interpreters, ?took, "memory is short: nobody waits for leases");
            } else {
                tracing::info!("there is memory again: workers wait for leases");
                self.spares.borrow_again();
                self.keep_waiting(&self.tables());
            }
        };
        // A lack of leases causes no event.
        let forget = async {
            loop {
                sleep(FORGET_EVERY).await;
                self.keep_waiting(&self.tables());
            }
        };
        tokio::join!(self.borrowing.watch(changed), forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::Mutex;

    #[tokio::test]
    async fn memory_is_given_back_when_it_becomes_short_and_borrowed_again_when_there_is_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let meminfo = folder.path().join("meminfo");
        let say = |available| {
            let text = format!("MemTotal: 1000 kB\nMemAvailable: {available} kB\n");
            fs::write(&meminfo, text).expect("written");
        };
        say(500);
        let at_least = Duration::from_millis(1500);
        let borrowing = Arc::new(Borrowing {
            short_at_least: at_least,
            ..Borrowing::new(Arc::new(IdleMemory::from_files(&meminfo, "")))
        });
        let told = Arc::new(Mutex::new(Vec::new()));
        let watching = {
            let (borrowing, told) = (Arc::clone(&borrowing), Arc::clone(&told));
            tokio::spawn(async move {
                borrowing
                    .watch(|short| told.lock().expect("whole").push((short, borrowing.is_short())))
                    .await;
            })
        };
        let told_so_far = || told.lock().expect("whole").clone();
        let until = async |count: usize| {
            while told_so_far().len() < count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        sleep(Duration::from_millis(20)).await;
        assert_eq!(told_so_far(), []);
        say(50);
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, until(1)).await.expect("it is told");
        say(500);
        let begin = Instant::now();
        tokio::time::timeout(limit, until(2)).await.expect("it is told");
        assert!(
            begin.elapsed() > at_least / 2,
            "it went to and fro within {:?}",
            begin.elapsed()
        );
        assert_eq!(told_so_far(), [(true, true), (false, false)]);
        watching.abort();
    }
}
