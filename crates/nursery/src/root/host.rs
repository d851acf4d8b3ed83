//! The host's files, as the nursery reaches them from its own root.

use super::{FIRST_ROOT, HOST, NEW, PIECES, StepError, in_memory, restrict_mount, step};
use crate::directory::DeclaredDirectory;
use crate::kernel::{self, READ_ONLY};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount, open_tree,
};
use rustix::process::{chdir, pivot_root};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The host's root, opened before anything was mounted below it.
pub struct Host(OwnedFd);

impl Host {
    /// Moves this process, which has its own mounts already, onto a root of its own, from where the paths in `hidden` show
    /// nothing.
    pub fn leave(hidden: &[OsString]) -> Result<Self, StepError> {
        // Later mounts of the host appear here; mounts made here appear nowhere else.
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", slave).map_err(step("making mounts private"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(
            "hotlease-nursery",
            FIRST_ROOT,
            "tmpfs",
            flags,
            Some(c"mode=755,size=4m"),
        )
        .map_err(step("mounting a root for the nursery on /tmp"))?;
        let at = |name: &str| Path::new(FIRST_ROOT).join(name.trim_start_matches('/'));
        for name in [HOST, PIECES, NEW] {
            fs::create_dir(at(name)).map_err(step("making folders of the nursery's root"))?;
        }
        pivot_root(FIRST_ROOT, at(HOST)).map_err(step("changing the root of the nursery"))?;
        chdir("/").map_err(step("entering the nursery's root"))?;
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let host = rustix::fs::open(HOST, folder, Mode::empty()).map_err(step("opening the host's root"))?;
        let host = Self(host);
        for path in hidden {
            let path = Path::new(path);
            host.hide(path).map_err(step(format!("hiding {}", path.display())))?;
        }
        Ok(host)
    }

    /// Makes a folder of the host look empty, here and in all trees that are copied from now on; makes any other file,
    /// such as a socket, look like `/dev/null`. Does nothing if nothing is there.
    fn hide(&self, path: &Path) -> io::Result<()> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = match openat2(&self.0, path, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
            found => found?,
        };
        let is_folder = fs::File::from(found.try_clone()?).metadata()?.is_dir();
        let empty = match is_folder {
            true => in_memory(1 << 12, "000", READ_ONLY)?,
            false => self.tree(Path::new("/dev/null"))?,
        };
        let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&empty, "", &found, "", onto)?)
    }

    /// Path at which the nursery finds a path of the host.
    pub fn path(path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        Path::new(HOST).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies the tree of mounts at `path`. The copy is not attached anywhere yet. Links are followed as on the host.
    pub fn tree(&self, path: &Path) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = openat2(&self.0, path, flags, Mode::empty(), resolve)?;
        Ok(copy_of_tree(&found)?)
    }

    /// Copies the tree of a directory that a lease has declared, and restricts it. `by_root`: user and group of the
    /// sandbox, if root's nursery makes it, which gives each sandbox a user of its own.
    pub fn declared(&self, declared: &DeclaredDirectory, by_root: Option<(u32, u32)>) -> io::Result<OwnedFd> {
        let base = declared.base(&self.0)?;
        let Some(user) = by_root else {
            let tree = copy_of_tree(&declared.beneath(&base)?)?;
            return restrict_mount(&tree, declared.writable).map(|()| tree);
        };
        let owner = declared.owner(&base)?;
        // Checked with the rights of that user, because root could pass every folder.
        let found = kernel::with_rights_of(owner.unwrap_or(user), || declared.beneath(&base))?;
        let tree = copy_of_tree(&found)?;
        if let Some(owner) = owner {
            let namespace = kernel::user_namespace(&Self::path("/proc"), owner, user)?;
            kernel::map_owners(tree.as_fd(), namespace.as_fd()).map_err(|error| {
                let why = "a sandbox cannot have the rights of its owner there: this kernel cannot map owners of files on \
                           that file system (see docs/sandboxes.md, What functions may reach)";
                io::Error::new(error.kind(), format!("{why}: {error}"))
            })?;
        }
        restrict_mount(&tree, declared.writable).map(|()| tree)
    }
}

fn copy_of_tree(of: &impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(of, "", flags)
}
