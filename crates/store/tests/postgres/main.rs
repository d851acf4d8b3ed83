//! Tests of a feature that only PostgreSQL offers: several managers, one of which writes.

mod remote;
#[path = "../sqlite/records.rs"]
mod scene;
mod server;

use hotlease_store::{Candidate, DatabaseStore, PostgresOptions, Store, StoreError, WriterMoment, open_postgres};
use remote::RemoteServer;
use scene::{START_MS, invocations, key, lease, report, row, use_lease};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

fn open(parameters: &str) -> DatabaseStore {
    open_postgres(parameters, PostgresOptions::default()).expect("opened")
}

#[test]
fn acknowledged_records_are_read_by_the_next_manager() {
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
        matches!(refused, Err(StoreError::OtherLeader { ours: 1, leader: 2 })),
        "{refused:?}"
    );
    let refused = old.open_lease(lease(2), START_MS);
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    assert_eq!(invocations(&new), 7);
    assert_eq!(new.rows(&[key(2)]).unwrap(), [None]);
}

/// The epoch is checked inside the transaction. If a leader is deposed between its check and its commit, the new leader
/// begins only after the commit.
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
            hotlease_store::WriterMoment::BeforeCommit => {
                first.store(true, Ordering::SeqCst);
                thread::sleep(std::time::Duration::from_millis(300));
            }
            hotlease_store::WriterMoment::AfterCommit => last.store(true, Ordering::SeqCst),
            hotlease_store::WriterMoment::AfterAnswers => {}
        })),
        ..PostgresOptions::default()
    };
    let old = open_postgres(&database, slow).unwrap();
    let writing = thread::spawn(move || old.open_lease(lease(1), START_MS).map(|()| old));
    while !begun.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let new = open(&database);
    // The commit is done, although its thread may not have reported it yet.
    assert!(
        new.lease(lease(1).id).unwrap().is_some(),
        "the new leader began while the old one could still commit"
    );
    assert!(writing.join().unwrap().is_ok());
    assert!(committed.load(Ordering::SeqCst));
}

fn candidate(parameters: &str) -> Candidate {
    Candidate::new(parameters, PostgresOptions::default()).expect("a database")
}

#[test]
fn a_candidate_waits_for_a_living_leader_and_leads_once_it_has_left() {
    let Some(database) = server::new_database() else {
        return;
    };
    let leader = open(&database);
    let begun = Instant::now();
    let given_up = candidate(&database).wait(|| begun.elapsed() > Duration::from_secs(4));
    assert!(
        given_up.unwrap().is_none(),
        "a leader that writes nothing is alive all the same"
    );
    use_lease(&leader, 1, 5);
    let waiting = candidate(&database);
    let next = thread::spawn(move || waiting.wait(|| false));
    drop(leader);
    let mut leader = next.join().unwrap().unwrap().expect("it leads");
    assert_eq!(invocations(&leader), 5);
    // If a leader leaves, the next manager need not wait for two seconds of silence. The test tries several times,
    // because the node may be busy.
    let mut late = Vec::new();
    loop {
        let waiting = candidate(&database);
        let next = thread::spawn(move || waiting.wait(|| false));
        drop(leader);
        let begun = Instant::now();
        leader = next.join().unwrap().unwrap().expect("it leads");
        let took = begun.elapsed();
        if took < Duration::from_millis(1900) {
            break;
        }
        late.push(took);
        assert!(late.len() < 3, "{late:?}");
    }
    assert_eq!(invocations(&leader), 5);
}

/// Stops the leader outside a transaction, and within a transaction, whose locks the server releases.
#[test]
fn a_silent_leader_is_replaced_and_is_told() {
    for at in [WriterMoment::AfterAnswers, WriterMoment::BeforeCommit] {
        let Some(database) = server::new_database() else {
            return;
        };
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let stopped = Mutex::new(stopped);
        let armed = Arc::new(AtomicBool::new(false));
        let arm = Arc::clone(&armed);
        let silent = PostgresOptions {
            hook: Some(Arc::new(move |moment| {
                if moment == at && arm.swap(false, Ordering::SeqCst) {
                    // Blocks until the sender is dropped.
                    let _ = stopped.lock().unwrap().recv();
                }
            })),
            ..PostgresOptions::default()
        };
        let old = Arc::new(open_postgres(&database, silent).unwrap());
        use_lease(&*old, 1, 5);
        armed.store(true, Ordering::SeqCst);
        let writer = Arc::clone(&old);
        let writing = thread::spawn(move || writer.open_lease(lease(2), START_MS));
        let begun = Instant::now();
        let new = candidate(&database).wait(|| false).unwrap().expect("it leads");
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(15), "{at:?}: {took:?}");
        drop(stop);
        let written = writing.join().unwrap();
        assert_eq!(
            written.is_ok(),
            new.lease(lease(2).id).unwrap().is_some(),
            "{at:?}: what was answered is there, and nothing else: {written:?}"
        );
        let begun = Instant::now();
        while old.end_error().is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "the old one does not learn it"
            );
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(invocations(&new), 5);
    }
}

#[test]
fn servers_that_cannot_be_trusted_or_are_not_there_are_refused() {
    for parameters in [
        "host=localhost port=1 dbname=x",
        "host=localhost sslmode=disable dbname=x",
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

#[test]
fn a_server_elsewhere_is_reached_over_tls_with_a_password_from_a_file_and_its_certificate_is_checked() {
    let Some(remote) = RemoteServer::start() else {
        return;
    };
    let at = |host: &str, authority: &str| {
        let (port, folder) = (remote.port, remote.folder().display());
        format!(
            "postgresql://remote@{host}:{port}/postgres?sslmode=verify-full&sslrootcert={folder}/{authority}\
             &passfile={folder}/pass"
        )
    };
    let store = open(&at("localhost", "ca.pem"));
    use_lease(&store, 1, 7);
    drop(store);
    assert_eq!(invocations(&open(&at("localhost", "ca.pem"))), 7);
    let other = open_postgres(&at("localhost", "other.pem"), PostgresOptions::default());
    let Err(StoreError::Unusable { why, .. }) = other else {
        panic!("a server of another authority was trusted");
    };
    assert!(why.contains("certificate"), "{why}");
    // The server's certificate is not for this name, so no password is sent to the server.
    std::fs::write(remote.folder().join("pass"), "*:*:*:remote:a\\:b\n").expect("written");
    let named = open_postgres(&at("127.0.0.1", "ca.pem"), PostgresOptions::default());
    let Err(StoreError::Unusable { why, .. }) = named else {
        panic!("a certificate for another name was accepted");
    };
    assert!(why.contains("certificate"), "{why}");
}
