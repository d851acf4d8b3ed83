//! Settings of a site's virtual machines (QEMU, kernel, memory), and the search for their parts.

use crate::container::find;
use crate::workload::{Program, WORKER_BINARY, WorkerReach};
use hotlease_nursery::order::WORKER_INSIDE;
use hotlease_nursery::policy::{Mount, Policy};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// File name of the program that is the monitor of a machine, and process 1 in the machine.
pub const MACHINE_BINARY: &str = "hotlease-machine";

/// Paths of [`MACHINE_BINARY`], the kernel and its modules in the sandbox around a machine.
const MONITOR_INSIDE: &str = "/hotlease-machine";
const KERNEL_INSIDE: &str = "/hotlease-kernel";
const MODULES_INSIDE: &str = "/hotlease-modules";

/// Memory that QEMU needs beyond the memory of its machine, bytes.
const OWN_BYTES: u64 = 384 << 20;
/// Number of open files that all processes of a machine together may have, in addition to the limit of any worker. The
/// monitor has a descriptor for each open file.
const OPEN_FILES: u32 = 16 << 10;
/// Least memory of a machine, bytes: a kernel does not start with less.
const MEMORY_BYTES_MIN: u64 = 192 << 20;

/// Names of QEMU in distributions. The second is used by distributions in which users are not meant to run QEMU by
/// hand.
const QEMU: [&str; 2] = [concat!("qemu-system-", "x86_64"), "/usr/libexec/qemu-kvm"];

/// Virtual machines of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Kernel of the machines: a file `vmlinuz-VERSION`, whose modules are in `/lib/modules/VERSION`, or in
    /// `../lib/modules/VERSION` beside its folder. `None` (the default) stands for the newest usable kernel in `/boot`.
    pub kernel: Option<PathBuf>,
    /// Whether to run without the processor's support for virtual machines (default: no). This is a hundred times
    /// slower and, according to QEMU's authors, no boundary against hostile code.
    pub emulated: bool,
    /// Memory of each machine, bytes (default: 1 GiB). The host allocates this memory when the machine first uses it.
    pub memory_bytes: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            kernel: None,
            emulated: false,
            memory_bytes: 1 << 30,
        }
    }
}

/// Paths of a machine's parts.
#[derive(Debug, Clone)]
pub struct MachinePaths {
    /// The QEMU program.
    pub qemu: PathBuf,
    /// The kernel.
    pub kernel: PathBuf,
    /// Folder of the kernel's modules.
    pub modules: PathBuf,
}

/// Parts, monitor and settings, all checked.
#[derive(Debug, Clone)]
pub(crate) struct MachineSetup {
    machine: Machine,
    parts: MachinePaths,
    monitor: PathBuf,
}

impl Machine {
    /// Finds the parts of a machine. The error says what is missing, and what to do about it.
    pub fn find_parts(&self) -> Result<MachinePaths, String> {
        let advice = "install it (Debian: apt-get install qemu-system-x86), or ask for `namespace`";
        if !cfg!(target_arch = "x86_64") {
            return Err("virtual machines are made on x86-64 only; ask for `namespace`".into());
        }
        let qemu = QEMU.iter().find_map(|name| find(Path::new(name)));
        let qemu = qemu.ok_or_else(|| format!("{} is not there: {advice}", QEMU[0]))?;
        if !self.emulated {
            check_kvm(Path::new("/dev/kvm"), Path::new("/sys/module"))?;
        }
        let (kernel, modules) = match &self.kernel {
            Some(named) => with_modules(named).ok_or_else(|| {
                format!(
                    "{} is no kernel vmlinuz-VERSION with modules in /lib/modules/VERSION (--sandbox-kernel)",
                    named.display()
                )
            })?,
            None => newest(Path::new("/boot")).ok_or(
                "no kernel with modules is in /boot: install one (Debian: apt-get install linux-image-amd64), or name one by \
                 --sandbox-kernel",
            )?,
        };
        Ok(MachinePaths { qemu, kernel, modules })
    }

    /// Finds everything that a machine needs. `monitor` is the expected path of the monitor's program. The error says
    /// what is missing, and what to do about it.
    pub(crate) fn resolve(&self, monitor: &Path) -> Result<MachineSetup, String> {
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(format!(
                "--sandbox-machine-memory: a machine needs at least {} MiB",
                MEMORY_BYTES_MIN >> 20
            ));
        }
        if !monitor.is_file() {
            return Err(format!(
                "the program {} is not there; build it with `make build`, or name it in HOTLEASE_MACHINE",
                monitor.display()
            ));
        }
        let parts = self.find_parts()?;
        Ok(MachineSetup {
            machine: self.clone(),
            parts,
            monitor: monitor.to_owned(),
        })
    }

    /// Policy of the sandboxes around machines.
    pub(crate) fn policy(&self, site: &Policy) -> Policy {
        Policy {
            kvm: !self.emulated,
            // The memory of the machine is the limit, not the memory of its lease.
            memory_bytes: self.memory_bytes.saturating_add(OWN_BYTES),
            files: site.files.saturating_add(OPEN_FILES),
            // A machine's memory is a file in the sandbox. The machine itself enforces the site's limit on the sizes of
            // files.
            file_bytes: site.file_bytes.max(self.memory_bytes),
            ..site.clone()
        }
    }

    /// Describes the guarantee of kind `microvm` that emulated machines do not give. Returns `None` if machines are not
    /// emulated.
    pub(crate) fn lacking(&self) -> Option<String> {
        self.emulated.then(|| {
            "the processor's boundary: machines are emulated (--sandbox-emulated), and what is left is the sandbox around them".to_owned()
        })
    }
}

