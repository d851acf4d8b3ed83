//! Tests of a journal on a disk that loses or damages data.
//!
//! A simulated disk loses unsynced bytes when the power fails, tears writes, returns errors and runs full. Files are
//! cut, shifted and overwritten, and bits are flipped. In every case, only totals that were written are accepted, every
//! whole record is used, and all durable records are found.

use hotlease_journal::frame::{FRAME_BYTES, FunctionRecord};
use hotlease_journal::{ACKNOWLEDGED_MAX, Disk, LeaseKey, LeaseTotal, Medium, TotalsTable};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse, covers};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, LeaseId};
use hotlease_wire::session::UsageTotals;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const AGENT: AgentId = AgentId([1; 8]);

/// State of the simulated disk, and the faults of its next operations.
#[derive(Default)]
struct DiskState {
    /// Contents that survive a loss of power.
    durable: Vec<u8>,
    /// Contents that programs see.
    seen: Vec<u8>,
    /// Bytes that still fit.
    room: Option<usize>,
    /// Whether the next sync fails, and drops what it could not write.
    sync_fails: bool,
}

#[derive(Clone, Default)]
struct SimulatedDisk(Arc<Mutex<DiskState>>);

impl SimulatedDisk {
    fn with<T>(&self, look: impl FnOnce(&mut DiskState) -> T) -> T {
        look(&mut self.0.lock().expect("no test fails in there"))
    }

    /// Contents after a loss of power: some unsynced pages may have been written, and the last of these pages may be
    /// torn.
    fn lose_power(&self, random: &mut StdRng) -> Vec<u8> {
        self.with(|disk| {
            let kept = disk.durable.len().min(disk.seen.len());
            let mut left = disk.seen[..random.random_range(kept..=disk.seen.len())].to_vec();
            if left.len() > kept && random.random_bool(0.5) {
                let torn = random.random_range(kept..left.len());
                left[torn..].fill(0);
            }
            left
        })
    }
}

impl Medium for SimulatedDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.with(|disk| {
            let fits = disk.room.unwrap_or(usize::MAX).min(bytes.len());
            disk.seen.extend_from_slice(&bytes[..fits]);
            disk.room = disk.room.map(|room| room - fits);
            match fits == bytes.len() {
                true => Ok(()),
                false => Err(io::ErrorKind::StorageFull.into()),
            }
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.with(|disk| {
            if std::mem::take(&mut disk.sync_fails) {
                // File systems may do this after a failed write-back: the pages are marked as clean, and their contents
                // are lost.
                disk.seen.clone_from(&disk.durable);
                return Err(io::Error::other("simulated I/O error"));
            }
            disk.durable.clone_from(&disk.seen);
            Ok(())
        })
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.with(|disk| {
            if disk.room.is_some_and(|room| room + disk.seen.len() < bytes.len()) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.room = disk.room.map(|room| room + disk.seen.len() - bytes.len());
            disk.seen = bytes.to_vec();
            disk.durable = bytes.to_vec();
            Ok(())
        })
    }
}

fn key(boot: u8, lease: u8) -> LeaseKey {
    (BootId([boot; 8]), LeaseId([lease; 8]))
}

fn entry(total: u64, ended: bool) -> LeaseTotal {
    LeaseTotal {
        tenant: "uid:1".into(),
        usage: UsageTotals {
            allocated_ns: total * 1000,
            hot_ns: total,
            compute_ns: total * 10,
            invocations: total,
        },
        functions: functions(total),
        slots: 1,
        memory_bytes: 0,
        ended,
    }
}

/// Usage of two functions; a part of the total belongs to neither.
fn functions(total: u64) -> FunctionTotals {
    let used = |compute_ns, invocations| FunctionUse {
        compute_ns,
        invocations,
    };
    let id = |name| FunctionId::new(CodeHash([1; 32]), name);
    FunctionTotals::from_iter([
        (id("f"), used(total * 6, total - total / 3)),
        (id("g"), used(total * 3, total / 3)),
    ])
}

