//! The root file system of a sandbox, made of pieces of the host's.
//!
//! ```text
//! nursery's own mounts             a sandbox's own
//! /        tmpfs                    /        tmpfs, read-only once everything is in its place
//! /host    the host's root          /usr ... copies of the trees in /pieces, read-only
//! /pieces  tmpfs                    /etc     a few harmless files
//!    /0 ..  trees of the host       /dev     null, zero, full, random, urandom; shm of its own
//! /new     where the new root goes  /proc    of its own processes
//!                                   /tmp     tmpfs
//! ```
//!
//! The nursery opens sources with the rights that the site's operator gave it; the files in them are still read with
//! the rights of the sandbox's user. Trees are copied and moved by descriptor, so no name of the host is looked up in a
//! sandbox.

mod host;

pub use host::Host;

use crate::kernel::{self, NO_DEVICES, NO_EXEC, NO_SET_USER_ID, READ_ONLY};
use crate::policy::{MOUNTS_MAX, Mount, Policy};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

pub const HOST: &str = "/host";
const PIECES: &str = "/pieces";
pub const NEW: &str = "/new";

/// Folder on which a nursery first mounts its own root; every host has it.
const FIRST_ROOT: &str = "/tmp";

/// The system's programs and libraries: folders, or links if they are merged into `/usr`.
const SYSTEM_FOLDERS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Folders that every sandbox has for itself, even if an image has them.
pub const OWN_FOLDERS: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// Entries of `/etc` that programs need and that contain no secrets.
const ETC: [&str; 12] = [
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libibverbs.d",
    "localtime",
    "mime.types",
    "protocols",
    "services",
    "ssl/certs",
];

/// Devices that have no state and reach nothing outside.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Number of the sandbox's user: the same in every sandbox, although it is another user on the host.
pub const USER: u32 = 1000;
const PASSWD: &str = "root:x:0:0::/:/usr/sbin/nologin\nuser:x:1000:1000::/tmp:/bin/sh\n\
                      nobody:x:65534:65534::/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// Largest number of inodes of a file system in memory; its bytes have a limit of their own.
const INODES: &str = "65536";

/// An error, and the step in which it occurred.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct StepError {
    what: String,
    source: io::Error,
}

/// Names the step that an error belongs to.
pub fn step<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> StepError {
    move |source| StepError {
        what: what.into(),
        source: source.into(),
    }
}

/// Attaches a tree at a free path and makes the folders that lead there; returns whether the tree is a folder.
pub fn attach_new(tree: &OwnedFd, target: &Path) -> io::Result<bool> {
    let is_folder = fs::File::from(tree.try_clone()?).metadata()?.is_dir();
    make_point(target, is_folder)?;
    move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(is_folder)
}

/// Makes the file or folder that a tree is attached to.
pub fn make_point(target: &Path, is_folder: bool) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if is_folder {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::File::create(target)?;
    }
    Ok(())
}

/// Sets the restrictions of every mount of a policy or program: no set-user-id bits, no devices, read-only unless
/// `writable`.
pub fn restrict_mount(tree: &OwnedFd, writable: bool) -> io::Result<()> {
    let read_only = if writable { 0 } else { READ_ONLY };
    kernel::set_mount(tree.as_fd(), c"", true, NO_SET_USER_ID | NO_DEVICES | read_only)
}

struct Piece {
    /// Path in the nursery.
    at: PathBuf,
    /// Path in a sandbox.
    target: PathBuf,
    writable: bool,
    devices: bool,
}

/// Mounts the folder in which pieces of the host are gathered.
pub fn make_pieces() -> Result<(), StepError> {
    mount(
        "hotlease-pieces",
        PIECES,
        "tmpfs",
        MountFlags::NOSUID,
        Some(c"mode=755,size=4m"),
    )
    .map_err(step("mounting a folder for pieces of the host"))
}

/// Path of a piece in the folder of pieces.
pub fn piece(name: &str) -> PathBuf {
    Path::new(PIECES).join(name)
}

