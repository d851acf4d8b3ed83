//! Torn and flipped bytes of the usage journal, under a real agent.

use hotlease_journal::frame::{FRAME_BYTES, RecordKind, TotalRecord};
use hotlease_journal::{JOURNAL_FILE, read};
use hotlease_lease::ledger::covers;
use hotlease_tests::faults::caller::{check, make};
use hotlease_tests::faults::ledger::{self, Bill};
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, random, seed, times};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use rand::RngExt;
use rand::rngs::StdRng;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// State of a manager that has granted leases and was not told of their use, and of the agent that recorded the use.
struct Snapshot {
    directory: tempfile::TempDir,
    /// Usage that really happened.
    truth: Bill,
    journal: Vec<u8>,
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("made private");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a kind").is_dir() {
            true => copy(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).expect("a copy");
            }
        }
    }
}

fn snapshot() -> Snapshot {
    let mut parts = Parts::start();
    let tally = Tally::new();
    let mut truth = Bill::new();
    // These leases mostly end between two heartbeats; usage that a heartbeat did acknowledge is equally correct.
    for round in 0..8 {
        let invoker = parts.invoker().expect("a lease");
        let function = invoker.function("tally").expect("it is there").idempotent(false);
        for _ in 0..=round {
            check(&tally, &make(&function, &tally.call(200)));
        }
        drop(function);
        let lease = invoker.lease().to_string();
        truth.insert(lease, invoker.deallocate().expect("its usage"));
    }
    parts.kill(Part::Manager);
    parts.kill(Part::Agent);
    let directory = hotlease_tests::platform::private_directory();
    copy(&parts.directory().join("state"), directory.path());
    let journal = read(&parts.state(Part::Agent).join(JOURNAL_FILE)).expect("a journal");
    assert!(
        journal.len() >= 8 * FRAME_BYTES && journal.len().is_multiple_of(FRAME_BYTES),
        "a whole journal"
    );
    Snapshot {
        directory,
        truth,
        journal,
    }
}

/// Damages a journal in one random way; returns the bytes and what was done.
fn damage(journal: &[u8], random: &mut StdRng) -> (Vec<u8>, String) {
    let mut bytes = journal.to_vec();
    let at = random.random_range(0..bytes.len());
    let what = match random.random_range(0..6) {
        0 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        1 => {
            let bits = random.random_range(1..8);
            for _ in 0..bits {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
            format!("{bits} bits flipped")
        }
        2 => {
            let to = (at + random.random_range(1..4096)).min(bytes.len());
            bytes[at..to].fill(0);
            format!("zeros at {at} to {to}")
        }
        3 => {
            let garbage: Vec<u8> = (0..random.random_range(1..1000)).map(|_| random.random()).collect();
            bytes.splice(at..at, garbage);
            format!("something put in at {at}")
        }
        4 => {
            let to = (at + random.random_range(1..1000)).min(bytes.len());
            bytes.drain(at..to);
            format!("{at} to {to} left out")
        }
        _ => {
            let to = (at + random.random_range(1..4096)).min(bytes.len());
            let again = bytes[at..to].to_vec();
            bytes.extend(again);
            format!("{at} to {to} again at the end")
        }
    };
    (bytes, what)
}

/// The last whole total of each lease, found by looking at every byte for a frame.
fn left(bytes: &[u8]) -> Bill {
    let mut found = Bill::new();
    for at in 0..bytes.len().saturating_sub(FRAME_BYTES - 1) {
        let frame: &[u8; FRAME_BYTES] = bytes[at..at + FRAME_BYTES].try_into().expect("its length");
        if frame[..4] != *b"HLuj" {
            continue;
        }
        let Some(record) = TotalRecord::decode(frame) else {
            continue;
        };
        if matches!(record.kind, RecordKind::Running | RecordKind::Ended) {
            let total = found.entry(record.lease.to_string()).or_default();
            *total = hotlease_lease::ledger::larger(*total, record.usage);
        }
    }
    found
}

#[test]
fn damaged_journal_never_makes_a_wrong_bill_and_every_whole_record_counts() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "torn and flipped bytes in the usage journal",
            "the agent starts; every whole record is billed; no tenant is billed more than was used",
            "journals::damaged_journal_never_makes_a_wrong_bill_and_every_whole_record_counts",
            seed,
        )
    };
    let snapshot = snapshot();
    let row = Runs {
        lanes: 4,
        runs: times(COUNTS.journals),
        seed,
    }
    .make(
        new_row,
        |_| (),
        |(), run, row| {
            let mut random = random(seed, run);
            let mut parts = Parts::new();
            *parts.arguments(Part::Agent) = ["--cores", "1", "--pool", "0"].map(String::from).to_vec();
            copy(snapshot.directory.path(), &parts.directory().join("state"));
            let (bytes, what) = damage(&snapshot.journal, &mut random);
            fs::write(parts.state(Part::Agent).join(JOURNAL_FILE), &bytes).expect("a journal");
            let whole = left(&bytes);
            let start = Instant::now();
            parts.spawn(Part::Manager, None);
            parts.spawn(Part::Agent, None);
            parts.until_serving(LIMIT);
            row.took("agent registered in", Some(Duration::from_secs(5)), start.elapsed());
            let bill = ledger::until_settled(&parts);
            for (lease, billed) in &bill {
                let used = snapshot.truth.get(lease).copied().unwrap_or_default();
                assert!(
                    covers(used, *billed),
                    "{what}: lease {lease} used {used:?} and is billed {billed:?}"
                );
            }
            for (lease, written) in &whole {
                let billed = bill.get(lease).copied().unwrap_or_default();
                assert!(
                    covers(billed, *written),
                    "{what}: lease {lease} has {written:?} in a whole record and is billed {billed:?}"
                );
            }
        },
        |(), _| (),
    );
    row.finish();
}
