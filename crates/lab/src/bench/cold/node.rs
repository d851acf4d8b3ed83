//! State of the node: its caches, whether its processes are at rest, their private memory.

use anyhow::Context;
use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

const DROP: &str = "/proc/sys/vm/drop_caches";
/// Time without use of a processor after which a process counts as at rest. The kernel counts processor time in steps
/// of 10 ms.
const AT_REST: Duration = Duration::from_millis(30);

/// Checks that the caches can be dropped. The error says why they cannot.
pub(super) fn check_cache_drop(rounds: u32) -> Result<(), String> {
    if rounds == 0 {
        return Err("by --dropped 0".into());
    }
    let opened = fs::OpenOptions::new().write(true).open(DROP);
    opened
        .map(drop)
        .map_err(|error| format!("{DROP}: {error}; it needs root"))
}

/// Drops the kernel's caches of files, for all processes.
pub(super) fn drop_caches() -> anyhow::Result<()> {
    // Data that is not written yet would stay in the cache.
    nix::unistd::sync();
    fs::write(DROP, "3").with_context(|| format!("cannot write to {DROP}"))
}

/// Waits until no descendant of these processes uses a processor, that is, until everything for the next lease is
/// prepared. Waits at most `limit`, because work that takes longer is not part of a start.
pub(super) fn wait_until_settled(roots: &[u32], limit: Duration) {
    let begin = Instant::now();
    let mut before = used(roots);
    while begin.elapsed() < limit {
        thread::sleep(AT_REST);
        let now = used(roots);
        if now == before {
            return;
        }
        before = now;
    }
}

/// Processor time of each descendant of these processes, without the processes themselves.
fn used(roots: &[u32]) -> HashMap<u32, u64> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return HashMap::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let all: HashMap<u32, (u32, u64)> = pids
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parent_and_time(&stat)?))
        })
        .collect();
    let descends = |mut pid: u32| {
        // Bounded by the number of processes, even if parents change during the scan.
        for _ in 0..all.len() {
            match all.get(&pid) {
                Some((parent, _)) if roots.contains(parent) => return true,
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    let theirs = all.iter().filter(|(pid, _)| descends(**pid));
    theirs.map(|(pid, (_, time))| (*pid, *time)).collect()
}

/// Parent and processor time in the text of `/proc/PID/stat`.
fn parent_and_time(stat: &str) -> Option<(u32, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let time = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((fields.get(1)?.parse().ok()?, time))
}

/// Memory that a process shares with no other process, bytes; `None` if unknown.
pub(super) fn private_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    private(&rollup)
}

fn private(rollup: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((of("Private_Clean:")? + of("Private_Dirty:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_understood() {
        let stat = "12 (a) b) S 7 12 12 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 100";
        assert_eq!(parent_and_time(stat), Some((7, 42)));
        assert_eq!(parent_and_time(""), None);
        let rollup = "Rss: 90 kB\nPrivate_Clean:     4 kB\nPrivate_Dirty:    6 kB\n";
        assert_eq!(private(rollup), Some(10 * 1024));
        let own = private_bytes(std::process::id());
        assert!(own.is_some_and(|bytes| bytes > 10_000), "{own:?}");
    }

    #[test]
    fn a_child_at_rest_is_settled_and_one_that_works_is_not() {
        let own = std::process::id();
        let mut works = std::process::Command::new("/bin/sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let (before, begin) = (used(&[own]), Instant::now());
        assert!(before.contains_key(&works.id()));
        while used(&[own])[&works.id()] == before[&works.id()] {
            assert!(begin.elapsed() < Duration::from_secs(30), "its time is not seen");
            thread::sleep(AT_REST);
        }
        works.kill().unwrap();
        works.wait().unwrap();
        assert!(!used(&[own]).contains_key(&works.id()));
    }
}
