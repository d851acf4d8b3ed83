//! Arguments of an agent's virtual machines.

use super::absolute;
use crate::quantity;
use clap::Args;
use hotlease_sandbox::Machine;
use std::ffi::OsString;
use std::path::PathBuf;

/// Kernel and memory of virtual machines.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct MachineArgs {
    /// Kernel of virtual machines, a file vmlinuz-VERSION [default: the newest in /boot that can read files of its
    /// host]
    #[arg(long = "sandbox-kernel", value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Memory of each virtual machine, of which 96 MiB are not available to its worker; allocated as it is used
    #[arg(long = "sandbox-machine-memory", value_name = "SIZE", default_value = "1G", value_parser = quantity::parse_bytes)]
    memory: usize,
    /// Make virtual machines without hardware support: slow, and no security boundary; for trials only
    #[arg(long = "sandbox-emulated")]
    emulated: bool,
}

impl MachineArgs {
    pub(crate) fn machine(&self) -> Machine {
        Machine {
            kernel: self.kernel.as_deref().map(absolute),
            emulated: self.emulated,
            memory_bytes: self.memory as u64,
        }
    }
}

/// Arguments for another process of this program.
pub(crate) fn machine_arguments(machine: &Machine) -> Vec<OsString> {
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
