//! Start of a program without hotlease: as a plain process, in bubblewrap, in installed container runtimes, and in
//! a virtual machine.
//!
//! Except as a plain process, the program sees only the system's folders and the folders that it needs, read-only, and
//! has no network. The measured time ends at the first byte that the program prints.

use super::plain_linux::PlainLinux;
use super::program::{Program, last_word};
use super::series::SkippedRow;
use anyhow::{Context, bail, ensure};
use hotlease_sandbox::Machine;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Folders that programs expect. They are empty unless a folder of the host is shown in them.
const EMPTY: [&str; 10] = ["proc", "sys", "dev", "tmp", "home", "etc", "root", "var", "run", "mnt"];
/// Links into `/usr` on most systems, folders on others.
const SYSTEM: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];
/// Mount point of the second hierarchy of control groups (v2), next to the first (v1).
const UNIFIED: &str = "/sys/fs/cgroup/unified";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Bubblewrap,
    Crun,
    Charliecloud,
    Podman,
    /// A plain Linux booted in QEMU.
    Qemu,
}

impl Tool {
    const ALL: [Self; 5] = [
        Self::Bubblewrap,
        Self::Crun,
        Self::Charliecloud,
        Self::Podman,
        Self::Qemu,
    ];

    /// Whether the tool can start the program. QEMU boots from an archive, which would be too large with the many files
    /// of an interpreter.
    fn starts(self, program: &Program) -> bool {
        self != Self::Qemu || program.interpreter().is_none()
    }

    fn program(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bwrap",
            Self::Crun => "crun",
            Self::Charliecloud => "ch-run",
            Self::Podman => "podman",
            Self::Qemu => "qemu-system-x86_64",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::Charliecloud => "Charliecloud",
            Self::Qemu => "a Linux of QEMU's",
            other => other.program(),
        }
    }
}

/// Other ways to start the programs.
pub(super) struct Runtimes {
    tools: Vec<Tool>,
    /// Root directory with the folders at which the host's folders are mounted.
    root: TempDir,
    /// Folders of the host, shown at the same path.
    shown: BTreeSet<PathBuf>,
    /// Makes the name of each container unique.
    number: Cell<u64>,
    linux: Option<PlainLinux>,
}

impl Runtimes {
    /// Finds the tools that can start all these programs, and returns the reasons why the other tools cannot. A Linux
    /// is booted only if `machines` is given, with the kernel of these machines.
    pub(super) fn find(programs: &[Program], machines: Option<&Machine>) -> anyhow::Result<(Self, Vec<SkippedRow>)> {
        let root = TempDir::with_prefix("hotlease-bench-").context("cannot make a directory")?;
        let mut shown: BTreeSet<PathBuf> = programs.iter().flat_map(|program| program.folders.clone()).collect();
        shown.insert("/usr".into());
        for name in SYSTEM {
            let host = Path::new("/").join(name);
            match fs::read_link(&host) {
                Ok(target) => symlink(target, root.path().join(name)).context("cannot make a link")?,
                Err(_) if host.is_dir() => drop(shown.insert(host)),
                Err(_) => {}
            }
        }
        let empty = EMPTY.iter().map(PathBuf::from);
        for folder in empty.chain(
            shown
                .iter()
                .filter_map(|path| Some(path.strip_prefix("/").ok()?.to_owned())),
        ) {
            fs::create_dir_all(root.path().join(folder)).context("cannot make a directory")?;
        }
        for file in ["passwd", "group", "hosts", "resolv.conf"] {
            fs::write(root.path().join("etc").join(file), "").context("cannot make a file")?;
        }
        let mut found = Self {
            tools: Vec::new(),
            root,
            shown,
            number: Cell::new(0),
            linux: None,
        };
        let mut skipped = Vec::new();
        let native = programs.iter().find(|program| program.interpreter().is_none());
        if let (Some(machine), Some(native)) = (machines, native) {
            match PlainLinux::new(machine, Path::new(&native.command[0])) {
                Ok(linux) => found.linux = Some(linux),
                Err(why) => skipped.push(SkippedRow::new(Tool::Qemu.name(), format!("{why:#}"))),
            }
        }
        for tool in Tool::ALL {
            if tool == Tool::Qemu && found.linux.is_none() {
                continue;
            }
            let mut started = programs.iter().filter(|program| tool.starts(program));
            match started.try_for_each(|program| found.run(tool, program).map(drop)) {
                Ok(()) => found.tools.push(tool),
                Err(why) => skipped.push(SkippedRow::new(tool.name(), format!("{why:#}"))),
            }
        }
        Ok((found, skipped))
    }

    pub(super) fn len(&self) -> usize {
        self.tools.len()
    }

