//! Residue of attempts. It is found and removed from outside, by the token in all names.

use crate::syscall::kernel;
use std::ffi::CString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Part of the names of everything that attempts make.
pub(crate) const ATTEMPT: &str = "attempt";
/// Part of the names of everything that neighbours make.
pub(crate) const NEIGHBOUR: &str = "neighbour";

/// Folders in which attempts leave files: first folders for temporary files, then folders of the system.
pub(crate) const FOLDERS: &[&str] = &[
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run/lock",
    "/etc",
    "/usr/lib",
    "/usr/bin",
    "/usr/local/lib",
    "/opt",
    "/var/lib",
    "/var/spool",
    "/run",
    "/srv",
];

/// Name of an object that is not in the file system.
pub(crate) fn name(token: &str, whose: &str) -> String {
    format!("hotlease-escape-{token}.{whose}")
}

/// Keys of System V objects: the neighbour's segment and queue, and the segment that an attempt leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SysvKey {
    Segment = 1,
    Queue = 2,
    AttemptSegment = 3,
}

pub(crate) fn sysv_key(token: &str, which: SysvKey) -> i32 {
    let mixed = token.bytes().fold(0x811c_9dc5u32, |mixed, byte| {
        (mixed ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The key is positive, and its last hexadecimal digit is free for `which`. The key is never 0, which would mean a
    // private object.
    (mixed as i32 & 0x7fff_fff0) | which as i32
}

/// Names of objects that an attempt may leave behind, as environment variables. The variables' names are without their
/// prefix.
pub fn names_for(token: &str) -> Vec<(String, String)> {
    [
        ("TOKEN", token.to_owned()),
        ("LEFT_SYSV", sysv_key(token, SysvKey::AttemptSegment).to_string()),
        ("LEFT_KEY", name(token, ATTEMPT)),
        ("LEFT_MQUEUE", name(token, ATTEMPT)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// One object that an attempt or a neighbour left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Residue {
    /// A file or folder.
    File(PathBuf),
    /// A System V segment, by its id.
    Segment(i32),
    /// A System V queue, by its id.
    Queue(i32),
    /// A POSIX queue.
    PosixQueue(String),
    /// A key in a keyring.
    Key(String),
}

impl fmt::Display for Residue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Segment(id) => write!(f, "the System V segment {id}"),
            Self::Queue(id) => write!(f, "the System V queue {id}"),
            Self::PosixQueue(name) => write!(f, "the POSIX queue {name}"),
            Self::Key(name) => write!(f, "the key {name}"),
        }
    }
}

impl Residue {
    /// Residue of the attempt with this token.
    pub fn of_attempt(token: &str) -> Vec<Self> {
        Self::find(token, ATTEMPT)
    }

    /// Objects of the neighbour with this token, even if it was killed.
    pub fn of_neighbour(token: &str) -> Vec<Self> {
        Self::find(token, NEIGHBOUR)
    }

    fn find(token: &str, whose: &str) -> Vec<Self> {
        let begin = name(token, whose);
        let mut found = files(&begin);
        let segments = match whose {
            NEIGHBOUR => SysvKey::Segment,
            _ => SysvKey::AttemptSegment,
        };
        if let Ok(id) = kernel!(SYS_shmget, sysv_key(token, segments), 0, 0) {
            found.push(Self::Segment(id as i32));
        }
        if whose == NEIGHBOUR
            && let Ok(id) = kernel!(SYS_msgget, sysv_key(token, SysvKey::Queue), 0)
        {
            found.push(Self::Queue(id as i32));
        }
        let c_name = CString::new(begin.as_str()).expect("a token has no null byte");
        if let Ok(fd) = kernel!(SYS_mq_open, c_name.as_ptr(), libc::O_RDONLY, 0, 0) {
            // This descriptor was opened above, and no other code uses it.
            let _ = kernel!(SYS_close, fd);
            found.push(Self::PosixQueue(begin.clone()));
        }
        let keys = ["", "-user", "-session"].map(|whose| format!("{begin}{whose}"));
        found.extend(keys.into_iter().filter(|name| key(name).is_some()).map(Self::Key));
        found
    }

    /// Removes the object. Does nothing if the object is gone already, or if this process has no right to remove it.
    pub fn remove(&self) {
        match self {
            Self::File(path) if path.is_dir() && !path.is_symlink() => {
                // The folder may be a mount point of an attempt that was killed before the unmount.
                let mounted = CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
                let _ = kernel!(SYS_umount2, mounted.as_ptr(), libc::MNT_DETACH);
                let _ = fs::remove_dir_all(path);
            }
            Self::File(path) => drop(fs::remove_file(path)),
            Self::Segment(id) => drop(kernel!(SYS_shmctl, *id, libc::IPC_RMID, 0)),
            Self::Queue(id) => drop(kernel!(SYS_msgctl, *id, libc::IPC_RMID, 0)),
            Self::PosixQueue(name) => {
                let name = CString::new(name.as_str()).unwrap_or_default();
                let _ = kernel!(SYS_mq_unlink, name.as_ptr());
            }
            Self::Key(name) => {
                // Unlinks the key from both keyrings. A key that only expires would occupy four bytes of the user's
                // quota in the keyring. Unlinking takes effect a moment later, so the key is revoked first, which makes
                // it unusable at once.
                const KEYCTL_REVOKE: i32 = 3;
                const KEYCTL_UNLINK: i32 = 9;
                if let Some(key) = key(name) {
                    let _ = kernel!(SYS_keyctl, KEYCTL_REVOKE, key);
                    for keyring in KEYRINGS {
                        let _ = kernel!(SYS_keyctl, KEYCTL_UNLINK, key, keyring);
                    }
                }
            }
        }
    }
}

fn files(begin: &str) -> Vec<Residue> {
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    let temporary = std::env::temp_dir();
    if !folders.contains(&temporary) {
        folders.push(temporary);
    }
    let entries = folders.iter().flat_map(|folder| fs::read_dir(Path::new(folder)));
    entries
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(begin))
        .map(|entry| Residue::File(entry.path()))
        .collect()
}

/// Keyrings of this user's processes: the user's keyring, and the session's keyring.
const KEYRINGS: [i32; 2] = [-4, -3];

/// Key with this name in one of these keyrings.
fn key(name: &str) -> Option<i64> {
    const KEYCTL_SEARCH: i32 = 10;
    let name = CString::new(name).ok()?;
    KEYRINGS
        .into_iter()
        .find_map(|keyring| kernel!(SYS_keyctl, KEYCTL_SEARCH, keyring, c"user".as_ptr(), name.as_ptr(), 0).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residue_is_found_and_removed() {
        let token = format!("residue{}", std::process::id());
        let all = || [Residue::of_attempt(&token), Residue::of_neighbour(&token)].concat();
        assert_eq!(all(), []);
        let file = std::env::temp_dir().join(name(&token, ATTEMPT) + "-of-a-test");
        let folder = std::env::temp_dir().join(name(&token, NEIGHBOUR));
        fs::write(&file, "left").expect("a file");
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("inside"), "left").expect("a file in it");
        let flags = libc::IPC_CREAT | 0o600;
        let segment = kernel!(SYS_shmget, sysv_key(&token, SysvKey::AttemptSegment), 4096, flags);
        let segment = segment.expect("a segment") as i32;
        let left = [Residue::File(file), Residue::Segment(segment)];
        assert_eq!(Residue::of_attempt(&token), left);
        assert_eq!(Residue::of_neighbour(&token), [Residue::File(folder)]);
        all().iter().for_each(Residue::remove);
        assert_eq!(all(), []);
    }
}
