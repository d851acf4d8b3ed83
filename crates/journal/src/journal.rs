//! The running journal: callers note totals in memory, and a thread writes them to the disk.

use crate::directory::{DirectoryError, StateDir};
use crate::disk::{Disk, FileMedium, Medium};
use crate::totals::{LeaseKey, LeaseTotal, Recovery, TotalsTable};
use hotlease_wire::ids::AgentId;
use hotlease_wire::session::UsageTotals;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Totals of running leases are durable after this time. Ends of leases, and notes that a caller waits for, are made
/// durable at once. Durable records survive a loss of power; written records survive the `kill -9` of their process in
/// any case.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Pause before a disk that failed is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

struct JournalState {
    table: TotalsTable,
    /// Number of notes so far.
    noted: u64,
    /// Number of the last note that is durable.
    durable: u64,
    /// Number of the last note that a caller waits for.
    wanted: u64,
    /// Error of the last write; `None`: it succeeded.
    failure: Option<String>,
    stop: bool,
}

struct JournalInner {
    shared: Mutex<JournalState>,
    /// Signals that there is work, or that work was done.
    changed: Condvar,
}

impl JournalInner {
    /// Locks the shared state. The state is consistent wherever a holder of the lock could panic, so it is usable even
    /// if the lock is poisoned.
    fn shared(&self) -> MutexGuard<'_, JournalState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal in use. Notes never wait for the disk. When the journal is dropped, the remaining notes are written.
pub struct UsageJournal {
    inner: Arc<JournalInner>,
    thread: Option<JoinHandle<()>>,
    recovery: Recovery,
    // Dropped after the thread was joined: the directory is held as long as the thread writes.
    _dir: StateDir,
}

impl UsageJournal {
    /// Opens the journal of a state directory. `agent` gets the owner that the journal names, or `None` if it names no
    /// owner, and returns the owner to use. Totals in the journal will be reported again.
    pub fn open(dir: StateDir, agent: impl FnOnce(Option<AgentId>) -> AgentId) -> Result<Self, DirectoryError> {
        let failed = |what| {
            let path = dir.path().to_owned();
            move |source| DirectoryError::Io { what, path, source }
        };
        let (medium, bytes) = FileMedium::open(dir.path()).map_err(failed("open the usage journal in"))?;
        let (mut table, recovery) = TotalsTable::recover(&bytes);
        if recovery.damaged_bytes > 0 {
            let kept = medium.keep_damaged().map_err(failed("keep the damaged journal in"))?;
            tracing::warn!(
                damaged_bytes = recovery.damaged_bytes, records = recovery.records, kept = %kept.display(),
                "the usage journal is damaged; every whole record in it counts"
            );
        }
        table.set_agent(agent(recovery.agent));
        let disk = Disk::new(medium, bytes.len() as u64, recovery.damaged_bytes > 0);
        let inner = Arc::new(JournalInner {
            shared: Mutex::new(JournalState {
                table,
                noted: 0,
                durable: 0,
                wanted: 0,
                failure: None,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let writing = Arc::clone(&inner);
        let body = move || write_down(&writing, disk);
        let thread = thread::Builder::new().name("hotlease-journal".into()).spawn(body);
        let thread = thread.map_err(failed("start a thread to write to"))?;
        Ok(Self {
            inner,
            thread: Some(thread),
            recovery,
            _dir: dir,
        })
    }

    /// Findings of opening the journal.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Notes a total.
    pub fn note(&self, key: LeaseKey, entry: LeaseTotal) {
        self.change(|table| table.put(key, entry));
    }

    /// Notes that the manager has durably recorded this total. `cut`: the lease is of an earlier run of the agent, so
    /// its total cannot grow.
    pub fn acknowledge(&self, key: LeaseKey, usage: UsageTotals, cut: bool) {
        self.change(|table| table.acknowledge(key, usage, cut));
    }

    /// Drops the total of a lease that was given back before it was used: the total is neither reported nor compared
    /// with the ledger.
    pub fn discard(&self, key: LeaseKey) {
        self.change(|table| table.discard(key));
    }

    fn change(&self, change: impl FnOnce(&mut TotalsTable)) {
        let mut shared = self.inner.shared();
        change(&mut shared.table);
        if shared.table.is_changed() {
            shared.noted += 1;
            self.inner.changed.notify_all();
        }
    }

    /// Returns at most `most` totals that the manager has not acknowledged, of leases that `wanted` selects.
    pub fn unacknowledged(&self, most: usize, wanted: impl Fn(&LeaseKey) -> bool) -> Vec<(LeaseKey, LeaseTotal)> {
        let shared = self.inner.shared();
        let waiting = shared.table.waiting().filter(|(key, _)| wanted(key)).take(most);
        waiting.map(|(key, entry)| (*key, entry.clone())).collect()
    }

    /// Whether no more leases should be granted until the manager has acknowledged some totals.
    pub fn is_full(&self) -> bool {
        self.inner.shared().table.is_full()
    }

    /// Error of the disk; `None`: writing works.
    pub fn failure(&self) -> Option<String> {
        self.inner.shared().failure.clone()
    }

    /// Blocks until all notes so far are durable, the disk has failed, or the time is up. Returns whether the notes are
    /// durable.
    pub fn make_durable(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut shared = self.inner.shared();
        let mine = shared.noted;
        shared.wanted = shared.wanted.max(mine);
        self.inner.changed.notify_all();
        while shared.durable < mine && shared.failure.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.inner.changed.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        shared.durable >= mine
    }
}

impl Drop for UsageJournal {
    fn drop(&mut self) {
        self.inner.shared().stop = true;
        self.inner.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Body of the writing thread.
fn write_down<M: Medium>(inner: &JournalInner, mut disk: Disk<M>) {
    let mut synced = Instant::now();
    loop {
        let (work, upto, stop) = {
            let mut shared = inner.shared();
            loop {
                let now = Instant::now();
                let sync_due = synced + SYNC_EVERY <= now && disk.is_unsynced();
                let asked = shared.wanted > shared.durable && !disk.is_failed();
                if shared.stop || asked || sync_due || (shared.table.is_changed() && !disk.is_failed()) {
                    break;
                }
                let pause = match (disk.is_failed(), disk.is_unsynced()) {
                    (true, _) => RETRY_EVERY,
                    (false, true) => (synced + SYNC_EVERY).saturating_duration_since(now),
                    (false, false) => Duration::MAX,
                };
                let waited = inner.changed.wait_timeout(shared, pause.min(Duration::from_secs(3600)));
                let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                shared = guard;
                if timeout.timed_out() && disk.is_failed() {
                    break;
                }
            }
            let sync = shared.stop
                || shared.wanted > shared.durable
                || (disk.is_unsynced() && synced + SYNC_EVERY <= Instant::now());
            (disk.plan(&mut shared.table, sync), shared.noted, shared.stop)
        };
        let done = disk.write_plan(&work);
        if !disk.is_unsynced() {
            synced = Instant::now();
        }
        publish_result(inner, &done, (!disk.is_unsynced()).then_some(upto));
        if stop {
            return;
        }
    }
}

/// Tells waiting callers the result of a write. Logs the first of consecutive failures, and the first success after
/// them.
fn publish_result(inner: &JournalInner, done: &io::Result<()>, durable: Option<u64>) {
    let mut shared = inner.shared();
    match done {
        Ok(()) => {
            if let Some(upto) = durable {
                shared.durable = shared.durable.max(upto);
            }
            if shared.failure.take().is_some() {
                tracing::info!("the usage journal is written again; nothing was lost");
            }
        }
        Err(error) => {
            if shared.failure.is_none() {
                tracing::error!(
                    %error,
                    "the usage journal cannot be written; usage is reported and kept in memory, and lost if \
                     the agent dies before there is room on its disk"
                );
            }
            shared.failure = Some(error.to_string());
        }
    }
    inner.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::ids::{BootId, LeaseId};

    const AGENT: AgentId = AgentId([1; 8]);

    fn open(path: &std::path::Path) -> UsageJournal {
        let dir = StateDir::take(path).expect("free");
        UsageJournal::open(dir, |known| known.unwrap_or(AGENT)).expect("opened")
    }

    fn entry(invocations: u64, ended: bool) -> LeaseTotal {
        LeaseTotal {
            tenant: "uid:1".into(),
            usage: UsageTotals {
                invocations,
                ..UsageTotals::default()
            },
            functions: Default::default(),
            slots: 1,
            memory_bytes: 0,
            ended,
        }
    }

    fn key(lease: u8) -> LeaseKey {
        (BootId([2; 8]), LeaseId([lease; 8]))
    }

    #[test]
    fn totals_without_an_acknowledgement_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let journal = open(&path);
        journal.note(key(1), entry(5, false));
        journal.note(key(2), entry(7, true));
        journal.note(key(3), entry(9, true));
        assert!(journal.make_durable(Duration::from_secs(10)));
        journal.acknowledge(key(2), entry(7, true).usage, false);
        journal.acknowledge(key(3), entry(8, true).usage, false); // not its last total
        drop(journal);
        let journal = open(&path);
        assert_eq!(journal.recovery().damaged_bytes, 0);
        assert_eq!(
            journal.unacknowledged(usize::MAX, |_| true),
            [(key(1), entry(5, false)), (key(3), entry(9, true))]
        );
        assert_eq!(journal.unacknowledged(1, |_| true).len(), 1);
    }

    #[test]
    fn a_journal_of_another_agent_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let journal = open(&path);
        journal.note(key(1), entry(5, true));
        drop(journal);
        let other = StateDir::take(&path).unwrap();
        let other = UsageJournal::open(other, |_| AgentId([9; 8])).unwrap();
        assert!(other.unacknowledged(9, |_| true).is_empty());
    }

    #[test]
    fn a_lease_that_was_given_back_unused_is_neither_reported_nor_compared_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent");
        let journal = open(&path);
        journal.note(key(1), entry(5, false));
        journal.note(key(2), entry(7, false));
        assert!(journal.make_durable(Duration::from_secs(10)));
        journal.discard(key(1));
        assert_eq!(journal.unacknowledged(9, |_| true), [(key(2), entry(7, false))]);
        drop(journal);
        let journal = open(&path);
        assert_eq!(journal.unacknowledged(9, |_| true), [(key(2), entry(7, false))]);
        let shared = journal.inner.shared();
        assert_eq!(shared.table.acknowledged().count(), 0, "it is compared with no ledger");
    }
}
