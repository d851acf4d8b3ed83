//! Containers: the runtimes that a site may have, and how each is told what they all need to know.
//!
//! A container is made by a runtime, within what the nursery makes for every sandbox: pid 1 of namespaces of its own, with no rights,
//! starts the runtime in place of the program. So the kernel ends a container however its runtime, the nursery or the agent
//! dies; what the runtime writes (bundles, states, locks) is in memory that goes with it; limits and verdicts are those of any
//! sandbox; and a runtime that is fooled has nothing to give away.
//!
//! ```text
//! agent ──► nursery ──► pid 1 of a sandbox ──► crun, ch-run, ... ──► the worker
//!                       namespaces, limits,     root, binds,
//!                       a folder in memory      what else it can
//! ```

pub mod bundle;
pub(crate) mod making;
pub(crate) mod waiting;

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What makes containers on a node, and of what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containers {
    /// Whose command line it has.
    pub runtime: Runtime,
    /// The runtime's program; absolute.
    pub program: OsString,
    /// What is in them: a folder, or a file of the runtime's kind; none: the host's system folders, as in kind `namespace`.
    pub image: Option<OsString>,
}

/// A runtime, by the command line that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Runtime {
    /// OCI bundles.
    Crun,
    /// Charliecloud.
    ChRun,
    /// Apptainer.
    Apptainer,
    /// Singularity, from which Apptainer comes.
    Singularity,
    /// Podman, as NERSC wraps it.
    PodmanHpc,
}

/// A folder or file that is put into a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    /// Where the runtime finds it.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    pub writable: bool,
}

/// What all runtimes are told.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    /// A folder, or a file of the runtime's kind.
    pub image: &'a Path,
    pub binds: &'a [Bind],
    pub environment: &'a [(OsString, OsString)],
    pub directory: &'a Path,
    /// The program, then its arguments.
    pub command: &'a [OsString],
}

impl Runtime {
    /// All of them, the one that is taken where a site names none first.
    pub const ALL: [Self; 5] = [
        Self::Crun,
        Self::ChRun,
        Self::Apptainer,
        Self::Singularity,
        Self::PodmanHpc,
    ];

    /// The name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crun => "crun",
            Self::ChRun => "ch-run",
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
            Self::PodmanHpc => "podman-hpc",
        }
    }

    /// The package of Debian that it is in.
    pub fn package(self) -> Option<&'static str> {
        match self {
            Self::Crun => Some("crun"),
            Self::ChRun => Some("charliecloud"),
            Self::Apptainer | Self::Singularity | Self::PodmanHpc => None,
        }
    }

    /// Whose program this is.
    pub fn of(program: &Path) -> Option<Self> {
        let name = program.file_name()?;
        Self::ALL.into_iter().find(|runtime| name == runtime.name())
    }

    /// Whether it can do with the host's system folders for an image, and runs without anything else of the host.
    pub fn is_bare(self) -> bool {
        matches!(self, Self::Crun | Self::ChRun)
    }

    /// Whether its containers hold code of people who do not trust each other.
    pub fn confines(self) -> bool {
        self == Self::Crun
    }

    /// What its containers lack of a site's policy, on any machine.
    pub fn lacking(self) -> &'static [&'static str] {
        match self {
            Self::Crun => &[],
            Self::ChRun => &[
                "the list of system calls: Charliecloud needs five more to make the root, which its code keeps",
                "an empty bounding set of capabilities: that code cannot gain new privileges is all that keeps it from them",
            ],
            Self::Apptainer | Self::Singularity | Self::PodmanHpc => &[
                "the list of system calls: code may ask the kernel for anything, new namespaces included",
                "what is in /dev, /proc and /sys, and how large /tmp and /dev/shm are: as the runtime has it",
            ],
        }
    }

    /// Whether it ends when the container runs, which is then a child of whoever started it.
    pub(crate) fn leaves(self) -> bool {
        self == Self::Crun
    }

    /// Whether a death by signal N shows as exit status 128 + N.
    pub(crate) fn tells_signals_as_status(self) -> bool {
        self == Self::PodmanHpc
    }

    /// The descriptor at which it passes something on to the container.
    pub(crate) fn input_at(self) -> i32 {
        match self {
            // What it gives the container as standard input is a pipe of its own.
            Self::PodmanHpc => 3,
            _ => libc::STDIN_FILENO,
        }
    }

    /// Its arguments, without its name; `work` is a folder of its own.
    pub(crate) fn arguments(self, told: &Told<'_>, work: &Path) -> Vec<OsString> {
        let mut all = Arguments::default();
        match self {
            Self::Crun => {
                all.set("--root=", work.join("state"));
                // Limits are set on all that the sandbox is, from outside.
                all.add("--cgroup-manager=disabled");
                all.set("--log=", work.join("log"));
                all.add("run");
                all.add("--detach");
                // The sandbox has one already.
                all.add("--no-new-keyring");
                all.set("--pid-file=", work.join("pid"));
                all.set("--bundle=", work);
                all.add("hotlease");
                return all.0;
            }
            Self::ChRun => {
                all.set("--cd=", told.directory);
                // Which it would make up, so that they can be written.
                all.add("--no-passwd");
                // It has its own opinion of this one.
                for (name, value) in told.environment.iter().filter(|(name, _)| name == "HOME") {
                    all.add(joined([name, OsStr::new("="), value], "--set-env="));
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
                // Nothing of the host's but what is bound; its environment comes by names of the runtime's.
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
                // That of the sandbox.
                all.add("--network=host");
                all.add("--cap-drop=all");
                all.add("--security-opt=no-new-privileges");
                all.add("--preserve-fds=1");
                all.set("--workdir=", told.directory);
                for (name, _) in told.environment {
                    all.set("--env=", name);
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
                for word in ["-c", "exec \"$@\" <&3 3<&-", "sh"] {
                    all.add(word);
                }
            }
        }
        all.0.extend(told.command.iter().cloned());
        all.0
    }

    /// Its own environment, by which the container gets that of its program.
    pub(crate) fn environment(self, told: &Told<'_>) -> Vec<(OsString, OsString)> {
        let prefix = match self {
            // It is in the bundle. What is to be found nowhere are the programs by which users who may map more than themselves do
            // so: it asks them first, and they refuse.
            Self::Crun => return vec![("PATH".into(), "/proc/empty".into())],
            Self::ChRun | Self::PodmanHpc => "",
            Self::Apptainer => "APPTAINERENV_",
            Self::Singularity => "SINGULARITYENV_",
        };
        let mut all: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in told.environment {
            all.push((joined([name.as_os_str()], prefix), value.clone()));
        }
        // Of which each wants some to be there.
        for (name, value) in [
            ("HOME", "/tmp"),
            ("USER", "user"),
            ("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
        ] {
            if !all.iter().any(|(known, _)| known == name) {
                all.push((name.into(), value.into()));
            }
        }
        all
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
