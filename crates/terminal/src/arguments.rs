//! Arguments of sandboxes: container runtime and virtual machines.

use crate::quantity;
use clap::{Args, Command};
use hotlease_sandbox::{Container, Machine};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Container runtime and image.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ContainerArgs {
    /// Program that makes containers: the name or path of crun, ch-run, apptainer, singularity or podman-hpc
    #[arg(long = "sandbox-container", value_name = "RUNTIME", default_value = "crun")]
    runtime: OsString,
    /// Contents of containers: a folder, a file of the runtime's format, or a name for podman-hpc [default: the
    /// host's system folders, which only crun and ch-run support]
    #[arg(long = "sandbox-image", value_name = "PATH")]
    image: Option<PathBuf>,
}

impl ContainerArgs {
    /// Container runtime and image, for a launcher of sandboxes.
    pub fn container(self) -> Container {
        Container {
            runtime: self.runtime,
            image: self.image,
        }
    }

    /// Arguments for another process of this program, which may start in another directory.
    pub fn to_args(&self) -> Vec<OsString> {
        let runtime = Path::new(&self.runtime);
        let runtime = match runtime.components().count() {
            // A name, which is looked up in PATH.
            1 => self.runtime.clone(),
            _ => absolute(runtime).into(),
        };
        let mut args = vec!["--sandbox-container".into(), runtime];
        if let Some(image) = &self.image {
            // If there is no such file, the value is an image's name.
            let image = if image.exists() { absolute(image) } else { image.clone() };
            args.extend(["--sandbox-image".into(), image.into()]);
        }
        args
    }
}

/// Names that several arguments of a command have, or of one of its subcommands: for tests. clap identifies arguments by
/// the names of their fields, and notices repeated names only in debug builds.
pub fn repeated_names(command: &Command) -> Vec<String> {
    let mut names: Vec<&str> = command
        .get_arguments()
        .map(|argument| argument.get_id().as_str())
        .collect();
    names.sort_unstable();
    let repeated = names.windows(2).filter(|pair| pair[0] == pair[1]);
    let own = repeated.map(|pair| format!("{}: {}", command.get_name(), pair[0]));
    own.chain(command.get_subcommands().flat_map(repeated_names)).collect()
}

/// Kernel and memory of virtual machines. The fields have long names because clap identifies arguments by them: of two
/// arguments of one name, a command would see only one.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MachineArgs {
    /// Kernel of virtual machines, a file vmlinuz-VERSION [default: the newest in /boot that can read files of its
    /// host]
    #[arg(long, value_name = "PATH")]
    sandbox_kernel: Option<PathBuf>,
    /// Memory of each virtual machine, of which 96 MiB are not available to its worker; allocated as it is used
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = quantity::parse_bytes)]
    sandbox_machine_memory: usize,
    /// Make virtual machines without hardware support: slow, and no security boundary; for trials only
    #[arg(long)]
    sandbox_emulated: bool,
}

impl MachineArgs {
    /// Virtual machines, for a launcher of sandboxes.
    pub fn machine(&self) -> Machine {
        Machine {
            kernel: self.sandbox_kernel.as_deref().map(absolute),
            emulated: self.sandbox_emulated,
            memory_bytes: self.sandbox_machine_memory as u64,
        }
    }
}

/// Arguments for another process of this program.
pub fn machine_arguments(machine: &Machine) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(kernel) = &machine.kernel {
        arguments.extend(["--sandbox-kernel".into(), kernel.into()]);
    }
    arguments.extend([
        "--sandbox-machine-memory".into(),
        machine.memory_bytes.to_string().into(),
    ]);
    if machine.emulated {
        arguments.push("--sandbox-emulated".into());
    }
    arguments
}

/// Absolute path of a file. If the current directory is gone, the path stays as it is.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