/// Does random work of an agent: totals grow, leases end, some ends are acknowledged. Returns all noted totals by
/// lease.
fn some_work(
    random: &mut StdRng,
    table: &mut TotalsTable,
    each: &mut dyn FnMut(&mut TotalsTable),
) -> BTreeMap<LeaseKey, Vec<UsageTotals>> {
    let mut noted: BTreeMap<LeaseKey, Vec<UsageTotals>> = BTreeMap::new();
    let mut total = 0;
    for _ in 0..random.random_range(5..60) {
        let key = key(random.random_range(1..3), random.random_range(1..9));
        total += random.random_range(1..50);
        let entry = entry(total, random.random_bool(0.2));
        table.put(key, entry.clone());
        noted.entry(key).or_default().push(entry.usage);
        if entry.ended && random.random_bool(0.3) {
            table.acknowledge(key, entry.usage, false);
        }
        each(table);
    }
    noted
}

fn fresh() -> TotalsTable {
    let mut table = TotalsTable::default();
    table.set_agent(AGENT);
    table
}

/// All totals of a table, acknowledged or not.
fn known(table: &TotalsTable) -> BTreeMap<LeaseKey, UsageTotals> {
    let acknowledged = table.acknowledged().map(|(key, entry)| (*key, entry.usage));
    acknowledged
        .chain(table.waiting().map(|(key, entry)| (*key, entry.usage)))
        .collect()
}

/// Makes a journal by random work; returns its bytes, and all noted totals by lease.
fn written(random: &mut StdRng) -> (Vec<u8>, BTreeMap<LeaseKey, Vec<UsageTotals>>) {
    let disk = SimulatedDisk::default();
    let mut file = Disk::new(disk.clone(), 0, false);
    let noted = some_work(random, &mut fresh(), &mut |table| {
        let work = file.plan(table, false);
        file.write_plan(&work).expect("written");
    });
    (disk.with(|disk| disk.seen.clone()), noted)
}

fn damage(random: &mut StdRng, bytes: &mut Vec<u8>) -> (&'static str, usize) {
    let at = random.random_range(0..bytes.len());
    match random.random_range(0..6) {
        0 => {
            bytes.truncate(at);
            ("cut", at)
        }
        1 => {
            bytes[at] ^= 1 << random.random_range(0..8);
            ("a flipped bit", at)
        }
        2 => {
            let end = (at + random.random_range(1..2000)).min(bytes.len());
            bytes[at..end].fill(0);
            ("a hole", at)
        }
        3 => {
            let end = (at + random.random_range(1..2000)).min(bytes.len());
            random.fill(&mut bytes[at..end]);
            ("garbage", at)
        }
        4 => {
            let end = (at + random.random_range(1..300)).min(bytes.len());
            bytes.drain(at..end);
            ("missing bytes", at)
        }
        _ => {
            // A page from elsewhere: whole frames in the wrong place.
            let from = random.random_range(0..bytes.len());
            let length = random.random_range(1..1024).min(bytes.len() - from.max(at));
            bytes.copy_within(from..from + length, at);
            ("a misplaced page", at)
        }
    }
}

#[test]
fn no_damage_makes_a_wrong_total_and_what_is_before_it_counts() {
    let mut damaged = 0;
    for seed in 0..1000 {
        let mut random = StdRng::seed_from_u64(seed);
        let (whole, noted) = written(&mut random);
        let mut bytes = whole.clone();
        let (what, at) = damage(&mut random, &mut bytes);
        let (table, recovery) = TotalsTable::recover(&bytes);
        let (intact, _) = TotalsTable::recover(&whole[..at / FRAME_BYTES * FRAME_BYTES]);
        let found = known(&table);
        for (key, usage) in &found {
            // Each counter was written for this lease.
            let totals = noted
                .get(key)
                .unwrap_or_else(|| panic!("seed {seed}: {what} at {at} made a lease"));
            assert!(
                totals.contains(usage),
                "seed {seed}: {what} at byte {at} made a total of {usage:?}"
            );
        }
        for (key, usage) in known(&intact) {
            let now = found.get(&key).copied().unwrap_or_default();
            assert!(
                covers(now, usage),
                "seed {seed}: {what} at byte {at} lost what stands before it: {usage:?} became {now:?}"
            );
        }
        damaged += usize::from(recovery.damaged_bytes > 0);
    }
    assert!(damaged >= 200, "only {damaged} of the journals were really damaged");
}

