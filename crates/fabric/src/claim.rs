//! Claims of a shared core: of all slots that share it, at most one runs a function at a time.
//!
//! A claim is a record lock (`fcntl(2)`, `F_SETLK`) on an empty, sealed memfd. The agent makes such a file for each
//! shared core and passes it to the workers that have slots there. Claiming is one atomic operation of the kernel,
//! which succeeds or fails at once. Releasing is another; together they take 1.3 us here. A word in shared memory would
//! cost 20 ns, but the workers run code of tenants who do not trust each other:
//!
//! | | word in memory | eventfd, counting | `flock`, `F_OFD_SETLK` | `F_SETLK` |
//! |---|---|---|---|---|
//! | claim and release, ns | 20 to 100 | 580 | 850, 1,300 | 1,350 |
//! | a worker's death releases it | no | no | not while a forked child lives | yes, by the kernel |
//! | other processes can release or forge it | yes | yes | no | no |
//! | the agent can see its holder | what the word says | no | no | yes: process id, by the kernel |
//!
//! So a hostile function can only keep a claim for too long, and the agent sees the holder and kills it (`turns` of
//! `hotlease_agent`). The function can change neither the file, which is sealed, nor the claim of another process. A
//! claim by `F_OFD_SETLK` would name no process as its holder, so sandboxes forbid that command.
//!
//! A worker that is moved to another core changes the file between two claims ([`CoreClaim::move_to`]). It may have kept
//! a copy of the old descriptor; the agent kills a worker that holds the claim of a core which the worker has left.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::{self, flock};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

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

/// A worker's end: claims the core for one of its slots at a time. All slots of a worker share one `CoreClaim`.
///
/// The kernel distinguishes the claims of processes, not of threads. So the process has a word (`turn`), and only the
/// slot that has changed this word from `FREE` to `TAKEN` asks the kernel for the claim.
///
/// ```text
///          try_claim                 release
///   FREE ────────────► TAKEN ───────────────────────► FREE     the slot may use the file
///   FREE ────────────► MOVING ──────────────────────► FREE     the mover may replace the file
///          move_to          move_to, or its failure
/// ```
///
/// Both transitions from FREE are a compare-exchange, so only one thread at a time uses the file. The file is replaced
/// only while no slot has the claim, and no slot asks the kernel for the claim of a core that its process is leaving.
#[derive(Debug)]
pub struct CoreClaim {
    file: OwnedFd,
    turn: AtomicU32,
}

/// No slot of this process has the claim.
const FREE: u32 = 0;
/// A slot has the claim, or asks the kernel for it.
const TAKEN: u32 = 1;
/// The process is being moved to another core, which takes tens of microseconds.
const MOVING: u32 = 2;

/// Error: the claim was not moved, and nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimMoveError {
    /// A slot has the claim.
    #[error("it runs a function")]
    Taken,
    /// The threads could not be moved.
    #[error("{0}")]
    Threads(String),
    /// The new file cannot be claimed.
    #[error("the new core cannot be claimed: {0}")]
    File(io::Error),
}

impl CoreClaim {
    /// Attaches the file that the agent passed. Fails if the file cannot be locked. (The process must have no other
    /// descriptor of the file: closing any of them would release the claim.)
    pub fn attach(file: OwnedFd) -> io::Result<Self> {
        let claim = Self {
            file,
            turn: AtomicU32::new(FREE),
        };
        set(&claim.file, libc::F_UNLCK)?;
        Ok(claim)
    }

    /// Claims the core, or fails at once. While the process is being moved, waits for the end of the move instead: the
    /// new core is idle, and a failure would report it as taken.
    pub fn try_claim(&self) -> bool {
        // Acquire: sees what the previous slot of this process wrote while it had the claim, and the file that a move
        // has set.
        while let Err(turn) = self
            .turn
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
        {
            if turn != MOVING {
                return false;
            }
            std::thread::yield_now();
        }
        // Any error means that there is no claim, for example if a function has closed the file.
        let claimed = set(&self.file, libc::F_WRLCK).is_ok();
        if !claimed {
            self.turn.store(FREE, Ordering::Release);
        }
        claimed
    }

    /// Releases the claim. Must be called only by the slot that has it.
    pub fn release(&self) {
        // Cannot fail on a locked file; if a function has closed the file, the kernel has released the claim.
        let _ = set(&self.file, libc::F_UNLCK);
        self.turn.store(FREE, Ordering::Release);
    }

    /// Replaces the file by the file of another core, while no slot has the claim. Before that, `threads` moves the
    /// process's threads to the new core, or moves none and fails; `back` undoes what `threads` did.
    ///
    /// # Errors
    /// Nothing has changed: a slot has the claim, or the move failed.
    pub fn move_to(
        &self,
        file: OwnedFd,
        threads: impl FnOnce() -> Result<(), String>,
        back: impl FnOnce(),
    ) -> Result<(), ClaimMoveError> {
        // Acquire: as in `try_claim`.
        self.turn
            .compare_exchange(FREE, MOVING, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| ClaimMoveError::Taken)?;
        let moved = threads().map_err(ClaimMoveError::Threads).and_then(|()| {
            let replaced = self.replace_file(&file);
            if replaced.is_err() {
                back();
            }
            replaced.map_err(ClaimMoveError::File)
        });
        // Closing any descriptor of a file gives up the process's claim of it, so `file` is closed before a slot can
        // claim again.
        drop(file);
        // Release: the slot that claims next finds the new file.
        self.turn.store(FREE, Ordering::Release);
        moved
    }

