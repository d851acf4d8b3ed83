//! What the journal knows: totals that the manager may not have yet. Pure; the disk is elsewhere.

use crate::frame::{FRAME_BYTES, FunctionRecord, Kind, Record};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse, covers, larger};
use hotlease_wire::ids::{AgentId, BootId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Leases whose totals wait for a manager. At this many the agent grants no more.
pub const UNACKNOWLEDGED_MAX: usize = 65_536;
/// Acknowledged totals that are kept, to be held against the ledger.
pub const ACKNOWLEDGED_MAX: usize = 1024;

/// Which lease of which run.
pub type Key = (BootId, LeaseId);

/// What a lease has used so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Who pays.
    pub tenant: String,
    /// Used so far: a cumulative total.
    pub usage: UsageTotals,
    /// What its functions used of that, as far as it was noted.
    pub functions: FunctionTotals,
    /// Slots of the lease.
    pub slots: u32,
    /// Memory of all its workers, bytes.
    pub memory_bytes: u64,
    /// The lease is over: this total is its last.
    pub ended: bool,
}

/// What was found when a journal was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Whole records.
    pub records: u64,
    /// Bytes that belong to none: torn writes, flipped bits.
    pub damaged_bytes: u64,
    /// Whose journal it is; `None`: nothing whole was found.
    pub agent: Option<AgentId>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    agent: Option<AgentId>,
    sequence: u64,
    /// Not acknowledged.
    waiting: BTreeMap<Key, Entry>,
    /// Acknowledged, the longest acknowledged first.
    acknowledged: VecDeque<(Key, Entry)>,
    /// Changed since the last [`Table::take_changes`].
    changed: BTreeSet<Key>,
    /// The same for functions of leases that wait.
    changed_functions: BTreeSet<(Key, FunctionId)>,
    /// The same for acknowledgements.
    newly_acknowledged: VecDeque<(Key, Entry)>,
}

