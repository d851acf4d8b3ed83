//! Claims of a shared core: of all slots that share it, at most one runs a function at a time.
//!
//! A claim is a record lock (`fcntl(2)`, `F_SETLK`) on an empty, sealed memfd that the agent makes for each shared core
//! and hands to the workers that have slots there. To claim is one atomic operation of the kernel, which succeeds or fails
//! at once; to give up another: together 1.3 us here. It is this and not a word in shared memory, which costs 20 ns, because
//! the workers run code of tenants who do not trust each other:
//!
//! | | word in memory | eventfd, counting | `flock`, `F_OFD_SETLK` | `F_SETLK` |
//! |---|---|---|---|---|
//! | claim and give up, ns | 20 to 100 | 580 | 850, 1,300 | 1,350 |
//! | a worker's death gives it up | no | no | not while a forked child lives | yes, by the kernel |
//! | can be given up or forged by others | yes | yes | no | no |
//! | the agent can see who has it | what it says | no | no | yes: process id, by the kernel |
//!
//! So what a hostile function can do with it is to keep it, and that is seen and ended by the agent (`hotlease_lease`'s
//! turns). It cannot write to the file (sealed), nor to a claim of another process.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::{self, flock};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The agent's end: makes the file, and sees who has the core.
#[derive(Debug)]
pub struct ClaimFile(OwnedFd);

impl ClaimFile {
    /// Of a core that nobody has claimed.
    pub fn create() -> io::Result<Self> {
        let fd = memfd_create(
            c"hotlease-claim",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        // No bytes ever, so that tenants cannot talk to each other through it.
        let seals =
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(fd))
    }

    /// To pass to a worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The process that has claimed the core now, by the kernel's word.
    pub fn holder(&self) -> Option<u32> {
        let mut asked = lock(libc::F_WRLCK);
        fcntl(&self.0, FcntlArg::F_GETLK(&mut asked)).ok()?;
        if i32::from(asked.l_type) == libc::F_UNLCK {
            return None;
        }
        u32::try_from(asked.l_pid).ok().filter(|pid| *pid > 0)
    }
}

/// A worker's end: claims the core for one of its slots at a time. All slots of a worker use one.
///
/// The kernel knows claims of processes only, so that a word of the process's own keeps its slots apart. Whoever has
/// the word asks the kernel.
#[derive(Debug)]
pub struct CoreClaim {
    file: OwnedFd,
    ours: AtomicBool,
}

impl CoreClaim {
    /// Of what the agent passed. Refused if it is no file that can be locked. (Closing any other descriptor of the same
    /// file in this process would give the claim up: there is only this one.)
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
        // Acquire: what the last slot of this process did in its turn is done.
        if self.ours.swap(true, Ordering::Acquire) {
            return false;
        }
        // Anything else than success, like a file that a function has closed, is no claim.
        let claimed = set(&self.file, libc::F_WRLCK).is_ok();
        if !claimed {
            self.ours.store(false, Ordering::Release);
        }
        claimed
    }

    /// Gives it up. Only by whoever has claimed it.
    pub fn give_up(&self) {
        // Cannot fail on a file that was locked; if a function has closed it, the kernel has done it.
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

    /// Another process that holds the claim until it is killed.
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
        claim.give_up();
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
                            claim.give_up();
                            claimed += 1;
                        }
                    }
                    claimed
                })
            })
            .collect();
        let claimed: u32 = threads
            .into_iter()
            .map(|thread| thread.join().expect("no two"))
            .sum();
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
