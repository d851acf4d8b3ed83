//! Claims of a shared core: of all slots that share it, at most one runs a function at a time.
//!
//! A claim is a record lock (`fcntl(2)`, `F_SETLK`) on an empty, sealed memfd. The agent makes one for each shared core
//! and hands it to the workers that have slots there. Claiming is one atomic operation of the kernel, which succeeds or
//! fails at once; releasing is another one: together 1.3 us here. A word in shared memory would cost 20 ns, but the
//! workers run code of tenants who do not trust each other:
//!
//! | | word in memory | eventfd, counting | `flock`, `F_OFD_SETLK` | `F_SETLK` |
//! |---|---|---|---|---|
//! | claim and release, ns | 20 to 100 | 580 | 850, 1,300 | 1,350 |
//! | a worker's death releases it | no | no | not while a forked child lives | yes, by the kernel |
//! | other processes can release or forge it | yes | yes | no | no |
//! | the agent can see its holder | what the word says | no | no | yes: process id, by the kernel |
//!
//! So a hostile function can only keep a claim, and the agent sees and ends that (`turns` of `hotlease_lease`). The
//! function can write neither to the file (sealed), nor to a claim of another process. `F_OFD_SETLK` would take the core
//! for a holder that nobody can see: sandboxes do not have it.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::{self, flock};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The agent's end: makes the file, and sees the holder of the core.
#[derive(Debug)]
pub struct ClaimFile(OwnedFd);

impl ClaimFile {
    /// Creates the file of an unclaimed core.
    pub fn create() -> io::Result<Self> {
        let fd = memfd_create(c"hotlease-claim", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        // The file never holds bytes, so that tenants cannot communicate through it.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(fd))
    }

    /// Descriptor to pass to a worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Process that holds the claim now, as the kernel reports it.
    pub fn holder(&self) -> Option<u32> {
        let mut asked = lock(libc::F_WRLCK);
        fcntl(&self.0, FcntlArg::F_GETLK(&mut asked)).ok()?;
        if i32::from(asked.l_type) == libc::F_UNLCK {
            return None;
        }
        u32::try_from(asked.l_pid).ok().filter(|pid| *pid > 0)
    }
}

/// A worker's end: claims the core for one of its slots at a time. All slots of a worker use the same one.
///
/// The kernel tells claims of processes apart, not those of threads. So a flag of the process (`ours`) keeps its slots
/// apart; the slot that has set the flag asks the kernel.
#[derive(Debug)]
pub struct CoreClaim {
    file: OwnedFd,
    ours: AtomicBool,
}

impl CoreClaim {
    /// Attaches the file that the agent passed. Fails if the file cannot be locked. (Closing any other descriptor of
    /// the same file in this process would release the claim: there is only this one.)
    pub fn attach(file: OwnedFd) -> io::Result<Self> {
        let claim = Self {
            file,
            ours: AtomicBool::new(false),
        };
        set(&claim.file, libc::F_UNLCK)?;
        Ok(claim)
    }

    /// Claims the core, or fails at once.
    pub fn try_claim(&self) -> bool {
        // Acquire: sees what the last slot of this process wrote in its turn.
        if self.ours.swap(true, Ordering::Acquire) {
            return false;
        }
        // Anything but success, like a file that a function has closed, is no claim.
        let claimed = set(&self.file, libc::F_WRLCK).is_ok();
        if !claimed {
            self.ours.store(false, Ordering::Release);
        }
        claimed
    }

    /// Releases the claim. To be called only by the slot that has it.
    pub fn release(&self) {
        // Cannot fail on a locked file; if a function has closed the file, the kernel has released the claim.
        let _ = set(&self.file, libc::F_UNLCK);
        self.ours.store(false, Ordering::Release);
    }
}

fn lock(kind: libc::c_int) -> flock {
    flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &OwnedFd, kind: libc::c_int) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_SETLK(&lock(kind))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, Pid, fork};
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    fn claim(file: &ClaimFile) -> CoreClaim {
        CoreClaim::attach(file.fd().try_clone_to_owned().expect("a descriptor")).expect("it can be locked")
    }

    /// Starts another process, which holds the claim until it is killed.
    fn another_holder(file: &ClaimFile) -> Pid {
        let (mut told, tells) = std::io::pipe().expect("a pipe");
        // SAFETY: the child does nothing that is not async-signal-safe: fcntl, write, pause.
        match unsafe { fork() }.expect("another process") {
            ForkResult::Child => {
                let claimed = fcntl(&file.0, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))).is_ok();
                let _ = nix::unistd::write(&tells, &[u8::from(claimed)]);
                loop {
                    nix::unistd::pause();
                }
            }
            ForkResult::Parent { child } => {
                let mut claimed = [0];
                told.read_exact(&mut claimed).expect("it says");
                assert_eq!(claimed, [1], "it cannot claim the core");
                child
            }
        }
    }

    #[test]
    fn a_claimed_core_is_refused_to_others_and_the_kernel_says_who_has_it() {
        let file = ClaimFile::create().expect("a memfd");
        let claim = claim(&file);
        assert_eq!(file.holder(), None);
        let child = another_holder(&file);
        assert_eq!(file.holder(), Some(child.as_raw() as u32));
        assert!(!claim.try_claim(), "another process has it");
        kill(child, Signal::SIGKILL).expect("it lives");
        waitpid(child, None).expect("it dies");
        assert_eq!(
            file.holder(),
            None,
            "the claim of a process that was killed is free at once"
        );
        assert!(claim.try_claim());
        assert!(!claim.try_claim(), "another slot of this process has it");
        claim.release();
        assert!(claim.try_claim());
    }

    #[test]
    fn slots_of_one_worker_never_have_it_at_the_same_time() {
        let file = ClaimFile::create().expect("a memfd");
        let (claim, inside) = (Arc::new(claim(&file)), Arc::new(AtomicU32::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (claim, inside) = (claim.clone(), inside.clone());
                std::thread::spawn(move || {
                    let mut claimed = 0;
                    for _ in 0..20_000 {
                        if claim.try_claim() {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                            inside.fetch_sub(1, Ordering::SeqCst);
                            claim.release();
                            claimed += 1;
                        }
                    }
                    claimed
                })
            })
            .collect();
        let claimed: u32 = threads.into_iter().map(|thread| thread.join().expect("no two")).sum();
        assert!(claimed > 0);
    }

    #[test]
    fn tenants_cannot_leave_each_other_bytes_in_it() {
        let file = ClaimFile::create().expect("a memfd");
        let mut written = std::fs::File::from(file.fd().try_clone_to_owned().expect("a descriptor"));
        assert!(written.write_all(b"secret").is_err());
        assert!(written.set_len(1).is_err());
    }
}
