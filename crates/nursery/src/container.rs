//! Container runtimes that a site may have, and the command line, environment and bundle that each of them gets.
//!
//! The runtime makes the container within the usual sandbox: pid 1 of the sandbox's namespaces, without rights, starts
//! the runtime in place of the program. This has four effects. The kernel ends the container however its runtime, the
//! nursery or the agent dies. Everything that the runtime writes (bundles, states, locks) is in memory that is freed
//! with the container. Limits, and the record of how the program ended, are the same as for any sandbox. A runtime that
//! is deceived by its container has no rights that the container could gain.
//!
//! ```text
//! agent ──► nursery ──► pid 1 of a sandbox ──► crun, ch-run, ... ──► the worker
//!                       namespaces, limits,     root, binds,
//!                       a folder in memory      its own restrictions
//! ```

pub mod bundle;
pub(crate) mod runtime_process;
pub(crate) mod template;

use crate::program::inner_environment::numbered;
use hotlease_wire::limits::variables::is_name;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Runtime of a node's containers, and their image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// The runtime, which decides the command line.
    pub runtime: Runtime,
    /// Path of the runtime's program; absolute.
    pub program: OsString,
    /// Image of the containers: a folder, or a file in the runtime's own format; `None` for the host's system folders,
    /// as in kind `namespace`.
    pub image: Option<OsString>,
}

/// A container runtime, identified by its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Runtime {
    /// OCI bundles.
    Crun,
    /// Charliecloud.
    ChRun,
    /// Apptainer.
    Apptainer,
    /// Singularity, from which Apptainer is derived.
    Singularity,
    /// Podman, as NERSC wraps it.
    PodmanHpc,
}

/// A folder or file that is bound into a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    /// Path at which the runtime finds it.
    pub source: PathBuf,
    /// Path in the container.
    pub target: PathBuf,
    pub writable: bool,
}

/// Description of a container that every runtime gets.
#[derive(Debug)]
pub(crate) struct ContainerSpec<'a> {
    /// A folder, or a file in the runtime's own format.
    pub image: &'a Path,
    pub binds: &'a [Bind],
    pub environment: &'a [(OsString, OsString)],
    pub directory: &'a Path,
    /// The program, then its arguments.
    pub command: &'a [OsString],
}

/// Parts of a site's policy that no container enforces. `network`: whether leases may have the host's network.
pub(crate) fn lacking_with(network: bool) -> &'static [&'static str] {
    match network {
        true => &[
            "abstract Unix sockets of the host: code in a container with the host's network can connect to them, because \
             containers have no Landlock",
        ],
        false => &[],
    }
}

impl Runtime {
    /// All runtimes. The first is the default if a site names none.
    pub const ALL: [Self; 5] = [
        Self::Crun,
        Self::ChRun,
        Self::Apptainer,
        Self::Singularity,
        Self::PodmanHpc,
    ];