impl MachineSetup {
    /// The monitor's program, which makes a machine for `program`, or for the native worker `binary`, in a sandbox of
    /// this policy. If `program` is a zygote, the monitor is a zygote, too: it saves its machine, and the machines of
    /// other monitors continue from the saved state.
    pub(crate) fn monitor(
        &self,
        policy: &Policy,
        (program, zygote): (Option<&Program>, bool),
        reach: &WorkerReach,
        binary: &Path,
    ) -> Program {
        let shown = |source: &Path, target: &str| Mount {
            source: source.to_owned(),
            target: target.into(),
            writable: false,
        };
        let native = Program {
            path: WORKER_INSIDE.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: "/".into(),
            mounts: vec![shown(binary, WORKER_INSIDE)],
            held: crate::KeepAlive::default(),
        };
        let (program, name, functions) = match program {
            None => (&native, OsString::from(WORKER_BINARY), 0),
            Some(program) => (program, program.path.clone().into_os_string(), 1),
        };
        let own = [
            shown(&self.monitor, MONITOR_INSIDE),
            shown(&self.parts.kernel, KERNEL_INSIDE),
            shown(&self.parts.modules, MODULES_INSIDE),
        ];
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--qemu", self.parts.qemu.clone().into());
        add("--kernel", KERNEL_INSIDE.into());
        add("--modules", MODULES_INSIDE.into());
        add("--memory-mib", (self.machine.memory_bytes >> 20).to_string().into());
        add("--files", policy.files.to_string().into());
        add("--file-bytes", policy.file_bytes.to_string().into());
        add("--functions", functions.to_string().into());
        add("--directory", program.directory.clone().into());
        for declared in &reach.directories {
            // Even if the directory is read-only for this lease, other processes may change its files.
            for name in ["--changing", "--shown"] {
                add(name, declared.target.as_os_str().to_owned());
            }
        }
        for mount in policy.mounts.iter().chain(&program.mounts) {
            add("--shown", mount.target.as_os_str().to_owned());
        }
        let flags = [("--emulated", self.machine.emulated), ("--zygote", zygote)];
        arguments.extend(flags.into_iter().filter(|(_, set)| *set).map(|(flag, _)| flag.into()));
        arguments.extend(["--".into(), program.path.clone().into(), name]);
        arguments.extend(program.arguments.iter().cloned());
        Program {
            path: MONITOR_INSIDE.into(),
            arguments,
            // The monitor gets no variables of the worker, because it runs outside the machine. The worker's variables
            // are passed wrapped, under other names.
            environment: Vec::new(),
            directory: "/".into(),
            mounts: program.mounts.iter().cloned().chain(own).collect(),
            held: program.held.clone(),
        }
    }
}

/// Checks that KVM can be used; the error says why not. `modules` is the folder in which the kernel lists its loaded
/// modules.
fn check_kvm(device: &Path, modules: &Path) -> Result<(), String> {
    let device_is = match File::options().read(true).write(true).open(device) {
        // PVM cannot be used, even if the agent can open the device.
        _ if is_of_pvm(modules) => format!(
            "{} belongs to the module kvm_pvm, which runs only guests whose kernels are made for PVM: virtual machines need a host \
             with VT-x or AMD-V (kvm_intel or kvm_amd); a host that is itself a virtual machine needs nested virtualization, too",
            device.display()
        ),
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!(
            "there is no {}: virtual machines need a processor with virtualization that the firmware, or the host of this machine, \
             lets Linux use (load kvm_intel or kvm_amd)",
            device.display()
        ),
        Err(error) => format!(
            "{} cannot be used: {error}; the agent's user has to be in the group that it belongs to (usually kvm)",
            device.display()
        ),
    };
    Err(format!(
        "{device_is}; for trials, --sandbox-emulated makes machines without it, which are slow"
    ))
}

/// Whether this node's KVM is PVM, which works without the processor's support for virtual machines. A kernel without
/// support for PVM never starts in a PVM machine: QEMU gives up at a register that it cannot set, or the machine stops
/// at an instruction that is not emulated.
fn is_of_pvm(modules: &Path) -> bool {
    let has = |name: &str| modules.join(name).exists();
    has("kvm_pvm") && !has("kvm_intel") && !has("kvm_amd")
}

