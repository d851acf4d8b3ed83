//! What an agent makes virtual machines of.

use super::absolute;
use crate::quantity;
use clap::Args;
use hotlease_sandbox::Machine;
use std::ffi::OsString;
use std::path::PathBuf;

/// What virtual machines are made of.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct MachineArgs {
    /// Kernel of virtual machines, a file vmlinuz-VERSION [default: the newest in /boot that reads files of its host]
    #[arg(long = "sandbox-kernel", value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Memory of each virtual machine, of which 96 MiB are not its worker's; taken as it is used
    #[arg(long = "sandbox-machine-memory", value_name = "SIZE", default_value = "1G", value_parser = quantity::parse_bytes)]
    memory: usize,
    /// Make virtual machines without the processor's help: slow, and no boundary; to try things out
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

/// How an agent is told on its command line.
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
