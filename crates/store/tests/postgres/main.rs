//! What only PostgreSQL is for: several managers, of which one writes.

#[path = "../sqlite/scene.rs"]
mod scene;
mod server;

use hotlease_store::{DatabaseStore, PostgresOptions, Store, StoreError, open_postgres};
use scene::{START_MS, invocations, key, lease, report, row, use_lease};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn open(parameters: &str) -> DatabaseStore {
    open_postgres(parameters, PostgresOptions::default()).expect("opened")
}

#[test]
fn what_was_answered_is_there_for_the_next_manager() {
    let Some(database) = server::new_database() else {
        return;
    };
    let store = open(&database);
    use_lease(&store, 1, 7);
    drop(store);
    let store = open(&database);
    assert_eq!(invocations(&store), 7);
    assert_eq!(store.lease(lease(1).id).unwrap(), Some(lease(1)));
    assert_eq!(
        store.audit(START_MS + 3_600_000).unwrap().problems,
        Vec::<String>::new()
    );
}

#[test]
fn a_deposed_leader_changes_nothing_any_more() {
    let Some(database) = server::new_database() else {
        return;
    };
    let old = open(&database);
    use_lease(&old, 1, 5);
    let new = open(&database);
    use_lease(&new, 1, 7);
    let refused = old.report(report(vec![row(1, 100)]));
    assert!(
        matches!(refused, Err(StoreError::Deposed { ours: 1, leader: 2 })),
        "{refused:?}"
    );
    let refused = old.open_lease(lease(2), START_MS);
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    assert_eq!(invocations(&new), 7);
    assert_eq!(new.rows(&[key(2)]).unwrap(), [None]);
}

/// The epoch is looked at inside the transaction: a leader that is deposed between its look and its commit
/// has committed before the new one begins, and not after.
#[test]
fn leaders_that_follow_each_other_never_write_at_the_same_time() {
    let Some(database) = server::new_database() else {
        return;
    };
    let begun = Arc::new(AtomicBool::new(false));
    let committed = Arc::new(AtomicBool::new(false));
    let (first, last) = (Arc::clone(&begun), Arc::clone(&committed));
    let slow = PostgresOptions {
        hook: Some(Arc::new(move |moment| match moment {
            hotlease_store::Moment::BeforeCommit => {
                first.store(true, Ordering::SeqCst);
                thread::sleep(std::time::Duration::from_millis(300));
            }
            hotlease_store::Moment::AfterCommit => last.store(true, Ordering::SeqCst),
            hotlease_store::Moment::AfterAnswers => {}
        })),
        ..PostgresOptions::default()
    };
    let old = open_postgres(&database, slow).unwrap();
    let writing = thread::spawn(move || old.open_lease(lease(1), START_MS).map(|()| old));
    while !begun.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let new = open(&database);
    // The commit is done; its thread may not have come to say so yet.
    assert!(
        new.lease(lease(1).id).unwrap().is_some(),
        "the new leader began while the old one could still commit"
    );
    assert!(writing.join().unwrap().is_ok());
    assert!(committed.load(Ordering::SeqCst));
}

#[test]
fn servers_that_need_a_password_or_a_network_are_refused() {
    for parameters in [
        "host=localhost dbname=x",
        "host=/run/postgresql password=secret",
        "dbname=x",
        "nonsense",
    ] {
        let refused = open_postgres(parameters, PostgresOptions::default());
        assert!(
            matches!(refused, Err(StoreError::Unusable { .. })),
            "{parameters:?} was opened"
        );
    }
}
