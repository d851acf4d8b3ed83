//! Attempts at devices that were not granted.

use crate::attempt::{AttemptResult, Capability, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(super) const THEME: Threat = Threat {
    threat: "use devices that were not granted",
    attempts: attempts! {
        "mknod", "make a device node of its own for the host's memory", mknod, with_capability(Capability::Mknod);
        "dev-mem", "open the host's memory or its ports",
            dev_mem, with_capability(Capability::SysRawio), needs("/dev/mem or /dev/port");
        "dev-kmsg", "write into the kernel's log",
            dev_kmsg, with_capability(Capability::DacOverride), needs("/dev/kmsg");
        "dev-disk", "open a disk", dev_disk, with_capability(Capability::DacReadSearch), needs("disks");
        "dev-loop", "open loop devices, by which files become disks",
            dev_loop, with_capability(Capability::DacOverride), needs("/dev/loop-control");
        "dev-kvm", "open the host's hypervisor",
            dev_kvm, with_capability(Capability::DacOverride), needs("/dev/kvm");
        "dev-fuse", "open a file system of its own (/dev/fuse)",
            dev_fuse, with_capability(Capability::DacOverride), needs("/dev/fuse");
        "dev-tun", "open a network interface of its own (/dev/net/tun)",
            dev_tun, with_capability(Capability::DacOverride), needs("/dev/net/tun");
        "dev-accelerator", "open a GPU, a fabric's adapter or a sound card",
            dev_accelerator, with_capability(Capability::DacOverride), needs("one of them");
        "dev-console", "open a console of the host",
            dev_console, with_capability(Capability::DacOverride), needs("consoles");
        "dev-terminal", "open the agent's terminal, into which it could type", dev_terminal, needs("a terminal");
        "terminal-list", "find another user's terminal in /dev/pts", terminal_list, needs("a terminal in use");
        "terminal-input", "type into a terminal as if a user had (TIOCSTI)",
            terminal_input, with_capability(Capability::SysAdmin), needs("pseudo-terminals");
        "dev-list", "find a device that no function needs in a listing of /dev", dev_list;
    },
};

/// Opens the first of these files that can be opened, for writing or for reading.
fn open_one(files: &[&str], write: bool) -> AttemptResult {
    let mut stopped = None;
    for file in files {
        match OpenOptions::new().read(!write).write(write).open(file) {
            Ok(_) => return Ok(format!("opened {file}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => stopped = Some(with_place(file)(error)),
        }
    }
    match stopped {
        Some(stop) => Err(stop),
        None => denied("not there"),
    }
}

fn mknod() -> AttemptResult {
    let name = super::files::own_path("-device")?;
    let path = CString::new(name.as_os_str().as_bytes()).expect("a path has no null byte");
    let memory = 0x101; // character device 1, 1
    kernel!(
        SYS_mknodat,
        libc::AT_FDCWD,
        path.as_ptr(),
        libc::S_IFCHR | 0o600,
        memory
    )?;
    fs::remove_file(name)?;
    Ok("made a device node".into())
}

fn dev_mem() -> AttemptResult {
    open_one(&["/dev/mem", "/dev/port"], false)
}

fn dev_kmsg() -> AttemptResult {
    open_one(&["/dev/kmsg"], true)
}

fn dev_disk() -> AttemptResult {
    open_one(&["/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/dm-0"], false)
}

fn dev_loop() -> AttemptResult {
    open_one(&["/dev/loop-control", "/dev/loop0"], true)
}

fn dev_kvm() -> AttemptResult {
    open_one(&["/dev/kvm"], true)
}

fn dev_fuse() -> AttemptResult {
    open_one(&["/dev/fuse"], true)
}

fn dev_tun() -> AttemptResult {
    open_one(&["/dev/net/tun"], true)
}

fn dev_accelerator() -> AttemptResult {
    let names = [
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/kfd",
        "/dev/dri/renderD128",
        "/dev/dri/card0",
        "/dev/infiniband/uverbs0",
        "/dev/snd/seq",
    ];
    open_one(&names, true)
}

fn dev_console() -> AttemptResult {
    // Virtual consoles only, because opening a serial console may wait for a line.
    open_one(&["/dev/tty0", "/dev/tty1"], true)
}

fn dev_terminal() -> AttemptResult {
    open_one(&["/dev/tty"], true)
}

fn terminal_list() -> AttemptResult {
    let mut names = fs::read_dir("/dev/pts").map_err(with_place("/dev/pts"))?.flatten();
    match names.find(|entry| entry.file_name() != "ptmx") {
        Some(entry) => Ok(format!("sees {}", entry.path().display())),
        None => denied("no terminal of another user"),
    }
}

fn terminal_input() -> AttemptResult {
    // Writes into a terminal that the attempt has made, which no process reads.
    let ptmx = kernel!(
        SYS_openat,
        libc::AT_FDCWD,
        c"/dev/ptmx".as_ptr(),
        libc::O_RDWR | libc::O_NOCTTY
    )?;
    let unlocked = 0i32;
    kernel!(SYS_ioctl, ptmx, libc::TIOCSPTLCK, &raw const unlocked)?;
    let terminal = kernel!(SYS_ioctl, ptmx, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY)?;
    kernel!(SYS_ioctl, terminal, libc::TIOCSTI, c"x".as_ptr())?;
    Ok("typed a letter".into())
}

/// Devices that libraries look for; all are harmless.
const HARMLESS: [&str; 16] = [
    "null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx",
    "mqueue", "core", "log",
];

fn dev_list() -> AttemptResult {
    for entry in fs::read_dir(Path::new("/dev")).map_err(with_place("/dev"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_device = entry
            .file_type()
            .is_ok_and(|kind| kind.is_block_device() || kind.is_char_device());
        if is_device && !HARMLESS.contains(&name.as_str()) {
            return Ok(format!("sees {}", entry.path().display()));
        }
    }
    denied("only what every program may use")
}
