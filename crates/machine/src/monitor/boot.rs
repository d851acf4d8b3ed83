//! Start of a machine: its command line, and the file system that its kernel starts from.

use crate::monitor::modules;
use hotlease_fabric::clock::measure_tick_hz;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Largest number of processors of a machine, even if its sandbox has more cores. If a worker has more slots than its
/// machine has processors, several slots share a processor.
pub const PROCESSORS_MAX: usize = 32;
/// Time for which the host's counter is measured against its clock.
const CLOCK: Duration = Duration::from_millis(20);
/// Folder of the libraries that the guest is linked with.
const LIBRARIES: &str = "libs";
/// Folder of the kernel's modules, in the order of their names.
pub const MODULES: &str = "modules";
/// Path of the loader that every program for this architecture names.
const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "lib/ld-linux-aarch64.so.1"
} else {
    "lib64/ld-linux-x86-64.so.2"
};

/// Parts of a machine.
pub struct MachineParts<'a> {
    pub qemu: &'a Path,
    pub kernel: &'a Path,
    pub emulated: bool,
    pub memory_mib: u32,
    pub processors: usize,
    /// Result of [`first_files`].
    pub files: &'a File,
    pub memory: MachineMemory<'a>,
    pub port: &'a Path,
    /// Socket of QEMU's control connection, if there is one.
    pub control: Option<&'a Path>,
    pub console: &'a Path,
}

/// Location of a machine's memory.
pub enum MachineMemory<'a> {
    /// Memory of QEMU alone.
    Own,
    /// This file; other machines get copies of it later.
    Kept(&'a File),
    /// A copy of this file, made page by page on writes. The machine waits for the state of its devices.
    Copied(&'a File),
}

impl MachineParts<'_> {
    /// Starts the machine. It ends with the sandbox of this process.
    pub fn start(&self) -> Result<Child, String> {
        let acceleration = if self.emulated { "tcg" } else { "kvm" };
        let mut machine = format!("microvm,accel={acceleration},rtc=on");
        let mut qemu = Command::new(self.qemu);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none"])
            .args(["-cpu", if self.emulated { "max" } else { "host" }])
            .args(["-m", &self.memory_mib.to_string()])
            .args(["-smp", &self.processors.to_string()])
            .arg("-kernel")
            .arg(self.kernel)
            .args(["-initrd", &inherited_path(self.files)?])
            .args(["-append", &command_line(self.emulated)])
            .args(["-serial", &format!("file:{}", self.console.display())])
            .args(["-device", "virtio-serial-device", "-chardev"])
            .arg(format!("socket,id=port,path={}", self.port.display()))
            .args(["-device", "virtserialport,chardev=port,name=hotlease"])
            .args(["-device", "virtio-rng-device"]);
        if let Some(control) = self.control {
            qemu.arg("-chardev")
                .arg(format!("socket,id=control,path={}", control.display()))
                .args(["-mon", "chardev=control,mode=control"]);
        }
        let file = match self.memory {
            MachineMemory::Own => None,
            MachineMemory::Kept(file) => Some((file, "on")),
            MachineMemory::Copied(file) => {
                qemu.args(["-incoming", "defer"]);
                Some((file, "off"))
            }
        };
        if let Some((file, share)) = file {
            let path = inherited_path(file)?;
            qemu.arg("-object").arg(format!(
                "memory-backend-file,id=memory,size={}M,mem-path={path},share={share}",
                self.memory_mib
            ));
            machine.push_str(",memory-backend=memory");
        }
        qemu.args(["-machine", &machine]);
        qemu.env_clear().stdin(Stdio::null());
        qemu.spawn()
            .map_err(|error| format!("{} cannot be run: {error}", self.qemu.display()))
    }
}

/// Path by which QEMU opens a file that it inherits.
pub fn inherited_path(file: &File) -> Result<String, String> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|error| format!("leaving a file to QEMU: {error}"))?;
    Ok(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Makes a file in memory, without a path.
pub fn in_memory(name: &CStr) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    Ok(memfd_create(name, flags)?.into())
}

fn command_line(emulated: bool) -> String {
    // A kernel that panics ends QEMU, which ends the worker. Arguments that the kernel does not recognise become
    // environment variables of its first program.
    let mut line = format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t pci=off random.trust_cpu=on LD_LIBRARY_PATH=/{LIBRARIES}"
    );
    if emulated {
        // An emulated processor counts the host's ticks. A kernel that has to measure their rate compares them with an
        // emulated timer. On a host with other work that timer is late: the kernel then hangs for ever, or it uses the
        // late timer, and its time runs too fast.
        let khz = measure_tick_hz(CLOCK) / 1000;
        line += &format!(" tsc_early_khz={khz} tsc=reliable no_timer_check");
    }
    line
}

