//! Place of a worker on a shared core: the core, its claim, and the move to another core.

use hotlease_fabric::claim::CoreClaim;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Largest number of listings of the threads during one move. One listing is not enough, because threads that functions
/// start meanwhile inherit the old core.
const LISTINGS_MAX: usize = 8;

/// Place of a worker on a shared core.
pub struct SharedPlace {
    claim: Arc<CoreClaim>,
    core: u32,
}

impl SharedPlace {
    /// The place on this core, whose slots all use `claim`.
    pub fn new(claim: Arc<CoreClaim>, core: u32) -> Self {
        Self { claim, core }
    }

    /// Moves to another core, between two invocations. `file`: the core's file of claims.
    ///
    /// Moves the slots, and the threads that functions have started on them: all threads that are pinned to the old
    /// core alone. If a control group keeps the worker on its core, the kernel moves the threads when the agent changes
    /// the group.
    pub fn move_to(&mut self, core: u32, file: OwnedFd) -> Result<(), String> {
        let (here, there) = (only(self.core)?, only(core)?);
        let threads = || pin_threads(&here, &there);
        let back = || {
            // Fails only if the threads cannot be listed any more.
            let _ = pin_threads(&there, &here);
        };
        let moved = self.claim.move_to(file, threads, back);
        moved.map_err(|error| format!("it stays on core {}: {error}", self.core))?;
        self.core = core;
        Ok(())
    }
}

/// The set of this core alone.
pub fn only(core: u32) -> Result<CpuSet, String> {
    let mut set = CpuSet::new();
    set.set(core as usize)
        .map_err(|_| format!("core {core} does not exist"))?;
    Ok(set)
}

/// Pins the threads of this process that may run on `here` alone to `there`. If one of them cannot be pinned, fails,
/// and pins all of them to `here` again.
fn pin_threads(here: &CpuSet, there: &CpuSet) -> Result<(), String> {
    let mut pinned = Vec::new();
    for _ in 0..LISTINGS_MAX {
        let left = threads_on(here)?;
        if left.is_empty() {
            break;
        }
        for thread in left {
            match sched_setaffinity(thread, there) {
                Ok(()) => pinned.push(thread),
                // The thread has ended.
                Err(Errno::ESRCH) => {}
                Err(error) => {
                    for thread in pinned {
                        // The thread was on these cores a moment ago, so it can go back.
                        let _ = sched_setaffinity(thread, here);
                    }
                    return Err(format!("a thread cannot be moved: {error}"));
                }
            }
        }
    }
    Ok(())
}

/// Threads of this process that may run on these cores and no other.
fn threads_on(cores: &CpuSet) -> Result<Vec<Pid>, String> {
    let listing = fs::read_dir("/proc/self/task").map_err(|error| format!("its threads cannot be listed: {error}"))?;
    let threads = listing
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let threads = threads.map(Pid::from_raw);
    Ok(threads
        .filter(|thread| sched_getaffinity(*thread).is_ok_and(|on| on == *cores))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::claim::ClaimFile;
    use std::sync::mpsc;

    /// Cores that this process may use.
    fn usable() -> Vec<u32> {
        let set = sched_getaffinity(Pid::from_raw(0)).expect("its own cores");
        let cores = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
        cores.map(|core| core as u32).collect()
    }

    /// Starts a thread that is pinned to `core`. The thread returns its cores once it is told to.
    fn pinned(core: Option<u32>) -> (mpsc::Sender<()>, std::thread::JoinHandle<CpuSet>) {
        let (tell, told) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if let Some(core) = core {
                sched_setaffinity(Pid::from_raw(0), &only(core).expect("it exists")).expect("pinned");
            }
            ready.send(()).expect("the test waits");
            let _ = told.recv();
            sched_getaffinity(Pid::from_raw(0)).expect("its own cores")
        });
        is_ready.recv().expect("it is ready");
        (tell, thread)
    }

    fn claim() -> (ClaimFile, Arc<CoreClaim>) {
        let file = ClaimFile::create().expect("a memfd");
        let claim = CoreClaim::attach(file.fd().try_clone_to_owned().expect("a descriptor"));
        (file, Arc::new(claim.expect("it can be locked")))
    }

    /// A single test, because a move affects all threads of the process that are pinned to the core.
    #[test]
    fn pinned_threads_move_between_two_invocations_and_others_stay() {
        let usable = usable();
        let [here, there, ..] = usable[..] else {
            eprintln!("skipped: this host has one core");
            return;
        };
        let all = sched_getaffinity(Pid::from_raw(0)).expect("its own cores");
        let (_old, claim) = claim();
        let mut place = SharedPlace::new(Arc::clone(&claim), here);
        let slots = [0, 1].map(|_| pinned(Some(here)));
        let free = pinned(None);
        let new = ClaimFile::create().expect("a memfd");
        let file = || new.fd().try_clone_to_owned().expect("a descriptor");

        assert!(claim.try_claim());
        let refused = place.move_to(there, file()).expect_err("a function runs");
        assert!(refused.contains(&format!("core {here}")), "{refused}");
        claim.release();
        for missing in [CpuSet::count() as u32 - 1, CpuSet::count() as u32] {
            place.move_to(missing, file()).expect_err("no such core");
        }
        let left = threads_on(&only(here).expect("it exists")).expect("a listing");
        assert_eq!(left.len(), 2, "a move that fails changes nothing");
        place.move_to(there, file()).expect("it moves");
        let cores = slots.map(|(tell, thread)| {
            drop(tell);
            thread.join().expect("it ends")
        });
        assert_eq!(cores, [only(there).expect("it exists"); 2]);
        drop(free.0);
        assert_eq!(free.1.join().expect("it ends"), all, "it was not pinned");
        assert!(claim.try_claim());
    }
}