/// Pieces of the root that all sandboxes of a policy share.
pub struct Template {
    folder: PathBuf,
    pieces: Vec<Piece>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Whether the root gets `/tmp`, `/dev/shm` and `/proc` of the sandbox's own.
    has_own: bool,
    tmp_bytes: u64,
    shm_bytes: u64,
}

impl Template {
    /// Gathers the system's own folders, and the mounts of the policy.
    pub fn gather(host: &Host, policy: &Policy) -> Result<Self, StepError> {
        Self::gather_with(host, policy, &ETC)
    }

    /// Gathers the system's own folders and the mounts of the policy. Of `/etc`, gathers only the files without which
    /// programs cannot start.
    pub fn gather_for_runtime(host: &Host, policy: &Policy) -> Result<Self, StepError> {
        Self::gather_with(host, policy, &["ld.so.cache"])
    }

    fn gather_with(host: &Host, policy: &Policy, etc: &[&str]) -> Result<Self, StepError> {
        let mut template = Self::empty(policy)?;
        for path in SYSTEM_FOLDERS {
            match fs::symlink_metadata(Host::path(path)) {
                Ok(found) if found.is_symlink() => {
                    let to = fs::read_link(Host::path(path)).map_err(step(format!("reading the link {path}")))?;
                    template.links.push((path.into(), to));
                }
                Ok(_) => template.add(host, &Mount::read_only(path))?,
                Err(_) => {}
            }
        }
        template.add_etc(host, etc).map_err(step("gathering files of /etc"))?;
        template.add_dev(host).map_err(step("gathering devices"))?;
        if policy.kvm {
            template.add_kvm(host).map_err(step("showing /dev/kvm"))?;
        }
        for mount in &policy.mounts {
            template.add(host, mount)?;
        }
        Ok(template)
    }

    /// Gathers the entries of an image: a folder of the host, with no links on the way to it.
    pub fn gather_image(host: &Host, image: &Path, policy: &Policy) -> Result<Self, StepError> {
        let named = || format!("reading the image {}", image.display());
        let mut template = Self::empty(policy)?;
        for entry in fs::read_dir(Host::path(image)).map_err(step(named()))? {
            let entry = entry.map_err(step(named()))?;
            let name = entry.file_name();
            if OWN_FOLDERS.iter().any(|own| name == *own) {
                continue;
            }
            if template.pieces.len() + template.links.len() >= MOUNTS_MAX {
                let many = io::Error::other(format!("more than {MOUNTS_MAX} entries in its root"));
                return Err(step(named())(many));
            }
            let target = Path::new("/").join(&name);
            let kind = entry.file_type().map_err(step(named()))?;
            if kind.is_symlink() {
                let to = fs::read_link(entry.path()).map_err(step(named()))?;
                template.links.push((target, to));
            } else if kind.is_dir() || kind.is_file() {
                template.add(
                    host,
                    &Mount {
                        source: image.join(&name),
                        target,
                        writable: false,
                    },
                )?;
            }
        }
        template.add_dev(host).map_err(step("gathering devices"))?;
        Ok(template)
    }

    fn empty(policy: &Policy) -> Result<Self, StepError> {
        // Keeps the pieces of this template apart from the pieces of other templates.
        let folder = |number: u32| Path::new(PIECES).join(format!("of-{number}"));
        let free = (0..).find(|number| !folder(*number).exists()).unwrap_or(0);
        let folder = folder(free);
        fs::create_dir(&folder).map_err(step("making a folder for pieces of the host"))?;
        Ok(Self {
            folder,
            pieces: Vec::new(),
            links: Vec::new(),
            has_own: true,
            tmp_bytes: policy.tmp_bytes,
            shm_bytes: policy.shm_bytes,
        })
    }

    /// Leaves out the folders of the sandbox's own (`/dev`, `/tmp`, `/proc`), which a container runtime mounts itself.
    pub fn without_own(mut self) -> Self {
        self.pieces.retain(|piece| !piece.devices);
        self.has_own = false;
        self
    }

