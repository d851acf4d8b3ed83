//! What a sandbox sees as its root, made of pieces of the host's.
//!
//! ```text
//! nursery's own mounts             a sandbox's own
//! /        tmpfs                    /        tmpfs, read-only once everything is in its place
//! /host    the host's root          /usr ... copies of what stands in /pieces, read-only
//! /pieces  tmpfs                    /etc     a few harmless files
//!    /0 ..  trees of the host       /dev     null, zero, full, random, urandom; shm of its own
//! /new     where the new root goes  /proc    of its own processes
//!                                   /tmp     tmpfs
//! ```
//!
//! Sources are opened by the nursery with the rights that the site's operator gave it; what is in them is still read with the
//! rights of the sandbox's user. Trees are copied and moved by descriptor, so no name of the host is looked up in a sandbox.

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

/// Where a nursery can mount its own root first: a folder that every host has.
const STEP: &str = "/tmp";

/// The system's own programs and libraries: folders, or links to such where they are merged into `/usr`.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What is the sandbox's own, whatever an image has there.
pub const OWN: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// What of `/etc` programs need, and nobody's secret.
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

/// Devices that have no state and reach nothing.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// The sandbox's user, by name and number: the same in every sandbox, whoever it is outside.
pub const USER: u32 = 1000;
const PASSWD: &str = "root:x:0:0::/:/usr/sbin/nologin\nuser:x:1000:1000::/tmp:/bin/sh\n\
                      nobody:x:65534:65534::/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n";
const NAMES: &str = "passwd: files\ngroup: files\nhosts: files\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// Inodes of file systems in memory, besides their bytes.
const INODES: &str = "65536";

/// What went wrong where.
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

/// Puts a tree where there is nothing, making what leads there; whether it is a folder.
pub fn place(tree: &OwnedFd, target: &Path) -> io::Result<bool> {
    let is_folder = fs::File::from(tree.try_clone()?).metadata()?.is_dir();
    make_point(target, is_folder)?;
    move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(is_folder)
}

/// Makes what a tree can be put onto.
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

/// What a mount of a policy or program may never do.
pub fn tame(tree: &OwnedFd, writable: bool) -> io::Result<()> {
    let read_only = if writable { 0 } else { READ_ONLY };
    kernel::set_mount(tree.as_fd(), c"", true, NO_SET_USER_ID | NO_DEVICES | read_only)
}

struct Piece {
    /// In the nursery.
    at: PathBuf,
    /// In a sandbox.
    target: PathBuf,
    writable: bool,
    devices: bool,
}

/// Makes the folder in which pieces of the host are gathered.
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

/// A place among them.
pub fn piece(name: &str) -> PathBuf {
    Path::new(PIECES).join(name)
}

/// What all sandboxes of a policy have in common.
pub struct Template {
    folder: PathBuf,
    pieces: Vec<Piece>,
    links: Vec<(PathBuf, PathBuf)>,
    /// Folders of a sandbox's own.
    has_own: bool,
    tmp_bytes: u64,
    shm_bytes: u64,
}

impl Template {
    /// Gathers the pieces: the system's own folders, and what the policy shows.
    pub fn gather(host: &Host, policy: &Policy) -> Result<Self, StepError> {
        Self::gather_with(host, policy, &ETC)
    }

    /// The same, with what programs cannot start without.
    pub fn gather_for_runtime(host: &Host, policy: &Policy) -> Result<Self, StepError> {
        Self::gather_with(host, policy, &["ld.so.cache"])
    }

    fn gather_with(host: &Host, policy: &Policy, etc: &[&str]) -> Result<Self, StepError> {
        let mut template = Self::empty(policy)?;
        for path in SYSTEM {
            match fs::symlink_metadata(Host::path(path)) {
                Ok(found) if found.is_symlink() => {
                    let to =
                        fs::read_link(Host::path(path)).map_err(step(format!("reading the link {path}")))?;
                    template.links.push((path.into(), to));
                }
                Ok(_) => template.add(host, &Mount::read_only(path))?,
                Err(_) => {}
            }
        }
        template
            .add_etc(host, etc)
            .map_err(step("gathering files of /etc"))?;
        template.add_dev(host).map_err(step("gathering devices"))?;
        if policy.kvm {
            template.add_kvm(host).map_err(step("showing /dev/kvm"))?;
        }
        for mount in &policy.mounts {
            template.add(host, mount)?;
        }
        Ok(template)
    }

