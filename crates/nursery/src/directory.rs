//! Directories of the host that a lease has declared, and how they are opened.
//!
//! ```text
//! /lustre/scratch / alice / runs/7
//! trusted           own     beneath
//! ```
//!
//! An operator wrote the `trusted` part; links in it are followed, because the operator made them. The `own` part is
//! named after a tenant, in a folder where others may make entries: no link is followed there. The `beneath` part
//! belongs to the tenant: links in it cannot lead out of it, and the sandbox's user in this directory needs permission
//! for each folder on the way.

use crate::kernel;
use crate::policy::{Mount, bytes};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// A directory of the host that a lease has declared, in the three parts `trusted`, `own` and `beneath`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredDirectory {
    /// Path that an operator wrote; absolute.
    #[serde(with = "bytes")]
    pub trusted: PathBuf,
    /// Path below `trusted`, named after the tenant; relative, may be empty.
    #[serde(with = "bytes")]
    pub own: PathBuf,
    /// Path below `own`, which the tenant chose; relative, may be empty.
    #[serde(with = "bytes")]
    pub beneath: PathBuf,
    /// Path in the sandbox; absolute.
    #[serde(with = "bytes")]
    pub target: PathBuf,
    /// Whether the sandbox may write it.
    pub writable: bool,
    /// Whether sandboxes that have users of their own get the rights of the owner of `own` in the directory. The owner
    /// then owns the files that the sandboxes make. Otherwise they have the rights of other users.
    pub as_owner: bool,
}

impl DeclaredDirectory {
    /// Path of the directory on the host.
    pub fn source(&self) -> PathBuf {
        // Joining an empty path would leave a slash at the end.
        let parts = [&self.trusted, &self.own, &self.beneath];
        parts.into_iter().flat_map(|part| part.components()).collect()
    }

    /// Reason why no host could make such a mount; `None` if there is no such reason.
    pub fn fault(&self) -> Option<String> {
        let is_plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain(&self.own) || !is_plain(&self.beneath) {
            return Some("paths of mounts are absolute and have no `..`".into());
        }
        Mount {
            source: self.source(),
            target: self.target.clone(),
            writable: self.writable,
        }
        .fault()
    }

    /// Checks that the directory exists, with the rights that its sandbox will have. With root's rights, the answer
    /// could show a tenant what is in folders that it cannot enter. A later mount opens the directory again.
    pub fn check(&self) -> io::Result<()> {
        let root = rustix::fs::open("/", FOLDER, Mode::empty())?;
        let base = self.base(&root)?;
        if !rustix::process::geteuid().is_root() {
            return self.beneath(&base).map(drop);
        }
        let user = self.owner(&base)?.unwrap_or((NOBODY, NOBODY));
        // Rights in file systems belong to a thread. This thread takes the rights, and ends with them.
        std::thread::scope(|scope| {
            let looking = std::thread::Builder::new().spawn_scoped(scope, || {
                rustix::thread::set_thread_groups(&[])?;
                kernel::with_rights_of(user, || self.beneath(&base).map(drop))
            })?;
            let looked = looking.join();
            looked.unwrap_or_else(|_| Err(io::Error::other("looking at it failed")))
        })
    }

    /// Opens `trusted` and `own` below this root: the directory that the site has granted.
    pub(crate) fn base(&self, root: &impl AsFd) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let trusted = openat2(root, &self.trusted, FOLDER, Mode::empty(), resolve)?;
        below(trusted, &self.own, ResolveFlags::NO_SYMLINKS)
    }

    /// Opens `beneath` in the directory `base`: the part that the sandbox sees.
    pub(crate) fn beneath(&self, base: &OwnedFd) -> io::Result<OwnedFd> {
        below(base.try_clone()?, &self.beneath, ResolveFlags::empty())
    }

    /// User and group of the host whose rights a sandbox has in the directory, if the nursery runs as root; `None` for
    /// the sandbox's own user.
    pub(crate) fn owner(&self, base: &OwnedFd) -> io::Result<Option<(u32, u32)>> {
        let found = fstat(base)?;
        match (self.as_owner, found.st_uid) {
            (true, 0) if self.writable => Err(io::Error::other(
                "it belongs to root, and nothing in a sandbox writes as root; give it to another user (`chown`)",
            )),
            (true, 0) | (false, _) => Ok(None),
            (true, user) => {
                let group = if found.st_gid == 0 { NOBODY } else { found.st_gid };
                Ok(Some((user, group)))
            }
        }
    }
}