/// Makes the first file system: only this program, and the parts of the kernel that it needs to begin.
pub fn first_files(modules: &Path) -> Result<File, String> {
    let failed = |error: io::Error| format!("its first files: {error}");
    let mut files = CpioArchive {
        to: io::BufWriter::new(in_memory(c"hotlease-initramfs").map_err(failed)?),
        inode: 1,
    };
    for folder in ["dev", "proc", "sys", "new", "lib", "lib64", LIBRARIES, MODULES] {
        files.add(folder, 0o040_755, &[]).map_err(failed)?;
    }
    let own = |path: &Path| std::fs::read(path).map_err(|error| format!("reading {}: {error}", path.display()));
    files
        .add("init", 0o100_755, &own(Path::new("/proc/self/exe"))?)
        .map_err(failed)?;
    for library in libraries().map_err(failed)? {
        let Some(name) = library.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let bytes = own(&library)?;
        if name.starts_with("ld-") {
            files.add(LOADER, 0o100_755, &bytes).map_err(failed)?;
        }
        files
            .add(&format!("{LIBRARIES}/{name}"), 0o100_755, &bytes)
            .map_err(failed)?;
    }
    for (number, module) in modules::needed_files(modules)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        files
            .add(&format!("{MODULES}/{number:03}-{name}"), 0o100_644, &own(module)?)
            .map_err(failed)?;
    }
    files.end().map_err(failed)
}

/// An archive in the format that kernels unpack (cpio).
struct CpioArchive {
    to: io::BufWriter<File>,
    inode: u32,
}

impl CpioArchive {
    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let entry = cpio::newc::Builder::new(name).ino(self.inode).mode(mode).nlink(1);
        let mut writer = entry.write(&mut self.to, length);
        writer.write_all(bytes)?;
        writer.finish().map(drop)
    }

    fn end(mut self) -> io::Result<File> {
        cpio::newc::trailer(&mut self.to)?;
        self.to.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// Libraries that this program is linked with, including its loader: the libraries that are mapped in this process.
fn libraries() -> io::Result<BTreeSet<PathBuf>> {
    let mut maps = String::new();
    File::open("/proc/self/maps")?.read_to_string(&mut maps)?;
    let paths = maps.lines().filter_map(|line| line.split_once('/'));
    let paths = paths.map(|(_, path)| Path::new("/").join(path));
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".so") || name.contains(".so.")
    };
    Ok(paths.filter(is_library).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_finds_its_loader_and_its_libraries() {
        let found = libraries().expect("this process has maps");
        let has = |start: &str| {
            found.iter().any(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(start))
            })
        };
        assert!(has("ld-") && has("libc."), "{found:?}");
    }

    #[test]
    fn emulated_kernels_are_told_how_fast_their_clock_is() {
        let line = command_line(true);
        let khz = line.split(' ').find_map(|word| word.strip_prefix("tsc_early_khz="));
        let khz: u64 = khz.expect("told").parse().expect("a number");
        assert!((100_000..10_000_000).contains(&khz), "{khz} kHz");
        assert!(!command_line(false).contains("tsc"), "others have the host's own clock");
    }

    #[test]
    fn archives_are_what_kernels_unpack() {
        let file = tempfile::tempfile().expect("a file");
        let mut files = CpioArchive {
            to: io::BufWriter::new(file.try_clone().expect("a descriptor")),
            inode: 1,
        };
        files.add("folder", 0o040_755, &[]).expect("written");
        files.add("folder/file", 0o100_644, b"bytes").expect("written");
        let mut file = files.end().expect("written");
        io::Seek::rewind(&mut file).expect("a file can be read again");
        let mut reader = cpio::newc::Reader::new(&file).expect("an entry");
        assert_eq!((reader.entry().name(), reader.entry().mode()), ("folder", 0o040_755));
        reader = cpio::newc::Reader::new(reader.finish().expect("its end")).expect("an entry");
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("its bytes");
        assert_eq!(
            (reader.entry().name(), bytes.as_slice()),
            ("folder/file", &b"bytes"[..])
        );
    }
}
