//! Totals in the journal that the manager may not have yet. Pure data, without a disk.

use crate::frame::{FRAME_BYTES, FunctionRecord, RecordKind, TotalRecord};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse, covers, larger};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Limit of leases whose totals wait for a manager; an agent that has reached this limit grants no more leases.
pub const UNACKNOWLEDGED_MAX: usize = 65_536;
/// Limit of acknowledged totals that are kept, for comparison with the ledger.
pub const ACKNOWLEDGED_MAX: usize = 1024;

/// Key of a lease: the agent's run, and the lease's id.
pub type LeaseKey = (BootId, LeaseId);

/// Usage of a lease so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTotal {
    /// Tenant that pays.
    pub tenant: String,
    /// Cumulative usage.
    pub usage: UsageTotals,
    /// Usage of the lease's functions, as far as it was noted.
    pub functions: FunctionTotals,
    /// Number of slots of the lease.
    pub slots: u32,
    /// Memory of all workers of the lease together, bytes.
    pub memory_bytes: u64,
    /// Whether the lease has ended: then this total is its last total.
    pub ended: bool,
}

impl LeaseTotal {
    /// Kind of the record of this total while the total waits for a manager.
    fn kind(&self) -> RecordKind {
        match self.ended {
            true => RecordKind::Ended,
            false => RecordKind::Running,
        }
    }

    /// Kind of the record of this total once the manager has acknowledged the total.
    fn acknowledged_kind(&self) -> RecordKind {
        match self.ended {
            true => RecordKind::Acknowledged,
            false => RecordKind::InterruptedAcknowledged,
        }
    }
}

/// Findings of opening a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Number of whole records.
    pub records: u64,
    /// Bytes that belong to no record: torn writes, flipped bits.
    pub damaged_bytes: u64,
    /// Owner that the records name; `None`: no whole record was found.
    pub agent: Option<AgentId>,
}

/// Totals of leases: totals that wait for a manager, and totals that were acknowledged lately.
#[derive(Debug, Default)]
pub struct TotalsTable {
    agent: Option<AgentId>,
    sequence: u64,
    /// Totals that are not acknowledged.
    waiting: BTreeMap<LeaseKey, LeaseTotal>,
    /// Acknowledged totals, in the order of acknowledgement.
    acknowledged: VecDeque<(LeaseKey, LeaseTotal)>,
    /// Totals that changed since the last [`TotalsTable::take_changes`].
    changed: BTreeSet<LeaseKey>,
    /// Functions of waiting leases that changed since the last [`TotalsTable::take_changes`].
    changed_functions: BTreeSet<(LeaseKey, FunctionId)>,
    /// Totals that were acknowledged since the last [`TotalsTable::take_changes`].
    newly_acknowledged: VecDeque<(LeaseKey, LeaseTotal)>,
    /// Totals that were discarded since the last [`TotalsTable::take_changes`].
    newly_discarded: VecDeque<(LeaseKey, LeaseTotal)>,
}