    /// Adds a program of the host, to be run.
    pub fn with_program(mut self, host: &Host, program: &Path, target: &str) -> Result<Self, StepError> {
        let mount = Mount {
            source: program.to_owned(),
            target: target.into(),
            writable: false,
        };
        self.add(host, &mount).map(|()| self)
    }

    /// Paths of the pieces in a sandbox.
    pub fn targets(&self) -> impl Iterator<Item = &Path> {
        self.pieces.iter().map(|piece| piece.target.as_path())
    }

    fn add(&mut self, host: &Host, mount: &Mount) -> Result<(), StepError> {
        let named = || format!("opening {}, which the policy shows", mount.source.display());
        let tree = host.tree(&mount.source).map_err(step(named()))?;
        let at = self.piece(&mount.target, mount.writable, false);
        attach_new(&tree, &at).map(drop).map_err(step(named()))
    }

    fn piece(&mut self, target: impl Into<PathBuf>, writable: bool, devices: bool) -> PathBuf {
        let at = self.folder.join(self.pieces.len().to_string());
        self.pieces.push(Piece {
            at: at.clone(),
            target: target.into(),
            writable,
            devices,
        });
        at
    }

    fn add_etc(&mut self, host: &Host, names: &[&str]) -> io::Result<()> {
        let etc = self.piece("/etc", false, false);
        fs::create_dir(&etc)?;
        for name in names {
            match host.tree(&Path::new("/etc").join(name)) {
                Ok(tree) => drop(attach_new(&tree, &etc.join(name))?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        for (name, text) in [
            ("passwd", PASSWD),
            ("group", GROUP),
            ("nsswitch.conf", NSSWITCH),
            ("hosts", HOSTS),
        ] {
            fs::write(etc.join(name), text)?;
        }
        Ok(())
    }

    fn add_dev(&mut self, host: &Host) -> io::Result<()> {
        let dev = self.piece("/dev", false, true);
        fs::create_dir(&dev)?;
        fs::create_dir(dev.join("shm"))?;
        for name in DEVICES {
            attach_new(&host.tree(&Path::new("/dev").join(name))?, &dev.join(name))?;
        }
        for (name, to) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            symlink(format!("/proc/self/fd{to}"), dev.join(name))?;
        }
        Ok(())
    }

    /// Adds the device of KVM, which the sandbox's user may open, even if the same user may not open it on the host.
    fn add_kvm(&mut self, host: &Host) -> io::Result<()> {
        let Some(dev) = self.pieces.iter().find(|piece| piece.devices) else {
            return Ok(());
        };
        let (at, device) = (dev.at.join("kvm"), Path::new("/dev/kvm"));
        let found = fs::metadata(Host::path(device))?;
        let everybody = Mode::from_raw_mode(0o666);
        match mknodat(CWD, &at, FileType::CharacterDevice, everybody, found.rdev()) {
            Ok(()) => fs::set_permissions(&at, fs::Permissions::from_mode(0o666)),
            // A nursery that may not make devices shows the host's device, with the rights that the host gives its
            // user.
            Err(rustix::io::Errno::PERM) => attach_new(&host.tree(device)?, &at).map(drop),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves pid 1 of a sandbox onto a root of its own, which stays writable until it is sealed. Pid 1 must be in all
    /// its namespaces already.
    pub fn enter(&self) -> Result<(), StepError> {
        self.assemble(Path::new(NEW), ProcMount::ReadOnly)?;
        leave_for(NEW)
    }

    /// Attaches all pieces below `new`, a folder.
    pub fn assemble(&self, new: &Path, processes: ProcMount) -> Result<(), StepError> {
        let root = in_memory(1 << 20, "755", 0).map_err(step("making a file system for the root"))?;
        attach(&root, new).map_err(step("mounting the root"))?;
        let inside = |path: &Path| new.join(path.strip_prefix("/").unwrap_or(path));
        for piece in &self.pieces {
            let named = || format!("mounting {}", piece.target.display());
            let tree = copy_at(&piece.at).map_err(step(named()))?;
            match piece.devices {
                true => kernel::set_mount(tree.as_fd(), c"", true, NO_SET_USER_ID | NO_EXEC | READ_ONLY),
                false => restrict_mount(&tree, piece.writable),
            }
            .map_err(step(named()))?;
            attach_new(&tree, &inside(&piece.target)).map_err(step(named()))?;
        }
        for (path, to) in &self.links {
            symlink(to, inside(path)).map_err(step(format!("making the link {}", path.display())))?;
        }
        match self.has_own {
            true => self.place_own(new, processes),
            false => Ok(()),
        }
    }

    /// Mounts this sandbox's own `/tmp`, `/dev/shm` and `/proc` over the same folders of another sandbox. Must be
    /// called by a process that has a copy of the other sandbox's mounts.
    pub fn cover_own(&self) -> Result<(), StepError> {
        self.place_own(Path::new("/"), ProcMount::ReadOnly)
    }

    fn place_own(&self, new: &Path, processes: ProcMount) -> Result<(), StepError> {
        let inside = |path: &Path| new.join(path.strip_prefix("/").unwrap_or(path));
        for (path, bytes, flags) in [("/tmp", self.tmp_bytes, 0), ("/dev/shm", self.shm_bytes, NO_EXEC)] {
            let own = in_memory(bytes, "1777", flags).map_err(step(format!("making a file system for {path}")))?;
            attach_new(&own, &inside(Path::new(path))).map_err(step(format!("mounting {path}")))?;
        }
        attach_new(&processes.mount()?, &inside(Path::new("/proc"))).map_err(step("mounting /proc"))?;
        Ok(())
    }
}

/// Makes the folder `root` the root of this process, and drops the previous root.
pub fn leave_for(root: &str) -> Result<(), StepError> {
    // `pivot_root` puts the old root on top of the new root, from where the old root is unmounted.
    chdir(root).map_err(step("entering the root"))?;
    pivot_root(".", ".").map_err(step("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leaving the nursery's root"))?;
    chdir("/").map_err(step("entering the root"))
}

/// Copies the tree of mounts at a path. The copy is not attached anywhere yet.
pub fn copy_at(path: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path.as_ref(), flags)
}

/// Makes the root read-only: nothing can be added from now on.
pub fn seal() -> io::Result<()> {
    kernel::set_mount(CWD, c"/", false, READ_ONLY)
}

/// Attaches a tree to a folder.
pub fn attach(tree: &OwnedFd, at: &Path) -> rustix::io::Result<()> {
    move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Makes a file system in memory. It is not attached anywhere yet.
pub fn in_memory(bytes: u64, mode: &str, more: u64) -> io::Result<OwnedFd> {
    let made = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in [
        ("size", bytes.to_string().as_str()),
        ("nr_inodes", INODES),
        ("mode", mode),
    ] {
        fsconfig_set_string(&made, name, value)?;
    }
    fsconfig_create(&made)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let tree = fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    if more != 0 {
        kernel::set_mount(tree.as_fd(), c"", false, more)?;
    }
    Ok(tree)
}

/// Content of `/proc`. It never shows processes of other users.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ProcMount {
    /// Without the kernel's settings, and read-only.
    ReadOnly,
    /// Without the kernel's settings, but with the files that a runtime writes to make namespaces.
    Writable,
    /// Complete, for a runtime that does not show it to the container.
    Complete,
}

impl ProcMount {
    /// Makes the file system. It is not attached anywhere yet.
    pub fn mount(self) -> Result<OwnedFd, StepError> {
        let mounted = || -> io::Result<OwnedFd> {
            let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_string(&made, "hidepid", "invisible")?;
            if self != Self::Complete {
                fsconfig_set_string(&made, "subset", "pid")?;
            }
            fsconfig_create(&made)?;
            let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            if self == Self::ReadOnly {
                attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
            }
            Ok(fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
        };
        mounted().map_err(step(
            "mounting /proc (in a container, its own /proc must not be masked)",
        ))
    }
}
