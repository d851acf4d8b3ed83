//! What an agent makes virtual machines of.

use crate::quantity;
use clap::Args;
use hotlease_sandbox::Machine;
use std::path::PathBuf;

/// What virtual machines are made of.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct MachineArgs {
    /// Kernel of virtual machines, a file vmlinuz-VERSION [default: the newest in /boot that reads files of its host]
    #[arg(long = "sandbox-kernel", value_name = "PATH")]
    pub(super) kernel: Option<PathBuf>,
    /// Memory of each virtual machine, of which 96 MiB are not its worker's; taken as it is used
    #[arg(long = "sandbox-machine-memory", value_name = "SIZE", default_value = "1G", value_parser = quantity::parse_bytes)]
    pub(super) memory: usize,
    /// Make virtual machines without the processor's help: slow, and no boundary; to try things out
    #[arg(long = "sandbox-emulated")]
    pub(super) emulated: bool,
}

impl MachineArgs {
    pub(crate) fn machine(self) -> Machine {
        Machine {
            kernel: self.kernel,
            emulated: self.emulated,
            memory_bytes: self.memory as u64,
        }
    }
}