    /// Gathers what is in an image: a folder of the host's, without links on the way to it.
    pub fn gather_image(host: &Host, image: &Path, policy: &Policy) -> Result<Self, StepError> {
        let named = || format!("reading the image {}", image.display());
        let mut template = Self::empty(policy)?;
        for entry in fs::read_dir(Host::path(image)).map_err(step(named()))? {
            let entry = entry.map_err(step(named()))?;
            let name = entry.file_name();
            if OWN.iter().any(|own| name == *own) {
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
        // Not to be mixed with those of another.
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

    /// Without what is a sandbox's own: it is mounted by somebody else.
    pub fn without_own(mut self) -> Self {
        self.pieces.retain(|piece| !piece.devices);
        self.has_own = false;
        self
    }

    /// With this file of the host's, which is run.
    pub fn with_program(mut self, host: &Host, program: &Path, target: &str) -> Result<Self, StepError> {
        let mount = Mount {
            source: program.to_owned(),
            target: target.into(),
            writable: false,
        };
        self.add(host, &mount).map(|()| self)
    }

    /// Where pieces are.
    pub fn targets(&self) -> impl Iterator<Item = &Path> {
        self.pieces.iter().map(|piece| piece.target.as_path())
    }

    fn add(&mut self, host: &Host, mount: &Mount) -> Result<(), StepError> {
        let named = || format!("opening {}, which the policy shows", mount.source.display());
        let tree = host.tree(&mount.source).map_err(step(named()))?;
        let at = self.piece(&mount.target, mount.writable, false);
        place(&tree, &at).map(drop).map_err(step(named()))
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
                Ok(tree) => drop(place(&tree, &etc.join(name))?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        for (name, text) in [
            ("passwd", PASSWD),
            ("group", GROUP),
            ("nsswitch.conf", NAMES),
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
            place(&host.tree(&Path::new("/dev").join(name))?, &dev.join(name))?;
        }
        for (name, to) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            symlink(format!("/proc/self/fd{to}"), dev.join(name))?;
        }
        Ok(())
    }

    /// The hypervisor's device, which a sandbox's own user may open, whoever may on the host.
    fn add_kvm(&mut self, host: &Host) -> io::Result<()> {
        let Some(dev) = self.pieces.iter().find(|piece| piece.devices) else {
            return Ok(());
        };
        let (at, device) = (dev.at.join("kvm"), Path::new("/dev/kvm"));
        let found = fs::metadata(Host::path(device))?;
        let everybody = Mode::from_raw_mode(0o666);
        match mknodat(CWD, &at, FileType::CharacterDevice, everybody, found.rdev()) {
            Ok(()) => fs::set_permissions(&at, fs::Permissions::from_mode(0o666)),
            // Who may make no devices shows what its own user has.
            Err(rustix::io::Errno::PERM) => place(&host.tree(device)?, &at).map(drop),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves pid 1 of a sandbox, which has all namespaces of its own, onto a root of its own. The root itself can still be
    /// written.
    pub fn enter(&self) -> Result<(), StepError> {
        self.assemble(Path::new(NEW), Processes::Shown)?;
        leave_for(NEW)
    }

    /// Puts everything in its place below `new`, a folder.
    pub fn assemble(&self, new: &Path, processes: Processes) -> Result<(), StepError> {
        let root = in_memory(1 << 20, "755", 0).map_err(step("making a file system for the root"))?;
        attach(&root, new).map_err(step("mounting the root"))?;
        let inside = |path: &Path| new.join(path.strip_prefix("/").unwrap_or(path));
        for piece in &self.pieces {
            let named = || format!("mounting {}", piece.target.display());
            let tree = copy_at(&piece.at).map_err(step(named()))?;
            match piece.devices {
                true => kernel::set_mount(tree.as_fd(), c"", true, NO_SET_USER_ID | NO_EXEC | READ_ONLY),
                false => tame(&tree, piece.writable),
            }
            .map_err(step(named()))?;
            place(&tree, &inside(&piece.target)).map_err(step(named()))?;
        }
        for (path, to) in &self.links {
            symlink(to, inside(path)).map_err(step(format!("making the link {}", path.display())))?;
        }
        match self.has_own {
            true => self.place_own(new, processes),
            false => Ok(()),
        }
    }

    /// Puts folders and processes of a sandbox's own onto those of another one, of which this is a copy.
    pub fn cover_own(&self) -> Result<(), StepError> {
        self.place_own(Path::new("/"), Processes::Shown)
    }

    fn place_own(&self, new: &Path, processes: Processes) -> Result<(), StepError> {
        let inside = |path: &Path| new.join(path.strip_prefix("/").unwrap_or(path));
        for (path, bytes, flags) in [("/tmp", self.tmp_bytes, 0), ("/dev/shm", self.shm_bytes, NO_EXEC)] {
            let own =
                in_memory(bytes, "1777", flags).map_err(step(format!("making a file system for {path}")))?;
            place(&own, &inside(Path::new(path))).map_err(step(format!("mounting {path}")))?;
        }
        place(&processes.mount()?, &inside(Path::new("/proc"))).map_err(step("mounting /proc"))?;
        Ok(())
    }
}

/// Makes this folder, in which a root is, the root of this process; what was there before goes.
pub fn leave_for(root: &str) -> Result<(), StepError> {
    // The old root comes to lie on the new one, and goes.
    chdir(root).map_err(step("entering the root"))?;
    pivot_root(".", ".").map_err(step("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leaving the nursery's root"))?;
    chdir("/").map_err(step("entering the root"))
}

/// A copy of the tree of mounts at a place, which is nowhere yet.
pub fn copy_at(path: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path.as_ref(), flags)
}

/// From now on nothing can be added to the root.
pub fn seal() -> io::Result<()> {
    kernel::set_mount(CWD, c"/", false, READ_ONLY)
}

/// Puts a tree onto a folder.
pub fn attach(tree: &OwnedFd, at: &Path) -> rustix::io::Result<()> {
    move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// A file system in memory, which is nowhere yet.
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

/// What `/proc` shows: of others' processes, not even that they are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    /// Nothing of the kernel's settings, and nothing to be written.
    Shown,
    /// The same, but what a runtime writes to make namespaces.
    Written,
    /// All that there is, for a runtime that shows it to nobody.
    Whole,
}

impl Processes {
    /// A file system, which is nowhere yet.
    pub fn mount(self) -> Result<OwnedFd, StepError> {
        let mounted = || -> io::Result<OwnedFd> {
            let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_string(&made, "hidepid", "invisible")?;
            if self != Self::Whole {
                fsconfig_set_string(&made, "subset", "pid")?;
            }
            fsconfig_create(&made)?;
            let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            if self == Self::Shown {
                attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
            }
            Ok(fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
        };
        mounted().map_err(step(
            "mounting /proc (in a container, its own /proc must not be masked)",
        ))
    }
}
