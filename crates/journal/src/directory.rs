//! Directory for durable state: private to its user, on a local disk, and used by one process at a time.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::statfs;
use nix::unistd::getuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the file that the holder keeps locked.
const LOCK: &str = "lock";

/// State directory that this process holds. When the value is dropped, another process can take the directory.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: Flock<File>,
}

/// Error of a directory that cannot hold state.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds the directory.
    #[error("{path} is in use{}; one process at a time keeps its state there", of_pid(.pid))]
    InUse {
        /// Path of the directory.
        path: PathBuf,
        /// Process that holds the directory, if it is known.
        pid: Option<u32>,
    },
    /// The directory is on a file system that other hosts mount too.
    #[error(
        "{path} is on {kind}, a network file system, whose locks and caches lose durable state; \
         name a directory on a disk of this host with --state-dir or HOTLEASE_STATE_DIR"
    )]
    Network {
        /// Path of the directory.
        path: PathBuf,
        /// Kind of file system.
        kind: &'static str,
    },
    /// Other users could change the contents.
    #[error("the state directory {path} is not safe: {why}")]
    Unsafe {
        /// Path of the directory.
        path: PathBuf,
        /// Reason for the refusal.
        why: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Path on which the operation failed.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

fn of_pid(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
}

/// Magic numbers of file systems that several hosts share. statfs reports the same numbers on every architecture; the
/// numbers are from the kernel and the vendors.
const NETWORK: [(i64, &str); 14] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x00c3_6400, "Ceph"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x0116_1970, "GFS2"),
];

/// Kinds of FUSE file systems on other hosts, as the mount table names them.
const FUSE_NETWORK: [(&str, &str); 6] = [
    ("fuse.sshfs", "sshfs"),
    ("fuse.glusterfs", "GlusterFS"),
    ("fuse.ceph", "Ceph"),
    ("fuse.s3fs", "s3fs"),
    ("fuse.rclone", "rclone"),
    ("fuse.juicefs", "JuiceFS"),
];

fn network_name_of_magic(number: i64) -> Option<&'static str> {
    // On architectures whose statfs has a signed 32-bit field, numbers that do not fit are reported sign-extended.
    let number = number & 0xffff_ffff;
    let known = NETWORK.iter().find(|(magic, _)| *magic == number);
    known.map(|(_, name)| *name)
}

/// Network file system that `path` is on, according to the mount table.
fn network_name_of_mount(table: &str, path: &Path) -> Option<&'static str> {
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let kind = after.split(' ').next()?;
        path.starts_with(&point).then_some((point.len(), kind.to_owned()))
    });
    // If several mounts have the longest mount point, the last of them is visible.
    let (_, kind) = mounts.max_by_key(|(length, _)| *length)?;
    let known = FUSE_NETWORK.iter().find(|(name, _)| *name == kind);
    known.map(|(_, name)| *name)
}

/// Returns the network file system that contains an existing path; `None` for a local file system.
pub fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    let number = statfs(path)?.filesystem_type().0;
    if let Some(name) = network_name_of_magic(number) {
        return Ok(Some(name));
    }
    // Without /proc, only the magic numbers are checked.
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(network_name_of_mount(&table, &fs::canonicalize(path)?))
}

/// Makes the directory if it is missing (mode 0700, parents too), and checks that it can hold state.
fn prepare(path: &Path) -> Result<(), DirectoryError> {
    let failed = |what| {
        move |source| DirectoryError::Io {
            what,
            path: path.to_owned(),
            source,
        }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed("make the state directory"))?;
    let metadata = path.symlink_metadata().map_err(failed("look at the state directory"))?;
    let why = if !metadata.is_dir() {
        Some("it is not a directory of its own (a link or a file)")
    } else if metadata.uid() != getuid().as_raw() {
        Some("it belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        Some("others can access it (its mode must be 0700)")
    } else {
        None
    };
    if let Some(why) = why {
        let path = path.to_owned();
        return Err(DirectoryError::Unsafe { path, why });
    }
    match network_file_system(path).map_err(failed("find the file system of"))? {
        Some(kind) => Err(DirectoryError::Network {
            path: path.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

impl StateDir {
    /// Takes a directory; makes it if it is missing. Fails if it is not private to this user, is on a network file
    /// system, or is in use.
    pub fn take(path: &Path) -> Result<Self, DirectoryError> {
        prepare(path)?;
        let file = path.join(LOCK);
        let failed = |what| {
            let path = file.clone();
            move |source| DirectoryError::Io { what, path, source }
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(failed("open"))?;
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // The pid is written for people; only the lock decides whether the directory is in use.
                let noted = lock.set_len(0).and_then(|()| lock.rewind());
                noted
                    .and_then(|()| writeln!(lock, "{}", std::process::id()))
                    .map_err(failed("write"))?;
                Ok(Self {
                    path: path.to_owned(),
                    _lock: lock,
                })
            }
            Err((mut held, Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let read = held.read_to_string(&mut pid);
                Err(DirectoryError::InUse {
                    path: path.to_owned(),
                    pid: read.ok().and_then(|_| pid.trim().parse().ok()),
                })
            }
            Err((_, errno)) => Err(failed("lock")(errno.into())),
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a directory's entries durable: files that were made, renamed or removed in it.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_state_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let held = StateDir::take(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        match StateDir::take(&path) {
            Err(DirectoryError::InUse { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("a second holder was let in: {other:?}"),
        }
        drop(held);
        StateDir::take(&path).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(StateDir::take(&open), Err(DirectoryError::Unsafe { .. })));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(StateDir::take(&link), Err(DirectoryError::Unsafe { .. })));
    }

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        for (magic, name) in NETWORK {
            assert_eq!(network_name_of_magic(magic), Some(name));
            assert_eq!(
                network_name_of_magic(i64::from(magic as i32)),
                Some(name),
                "{name}, sign-extended"
            );
        }
        for (local, name) in [
            (0xef53, "ext4"),
            (0x5846_5342, "xfs"),
            (0x0102_1994, "tmpfs"),
            (0x794c_7630, "overlay"),
        ] {
            assert_eq!(
                network_name_of_magic(local),
                None,
                "{name} was taken for a network file system"
            );
        }
        let table = "22 1 0:20 / / rw - ext4 /dev/a rw\n\
                     30 22 0:31 / /mnt/a\\040b rw - fuse.sshfs host: rw\n\
                     31 22 0:32 / /mnt/a\\040b/local rw - tmpfs tmpfs rw";
        assert_eq!(network_name_of_mount(table, Path::new("/mnt/a b/state")), Some("sshfs"));
        assert_eq!(network_name_of_mount(table, Path::new("/mnt/a b/local/x")), None);
        assert_eq!(network_name_of_mount(table, Path::new("/var")), None);
        assert_eq!(network_file_system(Path::new("/proc")).unwrap(), None);
    }
}