#[test]
fn functions_are_read_back_and_damage_gives_them_no_more_than_their_lease() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let (whole, noted) = written(&mut random);
        let entries = |table: &TotalsTable| -> Vec<_> {
            let acknowledged = table.acknowledged().cloned();
            acknowledged
                .chain(table.waiting().map(|(key, entry)| (*key, entry.clone())))
                .collect()
        };
        let most = |key: &LeaseKey| noted[key].iter().map(|usage| usage.invocations).max().unwrap_or(0);
        for (key, entry) in entries(&TotalsTable::recover(&whole).0) {
            // A smaller total is an acknowledged total of a lease that was noted again later.
            if entry.usage.invocations < most(&key) {
                continue;
            }
            assert_eq!(
                entry.functions,
                functions(entry.usage.invocations),
                "seed {seed}: functions of {key:?} after no damage"
            );
        }
        let mut bytes = whole;
        let (what, at) = damage(&mut random, &mut bytes);
        for (key, entry) in entries(&TotalsTable::recover(&bytes).0) {
            let sum = entry.functions.sum();
            assert!(
                FunctionUse::from(entry.usage).covers(sum),
                "seed {seed}: {what} at byte {at}: functions used {sum:?} of {:?}",
                entry.usage
            );
            assert!(
                functions(most(&key)).covers(&entry.functions),
                "seed {seed}: {what} at byte {at} made {:?}",
                entry.functions
            );
        }
    }
}

#[test]
fn a_journal_without_functions_is_read_as_before() {
    let mut random = StdRng::seed_from_u64(1);
    let (bytes, _) = written(&mut random);
    let old: Vec<u8> = bytes
        .chunks_exact(FRAME_BYTES)
        .filter(|frame| FunctionRecord::decode((*frame).try_into().expect("a frame")).is_none())
        .flatten()
        .copied()
        .collect();
    assert!(old.len() < bytes.len(), "functions were noted");
    let (table, recovery) = TotalsTable::recover(&old);
    assert_eq!(recovery.damaged_bytes, 0);
    assert_eq!(known(&table), known(&TotalsTable::recover(&bytes).0));
    assert!(table.waiting().all(|(_, entry)| entry.functions.is_empty()));
}

#[test]
fn one_flipped_byte_costs_one_record() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut bytes, _) = written(&mut random);
        let records = bytes.len() / FRAME_BYTES;
        let at = random.random_range(0..bytes.len());
        bytes[at] ^= random.random_range(1..=255);
        let (_, recovery) = TotalsTable::recover(&bytes);
        assert_eq!(
            (recovery.records as usize, recovery.damaged_bytes as usize),
            (records - 1, FRAME_BYTES),
            "seed {seed}"
        );
    }
}

#[test]
fn durable_records_survive_a_loss_of_power() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::default();
        let mut file = Disk::new(disk.clone(), 0, false);
        let mut chance = StdRng::seed_from_u64(!seed);
        let mut durable = BTreeMap::new();
        some_work(&mut random, &mut fresh(), &mut |table| {
            let work = file.plan(table, chance.random_bool(0.2));
            file.write_plan(&work).expect("written");
            if !file.is_unsynced() {
                durable = known(table);
            }
        });
        let (table, _) = TotalsTable::recover(&disk.lose_power(&mut random));
        let found = known(&table);
        for (key, usage) in durable {
            let now = found.get(&key).copied().unwrap_or_default();
            assert!(covers(now, usage), "seed {seed}: {usage:?} became {now:?}");
        }
    }
}

/// The total at the end of a lease is billed, so it must not stay only in memory.
#[test]
fn the_end_of_a_lease_is_synced_at_once() {
    let disk = SimulatedDisk::default();
    let mut file = Disk::new(disk.clone(), 0, false);
    let mut table = fresh();
    table.put(key(1, 1), entry(5, false));
    let work = file.plan(&mut table, false);
    file.write_plan(&work).unwrap();
    assert!(
        disk.with(|disk| disk.durable.is_empty()),
        "a running total need not be durable"
    );
    table.put(key(1, 1), entry(6, true));
    let work = file.plan(&mut table, false);
    file.write_plan(&work).unwrap();
    let (found, _) = TotalsTable::recover(&disk.with(|disk| disk.durable.clone()));
    assert_eq!(known(&found)[&key(1, 1)], entry(6, true).usage);
}

