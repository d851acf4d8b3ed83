//! Faults of disks: full and failing disks under the ledger and under the usage journal.

use crate::scene::Scene;
use hotlease_client::Invoker;
use hotlease_tests::faults::caller::Steady;
use hotlease_tests::faults::ledger;
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, random, seed, times};
use hotlease_tests::faults::system::{Strike, System};
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::process::Process;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rand::RngExt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a platform needs to recover by itself after its disk is well again.
const WELL: Duration = Duration::from_secs(5);

fn until_leased(parts: &Parts, limit: Duration) -> Duration {
    let start = Instant::now();
    loop {
        match parts.invoker() {
            Ok(invoker) => {
                invoker.deallocate().expect("its usage");
                return start.elapsed();
            }
            Err(error) => assert!(start.elapsed() < limit, "no lease once the disk is well: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tries to lease until it is refused because of the disk; releases the leases that were granted meanwhile.
fn until_refused(parts: &Parts) -> String {
    let start = Instant::now();
    loop {
        match parts.invoker().map(Invoker::deallocate) {
            Err(error) => return error.to_string(),
            Ok(_) => assert!(start.elapsed() < LIMIT, "leases are granted without a disk"),
        }
    }
}

#[test]
fn failing_disk_refuses_with_its_reason_and_loses_nothing() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "no space or I/O errors at any write of the ledger or the usage journal, for a while",
            "calls go on; what needs the disk is refused with the reason; nothing acknowledged is lost",
            "disks::failing_disk_refuses_with_its_reason_and_loses_nothing",
            seed,
        )
    };
    let row = Runs {
        lanes: 4,
        runs: times(COUNTS.disks),
        seed,
    }
    .make(
        new_row,
        |_| (),
        |(), run, row| {
            let mut random = random(seed, run);
            let whose = if run % 2 == 0 { Part::Manager } else { Part::Agent };
            let how = if run / 2 % 2 == 0 {
                Strike::NoSpace
            } else {
                Strike::IoError
            };
            let mut parts = Parts::new();
            let system = System::new(&parts.directory().join("orders"), &parts.state(whose));
            for part in [Part::Manager, Part::Agent] {
                parts.start_part(part, (part == whose).then_some(&system));
            }
            parts.until_serving(LIMIT);
            let steady = Steady {
                seed: seed.wrapping_add(run.into()),
                ..Steady::default()
            };
            let mut scene = Scene::with(parts, &steady);
            let lease = scene.caller().invoker().lease();
            std::thread::sleep(Duration::from_millis(random.random_range(0..700)));
            // A short fault may be over before a daemon writes.
            let span = [1, random.random_range(1..10), 1 << 40][random.random_range(0..3)];
            let at = system.operations() + random.random_range(1..6);
            system.strike(at, span, how, 0);
            let began = Instant::now();
            if span > 10 && whose == Part::Manager {
                let why = until_refused(&scene.parts);
                let reason = ["full", "space", "disk", "written"]
                    .iter()
                    .any(|word| why.contains(word));
                assert!(reason, "the refusal does not name the disk: {why}");
            }
            let deadline = Instant::now() + LIMIT;
            while system.struck() == 0 {
                assert!(Instant::now() < deadline, "no write was struck");
                // Causes more writes.
                drop(scene.parts.invoker().map(Invoker::deallocate));
            }
            std::thread::sleep(Duration::from_millis(random.random_range(0..600)));
            system.heal();
            let healed = Instant::now();
            if whose == Part::Manager && how == Strike::IoError {
                // Only reading the disk shows what it contains; a new manager reads it when it starts.
                scene.parts.kill(Part::Manager);
                scene.parts.spawn(Part::Manager, None);
                scene.parts.until_serving(LIMIT);
            }
            until_leased(&scene.parts, LIMIT);
            row.took("leases again in", Some(WELL), healed.elapsed());
            row.took(
                "longest pause of calls",
                None,
                scene.caller().told().longest_gap_after(began),
            );
            assert_eq!(
                scene.caller().invoker().lease(),
                lease,
                "the lease went on all the time"
            );
            let tally = scene.tally.clone();
            let bill = scene.end_with_bill();
            assert_eq!(ledger::total(&bill).invocations, tally.total(), "every call is billed");
        },
        |(), _| (),
    );
    row.finish();
}

#[test]
fn failing_writes_and_syncs_of_the_ledger_are_taken_for_no_lost_commits() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let mut row = Row::new(
        "writes and syncs of the ledger fail, again after each restart of the manager",
        "each new manager opens the ledger and has all that was acknowledged",
        "disks::failing_writes_and_syncs_of_the_ledger_are_taken_for_no_lost_commits",
        seed,
    );
    for run in 0..times(COUNTS.disks) {
        let mut random = random(seed, run);
        let mut parts = Parts::new();
        let system = System::new(&parts.directory().join("orders"), &parts.state(Part::Manager));
        parts.start_part(Part::Manager, Some(&system));
        parts.start_part(Part::Agent, None);
        parts.until_serving(LIMIT);
        let mut told = ledger::Bill::new();
        for _ in 0..3 {
            // A lease that the manager could not note is free once its agent has waited for its client.
            until_leased(&parts, LIMIT);
            let invoker = parts.invoker().expect("a lease");
            let lease = invoker.lease().to_string();
            told.insert(lease, invoker.deallocate().expect("its usage"));
            let (at, span) = (random.random_range(1..10), random.random_range(1..6));
            let struck = system.struck();
            system.strike(system.operations() + at, span, Strike::IoError, 0);
            let deadline = Instant::now() + LIMIT;
            while system.struck() == struck {
                assert!(Instant::now() < deadline, "no write was struck");
                drop(parts.invoker().map(Invoker::deallocate));
            }
            system.heal();
            parts.kill(Part::Manager);
            parts.start_part(Part::Manager, Some(&system));
            parts.until_serving(LIMIT);
        }
        ledger::until_billed(&parts, &told);
        row.ran();
    }
    row.finish();
}

