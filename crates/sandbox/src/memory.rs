//! Whether a SIGKILL came from the kernel's out-of-memory killer.
//!
//! The wait status cannot tell. The kernel counts such kills per control group and per machine; a count
//! that rose since it was last looked at, together with a SIGKILL that nobody here sent, is the evidence.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

/// Watches the counter of the agent's control group, or of the machine where groups do not count.
#[derive(Debug)]
pub(crate) struct OutOfMemory {
    file: PathBuf,
    seen: Mutex<u64>,
}

impl OutOfMemory {
    pub fn watch() -> Self {
        let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
            let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
            Some(PathBuf::from("/sys/fs/cgroup").join(path).join("memory.events"))
        });
        let file = group
            .filter(|file| count(file).is_some())
            .unwrap_or_else(|| "/proc/vmstat".into());
        let seen = count(&file).unwrap_or(0);
        Self {
            file,
            seen: Mutex::new(seen),
        }
    }

    /// Whether there was such a kill since the last call.
    pub fn struck(&self) -> bool {
        let now = count(&self.file).unwrap_or(0);
        let mut seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::replace(&mut *seen, now) < now
    }
}

fn count(file: &PathBuf) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

/// Resident memory of a process, bytes; `None` once it is gone.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kilobytes: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_seen_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("memory.events");
        fs::write(&file, "low 0\noom 3\noom_kill 2\n").expect("written");
        let watch = OutOfMemory {
            seen: Mutex::new(count(&file).expect("counted")),
            file: file.clone(),
        };
        assert!(!watch.struck());
        fs::write(&file, "low 0\noom 4\noom_kill 3\n").expect("written");
        assert!(watch.struck());
        assert!(!watch.struck());
    }

    #[test]
    fn resident_memory_of_this_process_is_known() {
        let bytes = resident_bytes(std::process::id()).expect("a living process");
        assert!(bytes > 100_000, "{bytes} bytes");
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
