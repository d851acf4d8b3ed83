//! Tests of `kill -9` around every durable write: this program starts itself as a child, which writes and dies at a
//! chosen moment.
//!
//! The child writes each answer that it got into a pipe before its next write. The parent then opens the ledger. Every
//! acknowledged write must be in it, whole, and at most one write that was not acknowledged.

use crate::directory::{directory, open};
use crate::records::{START_MS, invocations, key, lease, report, row};
use hotlease_store::{LeaseState, SqliteOptions, Store, WriterMoment, open_sqlite};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHILD: &str = "HOTLEASE_TEST_KILLED_AT";
const DIRECTORY: &str = "HOTLEASE_TEST_LEDGER";
/// Number of leases that the child uses, if it does not die before.
const LEASES: u64 = 6;
/// Invocations that are reported for each lease.
const USED: u64 = 10;

fn kill_at(moments: u64) -> SqliteOptions {
    let passed = AtomicU64::new(0);
    SqliteOptions {
        hook: Some(Arc::new(move |_: WriterMoment| {
            if passed.fetch_add(1, Ordering::Relaxed) == moments {
                let own = nix::unistd::Pid::this();
                // If the signal cannot be sent, the child lives on, which the parent notices.
                let _ = nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL);
                loop {
                    std::thread::park();
                }
            }
        })),
        ..SqliteOptions::default()
    }
}

/// Child process of the test below; does nothing when it is run as a test.
#[test]
fn child() {
    let (Ok(moments), Some(directory)) = (std::env::var(CHILD), std::env::var_os(DIRECTORY)) else {
        return;
    };
    let store = open_sqlite(Path::new(&directory), kill_at(moments.parse().unwrap())).unwrap();
    let tell = |what: &str, number: u64| {
        let mut out = std::io::stderr();
        writeln!(out, "answered {what} {number}").unwrap();
    };
    for number in 0..LEASES {
        store.open_lease(lease(number), START_MS).unwrap();
        tell("open", number);
        store.report(report(vec![row(number, USED)])).unwrap();
        tell("used", number);
        let mut over = report(vec![row(number, USED + 1)]);
        over.usage[0].settled = true;
        over.leases = vec![lease(number)];
        over.leases[0].state = LeaseState::Ended { why: "released".into() };
        store.report(over).unwrap();
        tell("over", number);
    }
}

/// Runs the child. Returns the answers that the child got as (what, lease), and whether the child finished.
fn run_child(directory: &Path, moments: u64) -> (Vec<(String, u64)>, bool) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--nocapture"])
        .env(CHILD, moments.to_string())
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(child.stderr.take().unwrap()).lines();
    let answered = told
        .map_while(Result::ok)
        .filter_map(|line| {
            let mut words = line.strip_prefix("answered ")?.split(' ');
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect();
    let status = child.wait().unwrap();
    assert!(
        status.success() || status.signal() == Some(9),
        "the child failed by itself: {status}"
    );
    (answered, status.success())
}

#[test]
fn an_acknowledged_row_is_never_lost_whenever_the_manager_is_killed() {
    let mut moments = 0;
    loop {
        let dir = directory();
        let (answered, finished) = run_child(dir.path(), moments);
        let store = open(dir.path());
        let mut sure = [0; LEASES as usize];
        for (what, number) in &answered {
            let found = store.rows(&[key(*number)]).unwrap()[0].clone();
            let found = found.unwrap_or_else(|| panic!("killed at moment {moments}: lease {number} was lost"));
            let least = match what.as_str() {
                "open" => 0,
                "used" => USED,
                _ => USED + 1,
            };
            assert!(
                found.usage.invocations >= least,
                "killed at moment {moments}: lease {number} had {least} acknowledged and has {found:?}"
            );
            if what == "over" {
                let kept = store.lease(lease(*number).id).unwrap().expect("kept");
                assert!(
                    found.settled && kept.state != LeaseState::Active,
                    "killed at moment {moments}: half of lease {number}'s end"
                );
            }
            sure[*number as usize] = least;
        }
        // At most one write that was not acknowledged may be in the ledger, whole: the write that was under way.
        let billed = invocations(&store);
        let least: u64 = sure.iter().sum();
        assert!(
            (least..=least + USED).contains(&billed),
            "killed at moment {moments}: {billed} billed, {least} acknowledged"
        );
        let audit = store.audit(START_MS + 3_600_000).unwrap();
        assert!(
            audit.problems.is_empty(),
            "killed at moment {moments}: {:?}",
            audit.problems
        );
        if finished {
            assert_eq!(answered.len() as u64, 3 * LEASES);
            break;
        }
        moments += 1;
    }
    assert!(moments >= 9 * LEASES, "only {moments} moments were tried");
}
