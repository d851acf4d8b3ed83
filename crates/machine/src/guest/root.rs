//! The machine's environment for the worker: the port, and the sandbox's files as the root.

use hotlease_wire::machine::{MachineLimits, WorkerStart};
use nix::sys::resource::{Resource, setrlimit};
use nix::time::{ClockId, clock_settime};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_move, move_mount, open_tree};
use rustix::process::{chdir, chroot};
use rustix::system::{finit_module, sethostname};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Folder where the new root is assembled.
const NEW_ROOT: &str = "/new";
/// Folders in the machine's own memory.
const OWN_FOLDERS: [&str; 2] = ["/new/tmp", "/new/dev/shm"];
/// All devices that a worker may open.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Time in which the kernel must find its devices.
const DEVICES_LIMIT: Duration = Duration::from_secs(30);
/// Flag of `finit_module` for a compressed module file.
const COMPRESSED: u32 = 4;

/// Loads the modules that the kernel lacks, and opens the port to the monitor.
pub fn find_port() -> Result<File, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    for (source, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        mount_at(source, target, source, MountFlags::empty(), None)?;
    }
    let listed = fs::read_dir("/modules").map_err(|error| failed("listing modules", &error))?;
    let mut modules: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    modules.sort();
    for path in modules {
        let named = format!("loading {}", path.display());
        let file = File::open(&path).map_err(|error| failed(&named, &error))?;
        let is_compressed = path.extension().is_some_and(|extension| extension != "ko");
        let flags = if is_compressed { COMPRESSED } else { 0 };
        finit_module(&file, c"", flags as i32).map_err(|error| failed(&named, &error))?;
    }
    let until = Instant::now() + DEVICES_LIMIT;
    loop {
        if let Some(path) = named_port() {
            let opened = File::options().read(true).write(true).open(&path);
            return opened.map_err(|error| failed("opening the port", &error));
        }
        if Instant::now() > until {
            return Err("the kernel finds no port".into());
        }
        // No other process runs here, and the kernel's protocol for new devices takes longer than this wait.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn named_port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let ours = ports.filter_map(Result::ok).find(|port| {
        let name = fs::read_to_string(port.path().join("name"));
        name.is_ok_and(|name| name.trim() == "hotlease")
    })?;
    let device = Path::new("/dev").join(ours.file_name());
    device.exists().then_some(device)
}

/// Sets the clock to the host's time; the machine may have no clock of its own.
pub fn set_clock(now_ns: u64) -> io::Result<()> {
    let now = Duration::from_nanos(now_ns);
    Ok(clock_settime(ClockId::CLOCK_REALTIME, now.into())?)
}

/// Opens the device by which the kernel asks about files; the second handle is for the answers.
pub fn open_fuse() -> io::Result<(File, File)> {
    let fuse = File::options().read(true).write(true).open("/dev/fuse")?;
    let answered = fuse.try_clone()?;
    Ok((fuse, answered))
}

/// Mounts the sandbox's files, as the monitor provides them, at the place of the worker's future root.
pub fn mount_files(fuse: &File) -> Result<(), String> {
    let descriptor = fuse.as_raw_fd();
    let options = format!("fd={descriptor},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other");
    let options = CString::new(options).map_err(|error| error.to_string())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount_at("hotlease", NEW_ROOT, "fuse", flags, Some(&options))
}

/// Makes these files the root. The machine's own folders replace the folders that a sandbox has of its own.
pub fn enter(run: &WorkerStart) -> Result<(), String> {
    let shown = run.shown.iter().map(|path| path_in_new_root(path));
    let hidden = shown.filter(|path| OWN_FOLDERS.iter().any(|own| path.starts_with(own)));
    let hidden: Vec<HiddenMount> = hidden.map(HiddenMount::find).collect::<Result<_, _>>()?;
    let own = MountFlags::NOSUID | MountFlags::NODEV;
    mount_at(
        "proc",
        "/new/proc",
        "proc",
        own | MountFlags::NOEXEC,
        Some(c"hidepid=invisible"),
    )?;
    mount_in_memory(OWN_FOLDERS[0], own, run.limits.tmp_bytes)?;
    make_devices().map_err(|error| format!("making /dev: {error}"))?;
    fs::create_dir_all(OWN_FOLDERS[1]).map_err(|error| format!("making /dev/shm: {error}"))?;
    mount_in_memory(OWN_FOLDERS[1], own | MountFlags::NOEXEC, run.limits.shm_bytes)?;
    for (name, to) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        // A link that exists already is fine.
        let _ = std::os::unix::fs::symlink(format!("/proc/self/fd{to}"), Path::new("/new/dev").join(name));
    }
    for hidden in hidden {
        hidden.show()?;
    }
    let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    chdir(NEW_ROOT).map_err(failed("entering the root"))?;
    mount_move(".", "/").map_err(failed("changing the root"))?;
    chroot(".").map_err(failed("changing the root"))?;
    chdir("/").map_err(failed("entering the root"))?;
    sethostname(b"sandbox").map_err(failed("naming the host"))
}

