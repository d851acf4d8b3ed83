//! Lock of a runtime directory: a file that a running `up` holds locked.
//!
//! The kernel releases the lock when its holder dies, for any reason. So if the lock can be taken, all other files in
//! the directory are left over. The lock file itself stays: if it were removed, two processes could each
//! hold the lock of a different file with this name.

use anyhow::Context;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_terminal::exit::CommandError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Lock file of a running `up`.
pub(crate) const UP_LOCK: &str = "up.lock";
/// File with the holder's pid, for users.
const UP_PID: &str = "up.pid";
/// Time to wait for the lock before it counts as held: its holder may be ending, or a `down` that waits for the holder
/// may have the lock.
const HOLDER_GRACE: Duration = Duration::from_millis(300);

/// The right to be the only `up` of a runtime directory.
pub(crate) struct UpLock {
    pid_file: PathBuf,
    _lock: Flock<File>,
}

impl UpLock {
    /// Takes the lock and writes the pid file.
    pub(crate) fn take(dir: &RuntimeDir) -> anyhow::Result<Self> {
        let lock = lock_within(open(dir, UP_LOCK)?, FlockArg::LockExclusive, HOLDER_GRACE)?;
        let Some(lock) = lock else {
            return Err(CommandError::RunsAlready {
                dir: dir.path().display().to_string(),
                pid: LockHolder::of(dir, UP_LOCK).pid(),
            }
            .into());
        };
        let pid_file = dir.join(UP_PID);
        fs::write(&pid_file, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write {}", pid_file.display()))?;
        Ok(Self { pid_file, _lock: lock })
    }
}

impl Drop for UpLock {
    fn drop(&mut self) {
        // Only the lock counts: a pid file that stays behind is ignored while the lock is free.
        let _ = fs::remove_file(&self.pid_file);
    }
}

/// The process that holds one of the lock files of a runtime directory.
pub(crate) struct LockHolder<'a> {
    dir: &'a RuntimeDir,
    lock: &'static str,
}

impl<'a> LockHolder<'a> {
    pub(crate) fn of(dir: &'a RuntimeDir, lock: &'static str) -> Self {
        Self { dir, lock }
    }

    /// Pid of the holder, if it wrote its pid. Valid only while the lock is held.
    pub(crate) fn pid(&self) -> Option<u32> {
        let text = fs::read_to_string(self.dir.join(UP_PID)).ok()?;
        text.trim().parse().ok()
    }

    /// Waits until the lock is free; returns false if it is still held after `limit`.
    pub(crate) fn wait_until_gone(&self, limit: Duration) -> anyhow::Result<bool> {
        Ok(lock_within(open(self.dir, self.lock)?, FlockArg::LockShared, limit)?.is_some())
    }
}

fn open(dir: &RuntimeDir, name: &str) -> anyhow::Result<File> {
    let path = dir.join(name);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}

/// Waits for the lock in the kernel, on a thread that is left behind after `limit`: the thread holds nothing, and the
/// process ends soon after.
fn lock_within(file: File, how: FlockArg, limit: Duration) -> anyhow::Result<Option<Flock<File>>> {
    let at_once = match how {
        FlockArg::LockShared => FlockArg::LockSharedNonblock,
        _ => FlockArg::LockExclusiveNonblock,
    };
    let file = match Flock::lock(file, at_once) {
        Ok(lock) => return Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) if limit.is_zero() => return Ok(None),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, errno)) => return Err(errno).context("cannot lock"),
    };
    let (taken, waiting) = mpsc::channel();
    thread::spawn(move || {
        // After the limit the receiver is gone, and the lock is dropped here.
        let _ = taken.send(Flock::lock(file, how).map_err(|(_, errno)| errno));
    });
    match waiting.recv_timeout(limit) {
        Ok(lock) => Ok(Some(lock.context("cannot lock")?)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_up_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(&parent.path().join("run")).unwrap();
        let first = UpLock::take(&dir).unwrap();
        let Err(error) = UpLock::take(&dir) else {
            panic!("two hold the lock");
        };
        assert!(
            error.to_string().contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        let holder = LockHolder::of(&dir, UP_LOCK);
        assert!(!holder.wait_until_gone(Duration::from_millis(20)).unwrap());
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| holder.wait_until_gone(Duration::from_secs(10)).unwrap());
            drop(first);
            waiting.join().unwrap()
        });
        assert!(waiting, "the lock was released");
        UpLock::take(&dir).unwrap();
    }
}
