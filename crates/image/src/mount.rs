//! Mounting and unmounting of images, and the table of mounts.

mod server;

use crate::{ImageId, tool};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Way in which images are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountMethod {
    /// By the kernel if that is possible, else through FUSE.
    #[default]
    Any,
    /// By the kernel, from a loop device: root only. The kernel then parses bytes that any user may have packed: see
    /// SECURITY.md.
    Kernel,
    /// By squashfuse, a process of the user that mounts the image. If root mounts it, a process of a user without
    /// rights.
    Fuse,
}

/// Mount options: device files and set-user-id bits in an image have no effect.
const OPTIONS: &str = "ro,nosuid,nodev";

/// Mounts the image read-only at a folder; the error lists the ways that were tried.
pub(crate) fn mount(id: &ImageId, image: &Path, at: &Path, way: MountMethod) -> Result<(), String> {
    let mut tried = Vec::new();
    if way != MountMethod::Fuse {
        match by_kernel(image, at) {
            Ok(()) => return Ok(()),
            Err(why) => tried.push(format!("by the kernel: {why}")),
        }
    }
    if way != MountMethod::Kernel {
        match by_fuse(id, image, at) {
            Ok(()) => return Ok(()),
            Err(why) => tried.push(format!("through FUSE: {why}")),
        }
    }
    Err(tried.join("; "))
}

fn by_kernel(image: &Path, at: &Path) -> Result<(), String> {
    if !geteuid().is_root() {
        return Err("only root may".into());
    }
    // `mount` ties the loop device to the mount, so it is freed even if this process dies in between.
    let mut command = Command::new("mount");
    command
        .args(["-n", "-t", "squashfs", "-o"])
        .arg(format!("{OPTIONS},loop"))
        .arg(image)
        .arg(at);
    tool::run(&mut command, "mount", "mount").map_err(|error| error.to_string())
}

fn by_fuse(id: &ImageId, image: &Path, at: &Path) -> Result<(), String> {
    if let Err(error) = fs::metadata("/dev/fuse") {
        return Err(format!(
            "/dev/fuse is missing ({error}): the kernel's module `fuse` is not loaded"
        ));
    }
    if geteuid().is_root() {
        return server::mount(id, image, at);
    }
    let start = |program: &'static str| {
        let mut command = Command::new(program);
        command.arg("-o").arg(OPTIONS).arg(image).arg(at);
        tool::run(&mut command, program, "squashfuse, and fuse3 for its fusermount")
    };
    // The first program is faster, but not installed everywhere.
    let started = match start("squashfuse_ll") {
        Err(crate::ImageError::Tool { .. }) => start("squashfuse"),
        other => other,
    };
    started.map_err(|error| error.to_string())
}

/// State of a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountState {
    Mounted,
    /// The process that served the mount is gone.
    Dead,
    Unmounted,
}

pub(crate) fn state(at: &Path) -> io::Result<MountState> {
    if !mount_points()?.iter().any(|point| point == at) {
        return Ok(MountState::Unmounted);
    }
    // Asks for data that only the server can provide. Other data the kernel may have cached, and would return even if
    // the server were dead.
    match statvfs(at) {
        Ok(_) => Ok(MountState::Mounted),
        Err(_) => Ok(MountState::Dead),
    }
}

/// Mount points that this process sees.
pub(crate) fn mount_points() -> io::Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let point = |line: &[u8]| Some(unescape(line.split(|byte| *byte == b' ').nth(4)?));
    Ok(table.split(|byte| *byte == b'\n').filter_map(point).collect())
}

/// Whether the mount at this folder also appears in namespaces that receive mounts from this process's namespace.
pub(crate) fn probe_shared(at: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut lines = table.split(|byte| *byte == b'\n');
    Ok(lines.any(|line| is_shared_line(line, at)))
}

/// Parses a line of the table. Its optional tagged fields are between the sixth word and a dash.
fn is_shared_line(line: &[u8], at: &Path) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    words.nth(4).is_some_and(|point| unescape(point) == at)
        && words
            .skip(1)
            .take_while(|word| *word != b"-")
            .any(|word| word.starts_with(b"shared:"))
}

/// Decodes octal escapes: the kernel writes blanks, line ends and backslashes like `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Attempts of unmounting, and the pause between two of them.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// Unmounts the folder. Fails while a file in it is open, or while it is a working directory, unless the process that
/// serves the mount is gone.
///
/// Tries repeatedly. If another thread starts a process, that process has all files open that this process had open,
/// even if this process has closed them since. That lasts until the new process runs its program, so no longer than the
/// start of a program.
pub(crate) fn unmount(at: &Path, state: MountState) -> io::Result<()> {
    for _ in 1..TRIES {
        match unmount_now(at, state) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    unmount_now(at, state)
}

fn unmount_now(at: &Path, state: MountState) -> io::Result<()> {
    let is_dead = state == MountState::Dead;
    if geteuid().is_root() {
        let detach = if is_dead {
            MntFlags::MNT_DETACH
        } else {
            MntFlags::empty()
        };
        return match umount2(at, MntFlags::UMOUNT_NOFOLLOW | detach) {
            // Another process has unmounted it already.
            Err(Errno::EINVAL) => Ok(()),
            other => other.map_err(io::Error::from),
        };
    }
    let unmount = |program: &'static str| {
        let mut command = Command::new(program);
        command.arg("-u").args(is_dead.then_some("-z")).arg("--").arg(at);
        tool::run(&mut command, program, "fuse3")
    };
    let done = match unmount("fusermount3") {
        Err(crate::ImageError::Tool { .. }) => unmount("fusermount"),
        other => other,
    };
    done.map_err(|error| {
        let said = error.to_string();
        let kind = if said.contains("busy") {
            io::ErrorKind::ResourceBusy
        } else {
            io::ErrorKind::Other
        };
        io::Error::new(kind, said)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_of_any_name_are_read() {
        assert_eq!(unescape(b"/a\\040b\\134c\\012"), Path::new("/a b\\c\n"));
        assert_eq!(unescape(b"/a\\9"), Path::new("/a\\9"));
        assert!(mount_points().unwrap().contains(&"/".into()));
        assert_eq!(state(Path::new("/nowhere")).unwrap(), MountState::Unmounted);
    }

    #[test]
    fn a_line_of_the_mount_table_says_which_other_namespaces_see_a_mount() {
        let shared = |line: &str| is_shared_line(line.as_bytes(), Path::new("/a b"));
        assert!(shared(
            "36 35 98:0 / /a\\040b ro,nosuid shared:1 master:2 - squashfs /dev/loop0 ro"
        ));
        assert!(!shared("36 35 98:0 / /a\\040b ro,nosuid - fuse.x shared:1 ro"));
        assert!(!shared("36 35 98:0 / /a ro,nosuid shared:1 - squashfs /dev/loop0 ro"));
        assert!(!shared("36 35 98:0 shared:1"));
    }
}
