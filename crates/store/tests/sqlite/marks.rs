//! Tests of the mark: a ledger is refused if it has lost answered commits, and only then.

use crate::directory::{directory, open};
use crate::records::{invocations, use_lease};
use hotlease_store::{LEDGER_FILE, SqliteOptions, StoreError, backup, open_sqlite, restore};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const LOG_FILE: &str = "ledger.db-wal";
const MARK_FILE: &str = "ledger.mark";
const LEASES: u64 = 20;

/// Copies the files of a ledger in use, as `kill -9` leaves them.
fn crashed(ledger: &Path) -> TempDir {
    let copy = directory();
    for name in [LEDGER_FILE, LOG_FILE, MARK_FILE] {
        fs::copy(ledger.join(name), copy.path().join(name)).expect("copied");
    }
    copy
}

fn refusal(ledger: &Path) -> StoreError {
    match open_sqlite(ledger, SqliteOptions::default()) {
        Ok(_) => panic!("a ledger that has lost commits was opened"),
        Err(error) => error,
    }
}

#[test]
fn overwritten_bytes_of_the_log_are_noticed_wherever_they_are() {
    let seed: u64 = std::env::var("HOTLEASE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = directory();
    let store = open(dir.path());
    (0..LEASES).for_each(|number| use_lease(&store, number, 1));
    let whole = crashed(dir.path());
    assert_eq!(invocations(&open(whole.path())), LEASES, "nothing was overwritten");
    let length = fs::metadata(dir.path().join(LOG_FILE)).expect("a log").len() as usize;
    // The first byte, the last byte, and random bytes.
    let offsets: Vec<_> = [0, length - 1]
        .into_iter()
        .chain((0..40).map(|_| random.random_range(0..length)))
        .collect();
    for offset in offsets {
        let copy = crashed(dir.path());
        let path = copy.path().join(LOG_FILE);
        let mut log = fs::read(&path).expect("a log");
        log[offset] ^= 1 << random.random_range(0..8);
        fs::write(&path, &log).expect("overwritten");
        let error = refusal(copy.path());
        assert!(
            matches!(error, StoreError::Lost { lost: 1.., .. }),
            "byte {offset} of {length}: {error}"
        );
        assert!(
            backup(copy.path(), &copy.path().join("backup")).is_err(),
            "a backup without what was lost"
        );
        assert_eq!(fs::read(&path).expect("a log"), log, "the log was changed");
        // The operator accepts the loss.
        fs::remove_file(copy.path().join(MARK_FILE)).expect("removed");
        let store = open(copy.path());
        let left = invocations(&store);
        assert!(left < LEASES, "byte {offset}: nothing was lost");
        use_lease(&store, LEASES, 1);
        drop(store);
        assert_eq!(invocations(&open(copy.path())), left + 1);
    }
}

#[test]
fn a_ledger_that_was_cut_or_replaced_by_an_older_one_is_noticed() {
    let dir = directory();
    let ledger = dir.path().join("ledger");
    let store = open(&ledger);
    use_lease(&store, 0, 1);
    let copy = dir.path().join("copy");
    backup(&ledger, &copy).expect("copied");
    use_lease(&store, 1, 1);
    drop(store);
    fs::copy(&copy, ledger.join(LEDGER_FILE)).expect("copied");
    assert!(matches!(refusal(&ledger), StoreError::Lost { lost: 2, .. }));
    fs::write(ledger.join(LEDGER_FILE), []).expect("cut");
    let error = refusal(&ledger);
    assert!(
        matches!(
            error,
            StoreError::Lost {
                lost: 4,
                answered: 4,
                ..
            }
        ),
        "{error}"
    );
    // A ledger that was restored is not refused.
    restore(&ledger, &copy).expect("restored");
    assert_eq!(invocations(&open(&ledger)), 1);
    // A ledger that was restored into a directory whose ledger was removed is not refused, either.
    fs::remove_file(ledger.join(LEDGER_FILE)).expect("removed");
    restore(&ledger, &copy).expect("restored");
    assert_eq!(invocations(&open(&ledger)), 1);
}

#[test]
fn a_ledger_without_a_mark_or_with_an_older_one_is_opened() {
    let dir = directory();
    let store = open(dir.path());
    use_lease(&store, 0, 1);
    let mark = dir.path().join(MARK_FILE);
    let older = fs::read(&mark).expect("a mark");
    use_lease(&store, 1, 1);
    drop(store);
    // Marks that a crash of the machine, or a torn write, may leave.
    for bytes in [Some(&older[..]), Some(&older[..older.len() / 2]), Some(&[]), None] {
        match bytes {
            Some(bytes) => fs::write(&mark, bytes).expect("written"),
            None => fs::remove_file(&mark).expect("removed"),
        }
        assert_eq!(invocations(&open(dir.path())), 2);
    }
}