impl Table {
    /// Reads all that is whole in a journal's bytes, and takes each total for what it is: the largest that
    /// was written counts. What is damaged is skipped; the next record is looked for after it.
    pub fn recover(bytes: &[u8]) -> (Self, Recovery) {
        let mut table = Self::default();
        let mut recovery = Recovery::default();
        let mut functions = BTreeMap::new();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let frame = rest.first_chunk();
            if let Some(record) = frame.and_then(Record::decode) {
                table.sequence = table.sequence.max(record.sequence);
                table.agent = Some(record.agent);
                table.replay(record);
            } else if let Some(record) = frame.and_then(FunctionRecord::decode) {
                table.sequence = table.sequence.max(record.sequence);
                let of_lease: &mut BTreeMap<_, _> = functions.entry((record.boot, record.lease)).or_default();
                let known = of_lease.entry(record.function).or_insert(record.used);
                *known = known.plus(record.used.minus(*known));
            } else {
                // Any place may be the beginning of the next one.
                recovery.damaged_bytes += 1;
                at += 1;
                continue;
            }
            recovery.records += 1;
            at += FRAME_BYTES;
        }
        recovery.agent = table.agent;
        // Only now: the record of a function may come before what is left of its lease's.
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
        (table, recovery)
    }

    fn replay(&mut self, record: Record) {
        let key = (record.boot, record.lease);
        let entry = Entry {
            tenant: record.tenant,
            usage: record.usage,
            functions: FunctionTotals::default(),
            slots: record.slots,
            memory_bytes: record.memory_bytes,
            ended: matches!(record.kind, Kind::Ended | Kind::Acknowledged),
        };
        match record.kind {
            Kind::Running | Kind::Ended => self.put(key, entry),
            // It says all that its earlier records said, which may be lost.
            Kind::Acknowledged | Kind::CutAcknowledged => {
                self.put(key, entry.clone());
                self.acknowledge(key, entry.usage, true);
            }
        }
    }

    /// Whose totals these are. Set before anything is put in; what was recovered of another agent is
    /// forgotten.
    pub fn belong_to(&mut self, agent: AgentId) {
        if self.agent.replace(agent).is_some_and(|known| known != agent) {
            self.waiting.clear();
            self.acknowledged.clear();
        }
    }

    /// Notes a total. Counters only rise, and an ended lease stays ended.
    pub fn put(&mut self, key: Key, entry: Entry) {
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
                let functions = entry
                    .functions
                    .iter()
                    .map(|(function, _)| (key, function.clone()));
                self.changed_functions.extend(functions);
                self.waiting.insert(key, entry);
            }
        }
        self.changed.insert(key);
    }

    /// The manager has this total, durably. A lease whose last total it is waits no more: one that ended, or
    /// (`cut`) one of an earlier run, which nobody can add to.
    pub fn acknowledge(&mut self, key: Key, usage: UsageTotals, cut: bool) {
        let done = |entry: &Entry| (entry.ended || cut) && covers(usage, entry.usage);
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

    /// Totals that wait, by boot and lease.
    pub fn waiting(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.waiting.iter()
    }

    /// Totals that were acknowledged lately, the first ones first.
    pub fn acknowledged(&self) -> impl Iterator<Item = &(Key, Entry)> {
        self.acknowledged.iter()
    }

    /// Whether the agent should grant nothing until a manager has taken some of it.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= UNACKNOWLEDGED_MAX
    }

    /// Whether something is to be written.
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty() || !self.changed_functions.is_empty() || !self.newly_acknowledged.is_empty()
    }

    /// Bytes of [`Table::snapshot`].
    pub fn snapshot_bytes(&self) -> u64 {
        let waiting = self.waiting.values();
        let entries = waiting.chain(self.acknowledged.iter().map(|(_, entry)| entry));
        let frames: usize = entries.map(|entry| 1 + entry.functions.len()).sum();
        (frames * FRAME_BYTES) as u64
    }

    /// Records of what changed, to append; and whether some lease ended, which should not wait for a sync.
    pub fn take_changes(&mut self) -> (Vec<u8>, bool) {
        let mut frames = Vec::new();
        let mut ended = false;
        for key in std::mem::take(&mut self.changed) {
            if let Some(entry) = self.waiting.get(&key).cloned() {
                ended |= entry.ended;
                frames.extend(self.frame(key, entry, false));
            }
        }
        // Before what says that they are acknowledged, and behind the record of their lease.
        for (key, function) in std::mem::take(&mut self.changed_functions) {
            // Acknowledged already, or, if so long ago that it is forgotten, not needed.
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
            frames.extend(self.frame(key, entry, true));
        }
        (frames, ended)
    }

    /// Everything, for a new file.
    pub fn snapshot(&mut self) -> Vec<u8> {
        self.changed.clear();
        self.changed_functions.clear();
        self.newly_acknowledged.clear();
        let acknowledged = self
            .acknowledged
            .iter()
            .cloned()
            .map(|(key, entry)| (key, entry, true));
        let waiting = self
            .waiting
            .iter()
            .map(|(key, entry)| (*key, entry.clone(), false));
        let all: Vec<_> = acknowledged.chain(waiting).collect();
        let mut frames = Vec::new();
        for (key, entry, done) in all {
            let functions = entry.functions.clone();
            frames.extend(self.frame(key, entry, done));
            for (function, used) in functions.iter() {
                frames.extend(self.function_frame(key, function.clone(), used));
            }
        }
        frames
    }

    /// Of the next record. A file may claim the last number there is: it is for who reads the file, nothing depends on it.
    fn next_sequence(&mut self) -> u64 {
        self.sequence = self.sequence.saturating_add(1);
        self.sequence
    }

    fn function_frame(
        &mut self,
        (boot, lease): Key,
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

    fn frame(&mut self, (boot, lease): Key, entry: Entry, acknowledged: bool) -> [u8; FRAME_BYTES] {
        let sequence = self.next_sequence();
        let record = Record {
            kind: match (acknowledged, entry.ended) {
                (true, true) => Kind::Acknowledged,
                (true, false) => Kind::CutAcknowledged,
                (false, true) => Kind::Ended,
                (false, false) => Kind::Running,
            },
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
