//! Tests of backups and restores.

use crate::directory::{directory, open};
use crate::records::{invocations, use_lease};
use hotlease_store::{LEDGER_FILE, StoreError, backup, restore};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn a_copy_of_a_busy_ledger_is_of_one_moment() {
    let dir = directory();
    let ledger = dir.path().join("ledger");
    let store = Arc::new(open(&ledger));
    use_lease(&*store, 0, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        thread::spawn(move || {
            let numbers = (1..).take_while(|_| !stop.load(Ordering::Relaxed));
            numbers.map(|number| use_lease(&*store, number, 1)).count()
        })
    };
    let copies: Vec<_> = (0..5)
        .map(|number| {
            let copy = dir.path().join(format!("copy-{number}"));
            let before = invocations(&*store);
            let summary = backup(&ledger, &copy).expect("copied");
            assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o600);
            (copy, before, summary.rows)
        })
        .collect();
    stop.store(true, Ordering::Relaxed);
    assert!(writing.join().unwrap() > 0);
    for (copy, before, rows) in copies {
        let back = dir.path().join(format!("{}-back", copy.display()));
        restore(&back, &copy).expect("restored");
        let restored = open(&back);
        let found = invocations(&restored);
        assert!(
            found >= before && (rows - found) <= 1,
            "{found} of {rows} rows were used; before the copy {before} were"
        );
    }
}

#[test]
fn a_restore_replaces_the_ledger_and_keeps_the_old_one() {
    let dir = directory();
    let (ledger, copy) = (dir.path().join("ledger"), dir.path().join("copy"));
    let store = open(&ledger);
    use_lease(&store, 1, 7);
    backup(&ledger, &copy).unwrap();
    assert!(
        matches!(backup(&ledger, &copy), Err(StoreError::Disk { .. })),
        "a copy was overwritten"
    );
    use_lease(&store, 2, 5);
    assert!(
        matches!(restore(&ledger, &copy), Err(StoreError::Directory(_))),
        "a ledger in use was replaced"
    );
    drop(store);
    let summary = restore(&ledger, &copy).unwrap();
    assert_eq!(invocations(&open(&ledger)), 7);
    let aside = summary.replaced.expect("kept");
    assert_eq!(invocations(&open(&aside)), 12, "with its log of writes");
}

#[test]
fn a_damaged_copy_is_refused_and_changes_nothing() {
    let dir = directory();
    let (ledger, copy) = (dir.path().join("ledger"), dir.path().join("copy"));
    let store = open(&ledger);
    (0..200).for_each(|number| use_lease(&store, number, 1));
    backup(&ledger, &copy).unwrap();
    drop(store);
    let whole = fs::read(&copy).unwrap();
    let mut broken = whole.clone();
    let middle = broken.len() / 2;
    broken[middle..middle + 4096].fill(0x5a);
    for bytes in [&whole[..whole.len() / 2], &broken[..], &[]] {
        fs::write(&copy, bytes).unwrap();
        assert!(restore(&ledger, &copy).is_err(), "{} bytes were restored", bytes.len());
        assert_eq!(invocations(&open(&ledger)), 200);
    }
    assert!(restore(&ledger, &dir.path().join("nothing")).is_err());
}

/// After a crash in a restore, when the old ledger was already moved away, the directory must not be opened as an empty
/// ledger.
#[test]
fn an_interrupted_restore_is_noticed() {
    let dir = directory();
    let store = open(dir.path());
    use_lease(&store, 1, 7);
    drop(store);
    let aside = dir.path().join("ledger.db.restoring");
    fs::rename(dir.path().join(LEDGER_FILE), aside).unwrap();
    let opened = hotlease_store::open_sqlite(dir.path(), Default::default());
    assert!(matches!(opened, Err(StoreError::Unusable { .. })));
}