/// A small file system, gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).expect("a directory");
        match mount(
            Some("tmpfs"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=6m,mode=0700"),
        ) {
            Ok(()) => Some(Self(at.to_owned())),
            Err(error) => {
                eprintln!("skipped: a small file system needs root: {error}");
                None
            }
        }
    }

    /// Fills the disk to its last byte.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = File::create(&path).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0; 1]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn full_disk_of_the_whole_platform_loses_nothing_once_there_is_room() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let mut row = Row::new(
        "a file system that is really full, under ledger and journal",
        "calls go on; grants are refused with the reason; everything goes on by itself once there is room",
        "disks::full_disk_of_the_whole_platform_loses_nothing_once_there_is_room",
        seed,
    );
    for run in 0..times(COUNTS.disks / 5) {
        let parts = Parts::new();
        let Some(disk) = SmallDisk::new(&parts.directory().join("state")) else {
            return;
        };
        let mut parts = parts;
        for part in [Part::Manager, Part::Agent] {
            parts.start_part(part, None);
        }
        parts.until_serving(LIMIT);
        let steady = Steady {
            seed: seed.wrapping_add(run.into()),
            ..Steady::default()
        };
        let scene = Scene::with(parts, &steady);
        let lease = scene.caller().invoker().lease();
        let filler = disk.fill();
        let began = Instant::now();
        // SQLite's write-ahead log reuses the pages that it has: some leases may be granted before it has to grow.
        let why = until_refused(&scene.parts);
        assert!(
            why.contains("full") || why.contains("space"),
            "the refusal does not name the disk: {why}"
        );
        std::thread::sleep(Duration::from_millis(600));
        let daemons = [Part::Manager, Part::Agent].map(|part| scene.parts.process(part));
        assert!(daemons.iter().all(Process::is_alive), "a daemon died of a full disk");
        fs::remove_file(filler).expect("room");
        let healed = Instant::now();
        until_leased(&scene.parts, LIMIT);
        row.took("leases again in", Some(WELL), healed.elapsed());
        row.took(
            "longest pause of calls",
            None,
            scene.caller().told().longest_gap_after(began),
        );
        assert_eq!(
            scene.caller().invoker().lease(),
            lease,
            "the lease went on all the time"
        );
        let tally = scene.tally.clone();
        let (bill, parts) = scene.end_with_parts();
        assert_eq!(ledger::total(&bill).invocations, tally.total(), "every call is billed");
        row.ran();
        drop(parts);
        drop(disk);
    }
    row.finish();
}