    /// Name of the runtime's program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crun => "crun",
            Self::ChRun => "ch-run",
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
            Self::PodmanHpc => "podman-hpc",
        }
    }

    /// Debian package that contains the program.
    pub fn package(self) -> Option<&'static str> {
        match self {
            Self::Crun => Some("crun"),
            Self::ChRun => Some("charliecloud"),
            Self::Apptainer | Self::Singularity | Self::PodmanHpc => None,
        }
    }

    /// Runtime that a program belongs to, by the program's name.
    pub fn of(program: &Path) -> Option<Self> {
        let name = program.file_name()?;
        Self::ALL.into_iter().find(|runtime| name == runtime.name())
    }

    /// Whether the runtime can use the host's system folders as an image, and runs without other files of the host.
    pub fn is_bare(self) -> bool {
        matches!(self, Self::Crun | Self::ChRun)
    }

    /// Whether its containers may run code of users who do not trust each other.
    pub fn is_confining(self) -> bool {
        self == Self::Crun
    }

    /// Parts of a site's policy that its containers never enforce, on any host.
    pub fn lacking(self) -> &'static [&'static str] {
        match self {
            Self::Crun => &[],
            Self::ChRun => &[
                "the list of system calls: Charliecloud needs five more to make the root, and code in the container keeps them",
                "an empty bounding set of capabilities: only the ban on new privileges keeps code from gaining capabilities",
            ],
            Self::Apptainer | Self::Singularity | Self::PodmanHpc => &[
                "the list of system calls: code may ask the kernel for anything, new namespaces included",
                "the contents of /dev, /proc and /sys, and the sizes of /tmp and /dev/shm: the runtime sets them",
            ],
        }
    }

    /// Whether the runtime's program ends once the container runs. The container is then a child of the process that
    /// started the runtime.
    pub(crate) fn exits_early(self) -> bool {
        self == Self::Crun
    }

    /// Whether it reports a death by signal N as exit status 128 + N.
    pub(crate) fn has_signal_status(self) -> bool {
        self == Self::PodmanHpc
    }

    /// The descriptor that it passes on to the container.
    pub(crate) fn input_at(self) -> i32 {
        match self {
            // Podman gives the container a pipe of its own as standard input.
            Self::PodmanHpc => 3,
            _ => libc::STDIN_FILENO,
        }
    }

    /// Arguments of the runtime, without its name. `work` is a folder for the runtime alone.
    pub(crate) fn arguments(self, told: &ContainerSpec<'_>, work: &Path) -> Vec<OsString> {
        let mut all = Arguments::default();
        match self {
            Self::Crun => {
                all.set("--root=", work.join("state"));
                // Limits are set from outside, on the whole sandbox.
                all.add("--cgroup-manager=disabled");
                all.set("--log=", work.join("log"));
                all.add("run");
                all.add("--detach");
                // The sandbox already has a keyring.
                all.add("--no-new-keyring");
                all.set("--pid-file=", work.join("pid"));
                all.set("--bundle=", work);
                all.add("hotlease");
                return all.0;
            }
            Self::ChRun => {
                all.set("--cd=", told.directory);
                // Otherwise ch-run would write a passwd file of its own, which needs writable files.
                all.add("--no-passwd");
                // ch-run replaces a value `$NAME` by the value of NAME, just before it runs the container's program.
                for (number, (name, _)) in told.environment.iter().enumerate() {
                    all.add(joined([name, OsStr::new("=$"), &numbered(number)], "--set-env="));
                }
                for number in 0..told.environment.len() {
                    all.set("--unset-env=", numbered(number));
                }
                for bind in told.binds {
                    all.add(joined(
                        [bind.source.as_os_str(), OsStr::new(":"), bind.target.as_os_str()],
                        "--bind=",
                    ));
                }
                all.add(told.image);
                all.add("--");
            }
            Self::Apptainer | Self::Singularity => {
                all.add("--silent");
                all.add("exec");
                // Shows nothing of the host except what is bound. The container's environment is passed in variables
                // with the runtime's prefix.
                all.add("--containall");
                all.add("--cleanenv");
                all.add("--no-privs");
                all.set("--pwd=", told.directory);
                for bind in told.binds {
                    all.add(joined(
                        [
                            bind.source.as_os_str(),
                            OsStr::new(":"),
                            bind.target.as_os_str(),
                            OsStr::new(if bind.writable { ":rw" } else { ":ro" }),
                        ],
                        "--bind=",
                    ));
                }
                all.add(told.image);
            }
            Self::PodmanHpc => {
                all.add("run");
                all.add("--rm");
                all.add("--read-only");
                // Here the host's network is the network of the sandbox.
                all.add("--network=host");
                all.add("--cap-drop=all");
                all.add("--security-opt=no-new-privileges");
                all.add("--preserve-fds=1");
                all.set("--workdir=", told.directory);
                for (number, _) in told.exportable() {
                    all.set("--env=", numbered(number));
                }
                for bind in told.binds {
                    all.add(joined(
                        [
                            bind.source.as_os_str(),
                            OsStr::new(",destination="),
                            bind.target.as_os_str(),
                            OsStr::new(if bind.writable { "" } else { ",readonly" }),
                        ],
                        "--mount=type=bind,source=",
                    ));
                }
                all.add("--entrypoint=/bin/sh");
                all.add(told.image);
                all.add("-c");
                all.add(told.exports() + "exec \"$@\" <&3 3<&-");
                all.add("sh");
            }
        }
        all.0.extend(told.command.iter().cloned());
        all.0
    }

    /// Environment of the runtime. It carries the variables of the container's program under names that have no meaning
    /// for the runtime, its loader or the programs that it starts: a tenant chooses variables, and the runtime is
    /// outside of the container.
    pub(crate) fn environment(self, told: &ContainerSpec<'_>) -> Vec<(OsString, OsString)> {
        let prefixed = |prefix: &str| -> Vec<(OsString, OsString)> {
            let all = told.environment.iter();
            all.map(|(name, value)| (joined([name.as_os_str()], prefix), value.clone()))
                .collect()
        };
        let mut all = match self {
            // crun's program gets its environment from the bundle. This PATH hides `newuidmap` and `newgidmap`: crun
            // would run them first to map more users than its own, and both would refuse.
            Self::Crun => return vec![("PATH".into(), "/proc/empty".into())],
            Self::ChRun => {
                let all = told.environment.iter().enumerate();
                all.map(|(number, (_, value))| (numbered(number), value.clone()))
                    .collect()
            }
            Self::PodmanHpc => {
                let pair = |name: &OsStr, value: &OsStr| joined([name, OsStr::new("="), value], "");
                told.exportable()
                    .map(|(number, (name, value))| (numbered(number), pair(name, value)))
                    .collect()
            }
            Self::Apptainer => prefixed("APPTAINERENV_"),
            Self::Singularity => prefixed("SINGULARITYENV_"),
        };
        // Each runtime expects some of these variables.
        for (name, value) in [
            ("HOME", "/tmp"),
            ("USER", "user"),
            ("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
        ] {
            all.push((name.into(), value.into()));
        }
        all
    }
}

impl ContainerSpec<'_> {
    /// Variables whose names a shell can export, with their numbers. A shell drops all other variables of its
    /// environment.
    fn exportable(&self) -> impl Iterator<Item = (usize, &(OsString, OsString))> {
        let all = self.environment.iter().enumerate();
        all.filter(|(_, (name, _))| is_name(name.as_bytes()))
    }

    /// Commands by which a shell in the container gives the variables their own names: each variable arrives as
    /// `NAME=VALUE` in a variable of another name. A variable that the shell reserves for itself is not changed.
    fn exports(&self) -> String {
        let commands = self.exportable().map(|(number, _)| {
            let outside = numbered(number).to_string_lossy().into_owned();
            format!("command export \"${outside}\" 2>/dev/null; unset {outside}; ")
        });
        commands.collect()
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn add(&mut self, argument: impl Into<OsString>) {
        self.0.push(argument.into());
    }

    fn set(&mut self, option: &str, value: impl AsRef<OsStr>) {
        self.0.push(joined([value.as_ref()], option));
    }
}

fn joined<const N: usize>(parts: [&OsStr; N], before: &str) -> OsString {
    let mut whole = OsString::from(before);
    parts.iter().for_each(|part| whole.push(part));
    whole
}

#[cfg(test)]
mod tests;
