//! Memory and descriptors of a process, from /proc.

use anyhow::Context;
use std::fs;

/// Memory and descriptors of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessUsage {
    /// Resident memory.
    pub(super) rss_bytes: u64,
    /// Open file descriptors.
    pub(super) descriptors: u64,
}

impl ProcessUsage {
    pub(super) fn of_process(pid: u32) -> anyhow::Result<Self> {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .with_context(|| format!("cannot see the descriptors of process {pid}"))?;
        Ok(Self {
            rss_bytes: rss_bytes(&status).with_context(|| format!("process {pid} has no memory"))?,
            descriptors: descriptors.count() as u64,
        })
    }
}

fn rss_bytes(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        assert_eq!(rss_bytes("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        let own = ProcessUsage::of_process(std::process::id()).unwrap();
        assert!(own.rss_bytes > 100_000 && own.descriptors >= 3, "{own:?}");
    }
}