#[test]
fn a_full_disk_loses_nothing_once_there_is_room() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::default();
        let mut file = Disk::new(disk.clone(), 0, false);
        let mut table = fresh();
        disk.with(|disk| disk.room = Some(random.random_range(0..3000)));
        let mut failures = 0;
        some_work(&mut random, &mut table, &mut |table| {
            let work = file.plan(table, true);
            failures += usize::from(file.write_plan(&work).is_err());
        });
        disk.with(|disk| disk.room = None);
        let work = file.plan(&mut table, true);
        file.write_plan(&work)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(!file.is_failed());
        let (found, recovery) = TotalsTable::recover(&disk.with(|disk| disk.durable.clone()));
        assert_eq!(known(&found), known(&table), "seed {seed}, after {failures} failures");
        assert_eq!(
            recovery.damaged_bytes, 0,
            "seed {seed}: half a record was left in the file"
        );
    }
}

/// After a failed sync the pages may be lost although the next sync succeeds.
#[test]
fn a_failed_sync_is_not_believed_the_second_time() {
    let disk = SimulatedDisk::default();
    let mut file = Disk::new(disk.clone(), 0, false);
    let mut table = fresh();
    table.put(key(1, 1), entry(5, true));
    disk.with(|disk| disk.sync_fails = true);
    let work = file.plan(&mut table, true);
    assert!(file.write_plan(&work).is_err(), "it is told");
    let work = file.plan(&mut table, true);
    file.write_plan(&work).unwrap();
    let (found, _) = TotalsTable::recover(&disk.with(|disk| disk.durable.clone()));
    assert_eq!(known(&found), known(&table), "the record is not on the disk");
}

#[test]
fn the_file_stays_small_however_much_is_noted() {
    let disk = SimulatedDisk::default();
    let mut file = Disk::new(disk.clone(), 0, false);
    let mut table = fresh();
    let mut largest = 0;
    for total in 0..40_000 {
        let key = key(1, (total % 50) as u8);
        table.put(key, entry(total + 1, false));
        let work = file.plan(&mut table, false);
        file.write_plan(&work).unwrap();
        largest = largest.max(disk.with(|disk| disk.seen.len()));
    }
    assert!(largest <= (1 << 20) + 3 * FRAME_BYTES, "{largest} bytes for 50 leases");
    let (found, _) = TotalsTable::recover(&disk.with(|disk| disk.seen.clone()));
    assert_eq!(known(&found), known(&table));
    // Acknowledged totals are kept for a while, but not for ever.
    for lease in 0..2 * ACKNOWLEDGED_MAX {
        let key = (BootId([3; 8]), LeaseId((lease as u64).to_be_bytes()));
        table.put(key, entry(1, true));
        table.acknowledge(key, entry(1, true).usage, false);
    }
    assert_eq!(table.acknowledged().count(), ACKNOWLEDGED_MAX);
}

/// An acknowledged total of a lease whose agent died must not be taken for the lease's last total.
#[test]
fn a_lease_that_was_cut_is_told_from_one_that_ended() {
    let disk = SimulatedDisk::default();
    let mut file = Disk::new(disk.clone(), 0, false);
    let mut table = fresh();
    table.put(key(1, 1), entry(5, false));
    table.acknowledge(key(1, 1), entry(5, false).usage, false);
    assert_eq!(table.waiting().count(), 1, "it goes on");
    table.acknowledge(key(1, 1), entry(5, false).usage, true);
    let work = file.plan(&mut table, true);
    file.write_plan(&work).unwrap();
    let (found, _) = TotalsTable::recover(&disk.with(|disk| disk.durable.clone()));
    assert_eq!(found.waiting().count(), 0);
    let acknowledged: Vec<_> = found.acknowledged().collect();
    assert_eq!(acknowledged, [&(key(1, 1), entry(5, false))]);
}

#[test]
fn an_older_total_or_acknowledgement_changes_nothing() {
    let mut table = fresh();
    table.put(key(1, 1), entry(9, true));
    table.put(key(1, 1), entry(5, false));
    table.acknowledge(key(1, 1), entry(5, true).usage, false);
    assert_eq!(table.waiting().collect::<Vec<_>>(), [(&key(1, 1), &entry(9, true))]);
    table.acknowledge(key(1, 1), entry(9, true).usage, false);
    assert_eq!(table.waiting().count(), 0);
    table.put(key(1, 1), entry(9, true));
    assert_eq!(table.waiting().count(), 0, "an acknowledged total waits again");
}
