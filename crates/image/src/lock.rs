//! Locks between the processes of a node. The kernel releases them when a process ends in any way.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

/// A lock that is held until it is dropped.
pub(crate) struct Lock(Flock<File>);

impl Lock {
    /// Takes the lock exclusively; waits until it has no other holder.
    pub(crate) fn exclusive(path: &Path) -> io::Result<Self> {
        Self::take(path, FlockArg::LockExclusive).map(|lock| lock.expect("it was waited for"))
    }

    /// Takes the lock exclusively. Returns `None` if it has another holder.
    pub(crate) fn try_exclusive(path: &Path) -> io::Result<Option<Self>> {
        Self::take(path, FlockArg::LockExclusiveNonblock)
    }

    /// Takes the lock together with other holders that share it.
    pub(crate) fn shared(path: &Path) -> io::Result<Self> {
        Self::take(path, FlockArg::LockShared).map(|lock| lock.expect("it was waited for"))
    }

    fn take(path: &Path, how: FlockArg) -> io::Result<Option<Self>> {
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let lock = match Flock::lock(options.open(path)?, how) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, Errno::EINTR)) => continue,
                Err((_, errno)) => return Err(errno.into()),
            };
            // The previous holder may have removed the file. Then this lock is on a removed file, and other processes
            // would make and lock a new file.
            match fs::metadata(path) {
                Ok(now) if now.ino() == lock.metadata()?.ino() => return Ok(Some(Self(lock))),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes processes that are started from now on hold the lock, too, even after this process is killed.
    pub(crate) fn inherit(&self) -> io::Result<()> {
        fcntl(&*self.0, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    }

    /// Sets the time of the lock's file, which is the time of its last use, to the current time.
    pub(crate) fn note(&self) -> io::Result<()> {
        self.0.set_modified(SystemTime::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_file_was_removed_locks_no_process_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let old = Lock::exclusive(&path).unwrap();
        assert!(Lock::try_exclusive(&path).unwrap().is_none());
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Lock::exclusive(&path).unwrap()
        });
        fs::remove_file(&path).unwrap();
        drop(old);
        let new = waiting.join().unwrap();
        assert!(Lock::try_exclusive(&path).unwrap().is_none(), "two have it");
        drop(new);
        let one = Lock::shared(&path).unwrap();
        let _two = Lock::shared(&path).unwrap();
        drop(one);
        assert!(Lock::try_exclusive(&path).unwrap().is_none());
    }
}