/// Makes the devices that a sandbox has, and none of the machine's own.
fn make_devices() -> Result<(), String> {
    let at = "/new/dev";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_at("tmpfs", at, "tmpfs", flags, Some(c"mode=755,nr_inodes=64,size=64k"))?;
    for name in DEVICES {
        let failed = |error: io::Error| format!("{name}: {error}");
        let number = fs::metadata(Path::new("/dev").join(name)).map_err(failed)?.rdev();
        let path = Path::new(at).join(name);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), number).map_err(|errno| failed(errno.into()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
    }
    Ok(())
}

/// Path of a worker's file before its root becomes the root.
fn path_in_new_root(path: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    Path::new(NEW_ROOT).join(path.strip_prefix("/").unwrap_or(path))
}

/// A file or folder of the sandbox beneath a folder that the machine replaces by its own.
struct HiddenMount {
    at: PathBuf,
    is_folder: bool,
    mount: OwnedFd,
}

impl HiddenMount {
    /// Opens the file or folder, before it is hidden.
    fn find(at: PathBuf) -> Result<Self, String> {
        let failed = |error: io::Error| format!("finding {}: {error}", at.display());
        let is_folder = fs::metadata(&at).map_err(failed)?.is_dir();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, &at, flags).map_err(|errno| failed(errno.into()))?;
        Ok(Self { at, is_folder, mount })
    }

    /// Mounts it again at the same place.
    fn show(self) -> Result<(), String> {
        let failed = |error: io::Error| format!("showing {}: {error}", self.at.display());
        let folder = if self.is_folder {
            Some(self.at.as_path())
        } else {
            self.at.parent()
        };
        fs::create_dir_all(folder.unwrap_or(&self.at)).map_err(failed)?;
        if !self.is_folder {
            // A file beneath another folder that is shown exists already.
            File::options()
                .append(true)
                .create(true)
                .open(&self.at)
                .map_err(failed)?;
        }
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(self.mount.as_fd(), "", CWD, &self.at, empty).map_err(|errno| failed(errno.into()))
    }
}

fn mount_at(source: &str, target: &str, kind: &str, flags: MountFlags, options: Option<&CStr>) -> Result<(), String> {
    let kind = CString::new(kind).map_err(|error| error.to_string())?;
    mount(source, target, &kind, flags, options).map_err(|error| format!("mounting {target}: {error}"))
}

fn mount_in_memory(target: &str, flags: MountFlags, bytes: u64) -> Result<(), String> {
    let options = CString::new(format!("mode=1777,nr_inodes=65536,size={bytes}")).map_err(|error| error.to_string())?;
    mount_at("tmpfs", target, "tmpfs", flags, Some(&options))
}

/// Sets the limits of this process and of the processes that it starts.
pub fn limit(limits: &MachineLimits) -> io::Result<()> {
    for (resource, most) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, limits.files),
        (Resource::RLIMIT_NPROC, limits.processes),
        (Resource::RLIMIT_FSIZE, limits.file_bytes),
        (Resource::RLIMIT_MSGQUEUE, 0),
    ] {
        setrlimit(resource, most, most)?;
    }
    Ok(())
}

/// Whether the kernel has killed a process for lack of memory.
pub fn has_killed_for_memory() -> bool {
    let counts = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let killed = counts.lines().find_map(|line| line.strip_prefix("oom_kill "));
    killed.is_some_and(|count| count.trim() != "0")
}
