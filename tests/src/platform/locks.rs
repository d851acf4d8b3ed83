//! Locks on resources that tests share: the machine's cores, and the time of its disks and processors.
//!
//! A lock is a file beside the built programs, so that it also works between test programs and between processes of one
//! test program (cargo-nextest runs each test in a separate process). The kernel releases it when the process ends.

use super::target_directory;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;

/// A lock that is held until it is dropped.
pub struct Lock(#[expect(dead_code, reason = "unlocks when dropped")] Flock<File>);

/// Right to run a platform on the machine's cores, together with other tests. Waits for tests that have the machine alone.
///
/// # Panics
/// If the lock's file cannot be opened (the functions below panic then, too).
pub fn share_machine() -> Lock {
    lock("machine", FlockArg::LockShared)
}

/// Right to run platforms while no other test does. A test that holds [`share_machine`] must not call this.
pub fn have_machine_alone() -> Lock {
    lock("machine", FlockArg::LockExclusive)
}

/// Right to cause faults: one test at a time, because faults would disturb the measurements of other tests.
pub fn cause_faults_alone() -> Lock {
    lock("faults", FlockArg::LockExclusive)
}

fn lock(name: &str, kind: FlockArg) -> Lock {
    let path = target_directory().join(format!("tests-{name}.lock"));
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .expect("the lock's file");
    Lock(Flock::lock(file, kind).map_err(|(_, error)| error).expect("the lock"))
}