    pub(super) fn name(&self, number: usize) -> &'static str {
        self.tools[number].name()
    }

    /// Starts a plain process by posix_spawn, which the standard library uses.
    pub(super) fn plain(&self, program: &Program) -> anyhow::Result<Duration> {
        let mut command = Command::new(&program.command[0]);
        command.args(&program.command[1..]);
        first_byte(command, program)
    }

    /// Whether the tool starts this program.
    pub(super) fn starts(&self, number: usize, program: &Program) -> bool {
        self.tools[number].starts(program)
    }

    pub(super) fn start(&self, number: usize, program: &Program) -> anyhow::Result<Duration> {
        self.run(self.tools[number], program)
    }

    fn run(&self, tool: Tool, program: &Program) -> anyhow::Result<Duration> {
        let number = self.number.get();
        self.number.set(number + 1);
        let name = format!("hotlease-bench-{}-{number}", std::process::id());
        if let (Tool::Qemu, Some(linux)) = (tool, &self.linux) {
            return first_byte(linux.command(&program.command[1..]), program);
        }
        let mut command = Command::new(tool.program());
        match tool {
            Tool::Bubblewrap => {
                command.args(["--unshare-all", "--die-with-parent"]);
                let root = self.root.path().as_os_str();
                command.args([OsString::from("--ro-bind"), root.to_owned(), "/".into()]);
                command.args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]);
                // These mounts follow the mounts above, which would otherwise hide folders that are shown below /dev,
                // /proc or /tmp.
                for folder in &self.shown {
                    command.arg("--ro-bind").arg(folder).arg(folder);
                }
            }
            Tool::Charliecloud => {
                for folder in &self.shown {
                    command.arg("--bind").arg(bound(folder, ""));
                }
                command.arg(self.root.path()).arg("--");
            }
            Tool::Podman => {
                command.args(["run", "--rm", "--network=none", "--cgroups=disabled", "--read-only"]);
                command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--name", &name]);
                for (name, value) in &program.environment {
                    command.arg(format!("--env={name}={value}"));
                }
                for folder in &self.shown {
                    command.arg("--volume").arg(bound(folder, ":ro"));
                }
                command.arg("--rootfs").arg(self.root.path());
            }
            // Unreachable: QEMU is only found with a kernel.
            Tool::Qemu => {}
            Tool::Crun => {
                let bundle = self.root.path().with_extension("bundle");
                fs::create_dir_all(&bundle).context("cannot make a directory")?;
                let written = fs::write(bundle.join("config.json"), self.bundle(program).to_string());
                written.context("cannot write a bundle")?;
                command.args(["--cgroup-manager=disabled", "run", "--bundle"]);
                command.arg(bundle).arg(&name);
            }
        }
        if tool != Tool::Crun {
            command.args(&program.command);
        }
        in_one_hierarchy(|| first_byte(command, program))
    }

    fn bundle(&self, program: &Program) -> Value {
        let environment = program
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let environment: Vec<String> = environment.chain(["PATH=/usr/bin:/bin".to_owned()]).collect();
        let own = |place: &str, kind: &str| json!({ "destination": place, "type": kind, "source": kind });
        let mut mounts = vec![own("/proc", "proc"), own("/dev", "tmpfs"), own("/tmp", "tmpfs")];
        mounts.extend(self.shown.iter().map(
            |folder| json!({ "destination": folder, "type": "bind", "source": folder, "options": ["bind", "ro"] }),
        ));
        let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": program.command, "env": environment, "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": { "path": self.root.path(), "readonly": true },
            "mounts": mounts,
            "linux": { "namespaces": namespaces },
        })
    }
}

impl Drop for Runtimes {
    fn drop(&mut self) {
        // The bundle, if made, is next to the root.
        let _ = fs::remove_dir_all(self.root.path().with_extension("bundle"));
    }
}

/// `FOLDER:FOLDER` followed by `how`.
fn bound(folder: &Path, how: &str) -> OsString {
    let mut both = folder.as_os_str().to_owned();
    both.push(":");
    both.push(folder);
    both.push(how);
    both
}

/// Time until a program has printed its first byte.
fn first_byte(mut command: Command, program: &Program) -> anyhow::Result<Duration> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .envs(&program.environment)
        // Charliecloud needs this variable, which is not set in every environment.
        .env("USER", std::env::var("USER").unwrap_or_else(|_| "root".into()))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{name} cannot be run"))?;
    let mut byte = [0; 1];
    let read = match &mut child.stdout {
        Some(stdout) => stdout.read(&mut byte),
        None => bail!("{name} has no output"),
    };
    let took = begin.elapsed();
    let done = child.wait_with_output().with_context(|| format!("{name} is lost"))?;
    ensure!(
        done.status.success() && matches!(read, Ok(1)),
        "{name}: {}: {}",
        done.status,
        last_word(&done)
    );
    Ok(took)
}

/// Calls `run` with only one hierarchy of control groups. Container runtimes refuse nodes with both hierarchies, so the
/// second hierarchy is unmounted for them.
fn in_one_hierarchy<T: Send>(run: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    if !Path::new(UNIFIED).is_dir() || !nix::unistd::geteuid().is_root() {
        return run();
    }
    let apart = || {
        // Affects only this thread and the processes that it starts.
        unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("cannot make mounts private")?;
        umount2(UNIFIED, MntFlags::MNT_DETACH).with_context(|| format!("cannot take {UNIFIED} away"))?;
        run()
    };
    thread::scope(|scope| match scope.spawn(apart).join() {
        Ok(done) => done,
        Err(_) => bail!("the thread that starts programs has failed"),
    })
}