/// Paths of a kernel, and of the folder of its modules.
fn with_modules(kernel: &Path) -> Option<(PathBuf, PathBuf)> {
    let kernel = kernel.canonicalize().ok().filter(|kernel| kernel.is_file())?;
    let version = kernel.file_name()?.to_str()?.strip_prefix("vmlinuz-")?;
    let beside = kernel.parent()?.parent()?.join("lib/modules");
    let places = [Path::new("/lib/modules"), &beside].map(|place| place.join(version));
    let modules = places.into_iter().find(|place| place.join("modules.dep").is_file())?;
    // Resolved, because the path is mounted and must contain no links.
    let modules = modules.canonicalize().ok()?;
    Some((kernel, modules))
}

/// The newest kernel in a folder.
fn newest(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let names = std::fs::read_dir(folder).ok()?;
    let found = names.filter_map(|entry| with_modules(&entry.ok()?.path()));
    found.max_by_key(|(kernel, _)| numbers(kernel))
}

/// The numbers in a version, so that 6.10 comes after 6.9.
fn numbers(kernel: &Path) -> Vec<u64> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parts = name.split(|character: char| !character.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(folder: &Path, version: &str) {
        let modules = folder.join("lib/modules").join(version);
        std::fs::create_dir_all(folder.join("boot")).expect("made");
        std::fs::create_dir_all(&modules).expect("made");
        std::fs::write(folder.join("boot").join(format!("vmlinuz-{version}")), "").expect("written");
        std::fs::write(modules.join("modules.dep"), "").expect("written");
    }

    #[test]
    fn the_newest_kernel_that_has_modules_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        kernel(folder.path(), "6.9.0-1");
        kernel(folder.path(), "6.10.0-1");
        std::fs::write(folder.path().join("boot/vmlinuz-7.0"), "").expect("written");
        let (kernel, modules) = newest(&folder.path().join("boot")).expect("there are two");
        assert!(kernel.ends_with("boot/vmlinuz-6.10.0-1"), "{}", kernel.display());
        assert!(modules.ends_with("lib/modules/6.10.0-1"), "{}", modules.display());
        assert_eq!(
            with_modules(&folder.path().join("boot/vmlinuz-7.0")),
            None,
            "it has none"
        );
    }

    #[test]
    fn a_missing_or_forbidden_hypervisor_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let none = folder.path();
        let why = check_kvm(&folder.path().join("kvm"), none).expect_err("it is not there");
        assert!(
            why.starts_with("there is no ") && why.contains("--sandbox-emulated"),
            "{why}"
        );
        // No process can open a folder for writing, not even root.
        let why = check_kvm(folder.path(), none).expect_err("no device");
        assert!(why.contains("cannot be used") && why.contains("group"), "{why}");
        assert_eq!(check_kvm(Path::new("/dev/null"), none), Ok(()));
    }

    #[test]
    fn a_hypervisor_that_runs_only_kernels_made_for_it_is_reported_with_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = Path::new("/dev/null");
        for (module, is_good) in [("kvm", true), ("kvm_pvm", false), ("kvm_amd", true)] {
            std::fs::create_dir(folder.path().join(module)).expect("made");
            let can = check_kvm(device, folder.path());
            assert_eq!(can.is_ok(), is_good, "with {module}: {can:?}");
            let Err(why) = can else { continue };
            for word in ["kvm_pvm", "made for PVM", "nested", "--sandbox-emulated"] {
                assert!(why.contains(word), "{why}");
            }
        }
    }

    #[test]
    fn all_processes_of_a_machine_may_together_open_more_files_than_one_of_them() {
        let site = Policy::default();
        let around = Machine::default().policy(&site);
        assert_eq!(around.files - site.files, OPEN_FILES);
        let parts = MachinePaths {
            qemu: "/qemu".into(),
            kernel: "/kernel".into(),
            modules: "/modules".into(),
        };
        let found = MachineSetup {
            machine: Machine::default(),
            parts,
            monitor: "/bin/monitor".into(),
        };
        let monitor = found.monitor(&site, (None, false), &WorkerReach::default(), Path::new("/bin/worker"));
        let files = monitor.arguments.iter().position(|argument| argument == "--files");
        let limit = files.and_then(|at| monitor.arguments.get(at + 1)).expect("an argument");
        assert_eq!(*limit, *site.files.to_string(), "the limit of each process");
    }

    #[test]
    fn a_missing_part_is_reported_with_a_remedy() {
        let own = std::env::current_exe().expect("this program");
        let small = Machine {
            memory_bytes: 1 << 20,
            emulated: true,
            ..Machine::default()
        };
        let missing = Machine {
            kernel: Some("/nowhere/vmlinuz-1".into()),
            emulated: true,
            ..Machine::default()
        };
        let there = find(Path::new(QEMU[0])).is_some();
        for (machine, monitor, word) in [
            (&small, own.as_path(), "--sandbox-machine-memory"),
            (&missing, own.as_path(), "--sandbox-kernel"),
            (&missing, Path::new("/nowhere/hotlease-machine"), "HOTLEASE_MACHINE"),
        ] {
            let why = machine.resolve(monitor).expect_err("something is missing");
            // Without QEMU, the missing QEMU is reported before a missing kernel.
            let is_elsewhere = there || word != "--sandbox-kernel";
            let word = if is_elsewhere { word } else { "apt-get install" };
            assert!(why.contains(word), "{why}");
        }
    }
}