/// User and group without rights. Used for root's group, whose rights no sandbox gets, and, when a directory is
/// checked, for a sandbox's own user.
const NOBODY: u32 = 65534;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn below(base: OwnedFd, path: &Path, more: ResolveFlags) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return Ok(base);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more;
    Ok(openat2(&base, path, FOLDER, Mode::empty(), resolve)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn links_lead_nowhere_but_on_an_operator_s_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["lustre/ann/runs", "lustre/bob/secret"] {
            fs::create_dir_all(at(name)).expect("made");
        }
        fs::write(at("lustre/ann/file"), "x").expect("written");
        for (link, to) in [
            ("scratch", "lustre"),
            ("lustre/eve", "bob"),
            ("lustre/ann/last", "runs"),
            ("lustre/ann/up", ".."),
            ("lustre/ann/away", "/etc"),
            ("lustre/ann/bob", "../bob/secret"),
        ] {
            symlink(to, at(link)).expect("linked");
        }
        for (trusted, own, beneath, is_good) in [
            ("scratch", "ann", "", true),
            ("scratch", "ann", "runs", true),
            ("scratch", "ann", "last", true),
            ("scratch/ann", "", "last", true),
            ("scratch", "eve", "", false),
            ("scratch", "ann", "up", false),
            ("scratch", "ann", "away", false),
            ("scratch", "ann", "bob", false),
            ("scratch", "ann", "file", false),
            ("scratch", "ann", "missing", false),
        ] {
            let declared = DeclaredDirectory {
                trusted: at(trusted),
                own: own.into(),
                beneath: beneath.into(),
                target: "/data".into(),
                writable: false,
                as_owner: false,
            };
            assert_eq!(declared.fault(), None);
            let checked = declared.check();
            assert_eq!(checked.is_ok(), is_good, "{declared:?}: {checked:?}");
        }
    }

    #[test]
    fn a_tenant_is_told_no_more_of_a_directory_than_it_sees() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root could see more");
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let own = folder.path().join("ann");
        fs::create_dir_all(own.join("private/there")).expect("made");
        fs::set_permissions(own.join("private"), fs::Permissions::from_mode(0o700)).expect("ours");
        chown(&own, Some(54_321), Some(54_321)).expect("given");
        for as_owner in [true, false] {
            let check = |beneath: &str| {
                let declared = DeclaredDirectory {
                    trusted: folder.path().to_owned(),
                    own: "ann".into(),
                    beneath: beneath.into(),
                    target: "/data".into(),
                    writable: false,
                    as_owner,
                };
                declared.check().map_err(|error| error.kind())
            };
            assert_eq!(check("private"), Ok(()));
            assert_eq!(check("private/there"), Err(io::ErrorKind::PermissionDenied));
            assert_eq!(check("private/missing"), Err(io::ErrorKind::PermissionDenied));
        }
        let own_rights = fs::read_dir(own.join("private")).map(drop);
        assert!(own_rights.is_ok(), "this process has lost its rights: {own_rights:?}");
    }

    #[test]
    fn paths_that_climb_or_cover_are_faults() {
        let declared = |own: &str, beneath: &str, target: &str| DeclaredDirectory {
            trusted: "/lustre".into(),
            own: own.into(),
            beneath: beneath.into(),
            target: target.into(),
            writable: false,
            as_owner: true,
        };
        assert_eq!(declared("ann", "runs", "/data").fault(), None);
        assert_eq!(declared("ann", "", "/data").source(), Path::new("/lustre/ann"));
        for bad in [
            declared("..", "", "/data"),
            declared("/etc", "", "/data"),
            declared("ann", "../bob", "/data"),
            declared("ann", "", "data"),
            declared("ann", "", "/proc"),
        ] {
            assert!(bad.fault().is_some(), "{bad:?}");
        }
    }
}
