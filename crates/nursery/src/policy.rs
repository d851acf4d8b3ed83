//! A site's policy for its sandboxes: mounts, network, limits.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Largest number of mounts of one policy or program.
pub const MOUNTS_MAX: usize = 128;
/// Largest number of folders and files that no sandbox shows.
pub const HIDDEN_MAX: usize = 16;
/// Largest number of sandboxes that are prepared ahead.
pub const PREPARED_MAX: u32 = 64;

/// A file or folder of the host that a sandbox sees. Set-user-id bits and devices in it have no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path on the host; absolute. Symbolic links in it are followed.
    #[serde(with = "bytes")]
    pub source: PathBuf,
    /// Path in the sandbox; absolute, without `.` and `..`.
    #[serde(with = "bytes")]
    pub target: PathBuf,
    /// Whether it may be written, as far as owner and mode of the files allow the sandbox's user.
    pub writable: bool,
}

impl Mount {
    /// A read-only mount at the same path as on the host.
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        let source = path.into();
        Self {
            target: source.clone(),
            source,
            writable: false,
        }
    }

    /// Reason why no host could make such a mount; `None` if there is no such reason.
    pub fn fault(&self) -> Option<String> {
        use std::path::Component::{Normal, RootDir};
        let plain =
            |path: &Path| path.is_absolute() && path.components().all(|part| matches!(part, Normal(_) | RootDir));
        // A mount on one of these folders would hide the folders below, or be hidden.
        let own = ["/", "/dev", "/dev/shm", "/etc", "/proc", "/sys", "/tmp"];
        if !plain(&self.source) || !plain(&self.target) {
            return Some("paths of mounts are absolute and have no `..`".into());
        }
        let beneath = ["/dev", "/proc", "/sys"];
        let taken = own.iter().any(|own| self.target == Path::new(own));
        if taken || beneath.iter().any(|own| self.target.starts_with(own)) {
            return Some(format!("{} is the sandbox's own", self.target.display()));
        }
        None
    }
}

/// Unprivileged users of the host, one for each sandbox of a root agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users {
    /// The first user, and the first group; not 0.
    pub first: u32,
    /// Number of users.
    pub count: u32,
}

impl Default for Users {
    /// A range that neither distributions nor systemd assign.
    fn default() -> Self {
        Self {
            first: 2_000_000_000,
            count: 65_536,
        }
    }
}

/// A site's policy for its sandboxes. The default is the strictest policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Mounts of every sandbox, beside the system's own programs and libraries (default: none).
    pub mounts: Vec<Mount>,
    /// Folders and files of the host that look empty in every sandbox, even inside a folder that a mount shows
    /// (default: none). The agent adds the platform's own folders and sockets. What does not exist when the nursery
    /// starts is not hidden.
    pub hidden: Vec<OsString>,
    /// Whether leases may ask for the host's network; a sandbox has no network otherwise (default: no).
    pub network: bool,
    /// Size of each sandbox's `/tmp`, bytes of memory (default: 256 MiB).
    pub tmp_bytes: u64,
    /// Size of each sandbox's `/dev/shm`, bytes of memory (default: 64 MiB).
    pub shm_bytes: u64,
    /// Memory of each sandbox, `/tmp` and `/dev/shm` included, bytes; 0 for the limit of its lease alone (default: 0).
    pub memory_bytes: u64,
    /// Largest number of processes and threads of each sandbox (default: 512).
    pub processes: u32,
    /// Largest number of descriptors of each process (default: 1024).
    pub files: u32,
    /// Largest number of bytes of a file that a sandbox writes (default: 1 GiB).
    pub file_bytes: u64,
    /// Whether sandboxes may use the host's hypervisor, `/dev/kvm`: for sandboxes that contain a virtual machine
    /// (default: no).
    pub kvm: bool,
    /// Users that sandboxes of a root agent run as.
    pub users: Users,
    /// Number of sandboxes that wait, prepared, for their program (default: 2; at most 64).
    pub prepared: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mounts: Vec::new(),
            hidden: Vec::new(),
            network: false,
            tmp_bytes: 256 << 20,
            shm_bytes: 64 << 20,
            memory_bytes: 0,
            processes: 512,
            files: 1024,
            file_bytes: 1 << 30,
            kvm: false,
            users: Users::default(),
            prepared: 2,
        }
    }
}

impl Policy {
    /// Reason why no host could carry out the policy; `None` if there is no such reason.
    pub fn fault(&self) -> Option<String> {
        let users = self.users;
        let last = u64::from(users.first) + u64::from(users.count);
        if users.first == 0 || users.count == 0 || last >= u64::from(u32::MAX) {
            return Some("the range of users for sandboxes is empty, or has root or the last user in it".into());
        }
        if self.mounts.len() > MOUNTS_MAX || self.hidden.len() > HIDDEN_MAX || self.prepared > PREPARED_MAX {
            return Some(format!(
                "a policy has at most {MOUNTS_MAX} mounts, {HIDDEN_MAX} hidden paths, and {PREPARED_MAX} prepared sandboxes"
            ));
        }
        if self.processes < 8 || self.files < 32 || self.tmp_bytes < 1 << 20 || self.shm_bytes < 1 << 16 {
            return Some(
                "a sandbox needs at least 8 processes, 32 descriptors, 1 MiB of /tmp and 64 KiB of /dev/shm".into(),
            );
        }
        self.mounts.iter().find_map(Mount::fault)
    }
}

/// Serialises paths as bytes: they need not be text.
pub(crate) mod bytes {
    use super::{OsString, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &std::path::Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_would_cover_what_is_the_sandbox_s_own_are_faults() {
        for (target, is_good) in [
            ("/opt/python", true),
            ("/tmp/venv", true),
            ("/etc/ssl", true),
            ("/", false),
            ("/tmp", false),
            ("/proc/1", false),
            ("/dev/sda", false),
            ("/opt/../proc", false),
            ("opt", false),
        ] {
            let mount = Mount {
                source: "/usr".into(),
                target: target.into(),
                writable: false,
            };
            assert_eq!(mount.fault().is_none(), is_good, "{target}: {:?}", mount.fault());
        }
    }

    #[test]
    fn root_is_never_a_sandbox_s_user() {
        assert_eq!(Policy::default().fault(), None);
        for (first, count) in [(0, 10), (1, 0), (u32::MAX - 5, 10)] {
            let policy = Policy {
                users: Users { first, count },
                ..Policy::default()
            };
            assert!(policy.fault().is_some(), "{first} + {count}");
        }
    }
}