impl TotalsTable {
    /// Reads all whole records in a journal's bytes, and uses the largest value of each counter. Damaged bytes are
    /// skipped, and the next record is searched after them.
    pub fn recover(bytes: &[u8]) -> (Self, Recovery) {
        let mut table = Self::default();
        let mut recovery = Recovery::default();
        let mut functions = BTreeMap::new();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let frame = rest.first_chunk();
            if let Some(record) = frame.and_then(TotalRecord::decode) {
                table.sequence = table.sequence.max(record.sequence);
                table.agent = Some(record.agent);
                table.replay(record);
            } else if let Some(record) = frame.and_then(FunctionRecord::decode) {
                table.sequence = table.sequence.max(record.sequence);
                let of_lease: &mut BTreeMap<_, _> = functions.entry((record.boot, record.lease)).or_default();
                let known = of_lease.entry(record.function).or_insert(record.used);
                *known = known.plus(record.used.minus(*known));
            } else {
                // The next record may begin at any byte.
                recovery.damaged_bytes += 1;
                at += 1;
                continue;
            }
            recovery.records += 1;
            at += FRAME_BYTES;
        }
        recovery.agent = table.agent;
        // Functions are merged last, because a function's record may precede the only whole record of its lease.
        let acknowledged = table.acknowledged.iter_mut();
        let acknowledged = acknowledged.map(|(key, entry)| (&*key, entry));
        for (key, entry) in table.waiting.iter_mut().chain(acknowledged) {
            if let Some(functions) = functions.get(key) {
                let functions = functions.iter().map(|(id, used)| (id.clone(), *used));
                entry.functions.merge(&functions.collect(), entry.usage);
            }
        }
        table.changed.clear();
        table.changed_functions.clear();
        table.newly_acknowledged.clear();
        table.newly_discarded.clear();
        (table, recovery)
    }

    fn replay(&mut self, record: TotalRecord) {
        let key = (record.boot, record.lease);
        let entry = LeaseTotal {
            tenant: record.tenant,
            usage: record.usage,
            functions: FunctionTotals::default(),
            slots: record.slots,
            memory_bytes: record.memory_bytes,
            ended: matches!(record.kind, RecordKind::Ended | RecordKind::Acknowledged),
        };
        match record.kind {
            RecordKind::Running | RecordKind::Ended => self.put(key, entry),
            // This record includes the totals of earlier records of the lease, which may be lost.
            RecordKind::Acknowledged | RecordKind::InterruptedAcknowledged => {
                self.put(key, entry.clone());
                self.acknowledge(key, entry.usage, true);
            }
            RecordKind::Discarded => self.discard(key),
        }
    }

    /// Sets the owner of the totals. Must be called before totals are put in; recovered totals of another agent are
    /// discarded.
    pub fn set_agent(&mut self, agent: AgentId) {
        if self.agent.replace(agent).is_some_and(|known| known != agent) {
            self.waiting.clear();
            self.acknowledged.clear();
        }
    }

    /// Notes a total. Counters only rise, and an ended lease stays ended.
    pub fn put(&mut self, key: LeaseKey, entry: LeaseTotal) {
        if self
            .acknowledged
            .iter()
            .any(|(known, had)| *known == key && covers(had.usage, entry.usage))
        {
            return;
        }
        match self.waiting.get_mut(&key) {
            Some(known) => {
                let usage = larger(known.usage, entry.usage);
                let ended = known.ended || entry.ended;
                let functions = known.functions.merge(&entry.functions, usage);
                let functions = functions.into_iter().map(|function| (key, function));
                self.changed_functions.extend(functions);
                if usage == known.usage && ended == known.ended {
                    return;
                }
                (known.usage, known.ended) = (usage, ended);
            }
            None => {
                let functions = entry.functions.iter().map(|(function, _)| (key, function.clone()));
                self.changed_functions.extend(functions);
                self.waiting.insert(key, entry);
            }
        }
        self.changed.insert(key);
    }

    /// Notes that the manager has durably recorded this total. The lease does not wait any more if this was its last
    /// total: the lease has ended, or (`cut`) is of an earlier run of the agent, so that its total cannot grow.
    pub fn acknowledge(&mut self, key: LeaseKey, usage: UsageTotals, cut: bool) {
        let done = |entry: &LeaseTotal| (entry.ended || cut) && covers(usage, entry.usage);
        if !self.waiting.get(&key).is_some_and(done) {
            return;
        }
        if let Some(entry) = self.waiting.remove(&key) {
            self.changed.remove(&key);
            self.newly_acknowledged.push_back((key, entry.clone()));
            self.acknowledged.push_back((key, entry));
            while self.acknowledged.len() > ACKNOWLEDGED_MAX {
                self.acknowledged.pop_front();
            }
            while self.newly_acknowledged.len() > ACKNOWLEDGED_MAX {
                self.newly_acknowledged.pop_front();
            }
        }
    }

    /// Drops the total of a lease that was given back before it was used. The total is not compared with the ledger,
    /// which has no such lease.
    pub fn discard(&mut self, key: LeaseKey) {
        if let Some(entry) = self.waiting.remove(&key) {
            self.changed.remove(&key);
            self.newly_discarded.push_back((key, entry));
            while self.newly_discarded.len() > ACKNOWLEDGED_MAX {
                self.newly_discarded.pop_front();
            }
        }
    }

    /// Totals that wait, by boot and lease.
    pub fn waiting(&self) -> impl Iterator<Item = (&LeaseKey, &LeaseTotal)> {
        self.waiting.iter()
    }

    /// Totals that were acknowledged lately, in the order of acknowledgement.
    pub fn acknowledged(&self) -> impl Iterator<Item = &(LeaseKey, LeaseTotal)> {
        self.acknowledged.iter()
    }

    /// Whether the agent should grant no leases until the manager has acknowledged some totals.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= UNACKNOWLEDGED_MAX
    }

    /// Whether there is something to write.
    pub fn is_changed(&self) -> bool {
        let is_ended = !self.newly_acknowledged.is_empty() || !self.newly_discarded.is_empty();
        !self.changed.is_empty() || !self.changed_functions.is_empty() || is_ended
    }

    /// Size of [`TotalsTable::snapshot`], bytes.
    pub fn snapshot_bytes(&self) -> u64 {
        let waiting = self.waiting.values();
        let entries = waiting.chain(self.acknowledged.iter().map(|(_, entry)| entry));
        let frames: usize = entries.map(|entry| 1 + entry.functions.len()).sum();
        (frames * FRAME_BYTES) as u64
    }

    /// Takes the records of all changes, which the caller appends to the file. Also returns whether a lease has ended:
    /// then the records should be synced at once.
    pub fn take_changes(&mut self) -> (Vec<u8>, bool) {
        let mut frames = Vec::new();
        let mut ended = false;
        for key in std::mem::take(&mut self.changed) {
            if let Some(entry) = self.waiting.get(&key).cloned() {
                ended |= entry.ended;
                frames.extend(self.frame(key, entry.kind(), entry));
            }
        }
        // Records of functions are written after the record of their lease, and before the record that acknowledges the
        // lease.
        for (key, function) in std::mem::take(&mut self.changed_functions) {
            // If the lease is not in either list, it was acknowledged so long ago that its functions are not needed.
            let acknowledged = || self.acknowledged.iter().rev().find(|(known, _)| *known == key);
            let entry = self
                .waiting
                .get(&key)
                .or_else(|| acknowledged().map(|(_, entry)| entry));
            if let Some(used) = entry.map(|entry| entry.functions.get(&function)) {
                frames.extend(self.function_frame(key, function, used));
            }
        }
        for (key, entry) in std::mem::take(&mut self.newly_acknowledged) {
            frames.extend(self.frame(key, entry.acknowledged_kind(), entry));
        }
        for (key, entry) in std::mem::take(&mut self.newly_discarded) {
            frames.extend(self.frame(key, RecordKind::Discarded, entry));
        }
        (frames, ended)
    }

    /// Records of all totals, for a new file.
    pub fn snapshot(&mut self) -> Vec<u8> {
        self.changed.clear();
        self.changed_functions.clear();
        self.newly_acknowledged.clear();
        self.newly_discarded.clear();
        let acknowledged = self.acknowledged.iter().cloned();
        let acknowledged = acknowledged.map(|(key, entry)| (key, entry.acknowledged_kind(), entry));
        let waiting = self
            .waiting
            .iter()
            .map(|(key, entry)| (*key, entry.kind(), entry.clone()));
        let all: Vec<_> = acknowledged.chain(waiting).collect();
        let mut frames = Vec::new();
        for (key, kind, entry) in all {
            let functions = entry.functions.clone();
            frames.extend(self.frame(key, kind, entry));
            for (function, used) in functions.iter() {
                frames.extend(self.function_frame(key, function.clone(), used));
            }
        }
        frames
    }

    /// Returns the number of the next record. If a file contains the largest number, the number stays the same. That is
    /// harmless, because numbers are only for people who read the file.
    fn next_sequence(&mut self) -> u64 {
        self.sequence = self.sequence.saturating_add(1);
        self.sequence
    }

    fn function_frame(
        &mut self,
        (boot, lease): LeaseKey,
        function: FunctionId,
        used: FunctionUse,
    ) -> [u8; FRAME_BYTES] {
        let sequence = self.next_sequence();
        let record = FunctionRecord {
            sequence,
            agent: self.agent.unwrap_or(AgentId([0; 8])),
            boot,
            lease,
            function,
            used,
        };
        record.encode()
    }

    fn frame(&mut self, (boot, lease): LeaseKey, kind: RecordKind, entry: LeaseTotal) -> [u8; FRAME_BYTES] {
        let sequence = self.next_sequence();
        let record = TotalRecord {
            kind,
            sequence,
            agent: self.agent.unwrap_or(AgentId([0; 8])),
            boot,
            lease,
            tenant: entry.tenant,
            usage: entry.usage,
            slots: entry.slots,
            memory_bytes: entry.memory_bytes,
        };
        record.encode()
    }
}
