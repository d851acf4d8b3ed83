//! Tests of the database file: its lock, its version, and behaviour when it cannot grow.

use crate::directory::{directory, open};
use crate::records::{START_MS, invocations, key, lease, report, row, use_lease};
use hotlease_store::{BillQuery, LEDGER_FILE, ReportRecord, SqliteOptions, Store, StoreError, open_sqlite};
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

#[test]
fn acknowledged_records_are_there_after_reopening() {
    let dir = directory();
    let store = open(dir.path());
    use_lease(&store, 1, 7);
    assert!(
        matches!(
            open_sqlite(dir.path(), SqliteOptions::default()),
            Err(StoreError::Directory(_))
        ),
        "two managers opened one ledger"
    );
    drop(store);
    let store = open(dir.path());
    assert_eq!(invocations(&store), 7);
    assert_eq!(store.lease(lease(1).id).unwrap(), Some(lease(1)));
    assert_eq!(store.active_leases().unwrap(), 1);
    assert!(store.latest_ms().unwrap() > START_MS);
}

#[test]
fn waiting_writes_share_a_commit() {
    let dir = directory();
    let commits = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&commits);
    let options = SqliteOptions {
        hook: Some(Arc::new(move |moment| {
            if moment == hotlease_store::WriterMoment::BeforeCommit {
                counted.fetch_add(1, Ordering::Relaxed);
                // While this commit takes its time, other jobs gather.
                thread::sleep(std::time::Duration::from_millis(5));
            }
        })),
        ..SqliteOptions::default()
    };
    let store = Arc::new(open_sqlite(dir.path(), options).unwrap());
    let threads: Vec<_> = (0..32)
        .map(|thread| {
            let store = Arc::clone(&store);
            thread::spawn(move || (0..8).for_each(|n| use_lease(&*store, thread * 8 + n, 1)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(invocations(&*store), 256);
    let commits = commits.load(Ordering::Relaxed);
    assert!(commits < 256, "{commits} commits for 512 writes of 32 threads");
}

#[test]
fn one_write_that_is_refused_spoils_no_other_in_its_commit() {
    let dir = directory();
    let mut options = SqliteOptions::default();
    options.limits.active_leases = 140;
    let store = Arc::new(open_sqlite(dir.path(), options).unwrap());
    use_lease(&*store, 1, 1);
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                for n in 0..8 {
                    use_lease(&*store, 100 + thread * 8 + n, 1);
                    let too_many = ReportRecord {
                        leases: (1000..1141).map(lease).collect(),
                        ..report(vec![row(1, 9)])
                    };
                    let refused = store.report(too_many);
                    assert!(matches!(refused, Err(StoreError::Full { .. })));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(
        invocations(&*store),
        129,
        "a refused report left a trace, or took others with it"
    );
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let dir = directory();
    let options = SqliteOptions {
        bytes_max: Some(256 << 10),
        ..SqliteOptions::default()
    };
    let store = open_sqlite(dir.path(), options).unwrap();
    let mut kept = 0;
    let refused = loop {
        match store.open_lease(lease(kept), START_MS) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 100_000, "256 KiB hold no such number of leases");
    };
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused:?}");
    assert_eq!(
        store.leases(None).unwrap().len() as u64,
        kept,
        "it still answers what it holds"
    );
    let refused = store.open_lease(lease(kept), START_MS);
    assert!(matches!(refused, Err(StoreError::NoSpace { .. })), "{refused:?}");
    drop(store);
    // There is room again.
    let store = open(dir.path());
    assert_eq!(store.leases(None).unwrap().len() as u64, kept);
    use_lease(&store, kept, 1);
    assert!(store.audit(START_MS + 3_600_000).unwrap().problems.is_empty());
}

#[test]
fn usage_without_a_grant_is_kept_and_not_billed() {
    let dir = directory();
    let store = open(dir.path());
    let told = store.report(report(vec![row(1, 5)])).unwrap();
    assert_eq!(told.disputed, [key(1)]);
    assert_eq!(invocations(&store), 0);
    assert_eq!(store.bill(&BillQuery::default()).unwrap().disputed, 1);
    let audit = store.audit(START_MS + 3_600_000).unwrap();
    assert_eq!(audit.disputed.len(), 1);
    assert!(audit.problems.is_empty());
    // The grant is noted late; from now on the usage is billed.
    store.open_lease(lease(1), START_MS + 3_600_000).unwrap();
    assert_eq!(invocations(&store), 5);
}

#[test]
fn files_of_others_and_of_newer_versions_are_refused_and_left_alone() {
    let dir = directory();
    let path = dir.path().join(LEDGER_FILE);
    let refused = |what: &str| match open_sqlite(dir.path(), SqliteOptions::default()) {
        Ok(_) => panic!("{what} was opened"),
        Err(error) => error,
    };
    std::fs::write(&path, "not a database at all, but long enough to look at").unwrap();
    assert!(matches!(refused("a text"), StoreError::Unusable { .. }));
    std::fs::remove_file(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE theirs (x); PRAGMA user_version = 1;")
        .unwrap();
    drop(other);
    assert!(matches!(
        refused("another program's database"),
        StoreError::Unusable { .. }
    ));
    std::fs::remove_file(&path).unwrap();
    drop(open(dir.path()));
    let newer = Connection::open(&path).unwrap();
    newer.execute_batch("PRAGMA user_version = 999;").unwrap();
    drop(newer);
    let error = refused("a newer ledger");
    assert!(matches!(error, StoreError::TooNew { found: 999, .. }), "{error:?}");
}

/// The first version had no periods, so earlier usage is counted in the period in which the lease was granted.
#[test]
fn a_ledger_of_the_first_version_is_migrated() {
    let dir = directory();
    drop(open(dir.path()));
    let path = dir.path().join(LEDGER_FILE);
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "DROP TABLE periods; DROP TABLE wishes; DROP TABLE node_orders; DROP TABLE tenants; DROP TABLE members; DROP TABLE keys; DROP TABLE functions;
         DROP TABLE function_periods; ALTER TABLE leases DROP COLUMN gpus; ALTER TABLE leases DROP COLUMN busy_slots;
         ALTER TABLE ledger DROP COLUMN busy_slots; PRAGMA user_version = 1;
         INSERT INTO counters VALUES ('ledger_rows', 1);
         INSERT INTO ledger VALUES ('0101010101010101', '0101010101010101', '0000000000000001', 'uid:1',
         'label', 'job', 1, 0, 1700000000000, NULL, 9, 0, 0, 9, 0, NULL);",
    )
    .unwrap();
    drop(old);
    let store = open(dir.path());
    assert_eq!(invocations(&store), 9);
    let then = BillQuery {
        until_ms: Some(START_MS + 1),
        ..BillQuery::default()
    };
    assert_eq!(store.bill(&then).unwrap().lines[0].usage.invocations, 9);
    assert_eq!(store.audit(START_MS + 1).unwrap().problems, Vec::<String>::new());
}

#[test]
fn damage_is_found_by_an_audit() {
    let dir = directory();
    let store = open(dir.path());
    use_lease(&store, 1, 7);
    drop(store);
    let raw = Connection::open(dir.path().join(LEDGER_FILE)).unwrap();
    raw.execute_batch("UPDATE ledger SET allocated_ns = 9000000000000000000;")
        .unwrap();
    drop(raw);
    let problems = open(dir.path()).audit(START_MS + 3_600_000).unwrap().problems;
    assert_eq!(
        problems.len(),
        2,
        "over its account, and not what the periods say: {problems:?}"
    );
}
