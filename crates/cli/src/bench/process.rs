//! What a process holds, from /proc.

use anyhow::Context;
use std::fs;

/// Memory and descriptors of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// Resident memory.
    pub(super) rss_bytes: u64,
    /// Open file descriptors.
    pub(super) descriptors: u64,
}

impl Held {
    pub(super) fn by(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("process {pid} is gone"))?;
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

/// Processes of this name that a process has started.
pub(super) fn children(parent: u32, name: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parse_stat(&stat).is_some_and(|(comm, ppid)| ppid == parent && comm == name)
    })
    .collect()
}

/// Name and parent of `/proc/PID/stat`. The name may contain anything, also `)`.
fn parse_stat(stat: &str) -> Option<(&str, u32)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    Some((name, rest.split(' ').nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        assert_eq!(parse_stat("12 (a) b) S 7 12 12 0"), Some(("a) b", 7)));
        assert_eq!(parse_stat(""), None);
        assert_eq!(rss_bytes("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        let own = Held::by(std::process::id()).unwrap();
        assert!(own.rss_bytes > 100_000 && own.descriptors >= 3, "{own:?}");
    }
}