    /// Replaces the old file by `file`, under the same descriptor number. Must be called only while the turn is MOVING.
    fn replace_file(&self, file: &OwnedFd) -> io::Result<()> {
        set(file, libc::F_UNLCK)?;
        // SAFETY: both descriptors are open. The number stays ours: in one step, the kernel closes the old file and
        // gives its number to the new file. No other thread uses the number meanwhile.
        let replaced = unsafe { libc::dup3(file.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        Errno::result(replaced)?;
        Ok(())
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
    use nix::fcntl::OFlag;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::stat::Mode;
    use nix::sys::wait::waitpid;
    use nix::unistd::{ForkResult, Pid, fork};
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    fn claim(file: &ClaimFile) -> CoreClaim {
        CoreClaim::attach(file.fd().try_clone_to_owned().expect("a descriptor")).expect("it can be locked")
    }

    /// Starts another process, which holds the claim until it is killed.
    fn another_holder(file: &ClaimFile) -> Pid {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes only async-signal-safe calls: fcntl, write, pause.
        match unsafe { fork() }.expect("another process") {
            ForkResult::Child => {
                let claimed = fcntl(&file.0, FcntlArg::F_SETLK(&lock(libc::F_WRLCK))).is_ok();
                let _ = nix::unistd::write(&writer, &[u8::from(claimed)]);
                loop {
                    nix::unistd::pause();
                }
            }
            ForkResult::Parent { child } => {
                let mut claimed = [0];
                reader.read_exact(&mut claimed).expect("the child writes");
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
    fn a_move_waits_for_no_slot_and_takes_the_claim_to_the_new_file() {
        let (old, new) = (
            ClaimFile::create().expect("a memfd"),
            ClaimFile::create().expect("a memfd"),
        );
        let claim = claim(&old);
        let file = || new.fd().try_clone_to_owned().expect("a descriptor");
        let own = Some(std::process::id());
        assert!(claim.try_claim());
        let taken = claim.move_to(file(), || panic!("a slot has the claim"), || ());
        assert!(matches!(taken, Err(ClaimMoveError::Taken)), "{taken:?}");
        claim.release();
        let failed = claim.move_to(file(), || Err("no".into()), || panic!("there is nothing to undo"));
        assert!(matches!(failed, Err(ClaimMoveError::Threads(_))), "{failed:?}");
        let unfit = nix::fcntl::open("/", OFlag::O_PATH, Mode::empty()).expect("a descriptor without locks");
        let mut undone = false;
        let failed = claim.move_to(unfit, || Ok(()), || undone = true);
        assert!(matches!(failed, Err(ClaimMoveError::File(_))) && undone, "{failed:?}");
        // After each failure the worker still claims the old core. Another process asks for the holder, because the
        // kernel reports to a process only the claims of other processes.
        assert!(claim.try_claim());
        assert_eq!((seen_by_another(&old), seen_by_another(&new)), (own, None));
        claim.release();
        claim.move_to(file(), || Ok(()), || ()).expect("it is moved");
        assert!(claim.try_claim());
        assert_eq!((seen_by_another(&old), seen_by_another(&new)), (None, own));
        claim.release();
        assert_eq!((seen_by_another(&old), seen_by_another(&new)), (None, None));
    }

    #[test]
    fn slots_that_call_during_moves_are_never_two_at_a_time_and_never_on_the_wrong_file() {
        const LEAST: u32 = 500;
        let files = [0, 1].map(|_| ClaimFile::create().expect("a memfd"));
        let claim = Arc::new(claim(&files[0]));
        let [inside, claims, over] = [0; 3].map(|_| Arc::new(AtomicU32::new(0)));
        let slots: Vec<_> = (0..3)
            .map(|_| {
                let claim = claim.clone();
                let [inside, claims, over] = [&inside, &claims, &over].map(Arc::clone);
                std::thread::spawn(move || {
                    while over.load(Ordering::Relaxed) == 0 {
                        for _ in 0..10 {
                            if claim.try_claim() {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                                inside.fetch_sub(1, Ordering::SeqCst);
                                claim.release();
                                claims.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        // Without this pause, slots claim nearly all the time, and only a few of a thousand attempts to
                        // move succeed.
                        std::thread::sleep(Duration::from_micros(50));
                    }
                })
            })
            .collect();
        let mut moves = 0;
        while moves < LEAST || claims.load(Ordering::Relaxed) < LEAST {
            let file = files[(moves as usize + 1) % 2].fd();
            let threads = || {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "a slot runs during a move");
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            };
            match claim.move_to(file.try_clone_to_owned().expect("a descriptor"), threads, || ()) {
                Ok(()) => moves += 1,
                Err(ClaimMoveError::Taken) => {}
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
        over.store(1, Ordering::Relaxed);
        slots.into_iter().for_each(|thread| thread.join().expect("no two"));
        assert_eq!(files.each_ref().map(seen_by_another), [None, None], "no claim is left");
    }

    /// Holder of a claim, as another process sees it.
    fn seen_by_another(file: &ClaimFile) -> Option<u32> {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes only async-signal-safe calls: fcntl, write, _exit.
        match unsafe { fork() }.expect("another process") {
            ForkResult::Child => {
                let holder = file.holder().unwrap_or(0);
                let _ = nix::unistd::write(&writer, &holder.to_ne_bytes());
                // SAFETY: ends the process without the destructors of the test.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                let mut holder = [0; 4];
                reader.read_exact(&mut holder).expect("the child writes");
                waitpid(child, None).expect("it ends");
                Some(u32::from_ne_bytes(holder)).filter(|pid| *pid != 0)
            }
        }
    }

    #[test]
    fn tenants_cannot_pass_bytes_through_the_claims() {
        let file = ClaimFile::create().expect("a memfd");
        let mut written = std::fs::File::from(file.fd().try_clone_to_owned().expect("a descriptor"));
        assert!(written.write_all(b"secret").is_err());
        assert!(written.set_len(1).is_err());
    }
}
