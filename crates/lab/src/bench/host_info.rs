//! The host on which a figure was measured.

use super::pin::Cores;
use serde::Serialize;
use std::fs;

/// Properties of the host that influence the figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct HostInfo {
    cpu: String,
    cores: usize,
    /// Whether the host is a virtual machine, whose cores may move.
    virtual_machine: bool,
    memory_bytes: u64,
    kernel: String,
    hotlease: &'static str,
    /// Core that the client's thread is pinned to, if any.
    client_core: Option<usize>,
    /// Core that the slot is pinned to.
    slot_core: Option<usize>,
}

impl HostInfo {
    pub(super) fn here(cores: Cores) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH);
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib = field(&memory, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.to_owned(),
            // Counts all processors, because the affinity of this thread is one core.
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
            kernel: kernel.trim().to_owned(),
            hotlease: env!("CARGO_PKG_VERSION"),
            client_core: cores.client,
            slot_core: cores.slot,
        }
    }
}

/// Value of the first `name : value` line of a file in /proc.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut named = lines.filter(|(key, _)| key.trim() == name);
    named.next().map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nmodel name\t: Other\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(field(text, "flags"), Some("fpu hypervisor"));
        assert_eq!(field(text, "model"), None);
    }
}
