//! Detection of kills by the kernel's out-of-memory killer.
//!
//! A wait status does not say which process sent a SIGKILL. The kernel counts out-of-memory kills per control group and
//! per host. If a count has risen since the last check, and the process got a SIGKILL that the agent did not send, the
//! out-of-memory killer is taken for the cause. The group's count is more reliable, because the host's count includes
//! kills elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Watches the counter of the agent's control group, or the host's counter if groups have none.
#[derive(Debug)]
pub(crate) struct OomWatch {
    file: PathBuf,
    seen: Mutex<u64>,
}

impl OomWatch {
    pub fn watch() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = counters(&groups)
            .into_iter()
            .find(|file| count(file).is_some())
            .unwrap_or_else(|| "/proc/vmstat".into());
        let seen = count(&file).unwrap_or(0);
        Self {
            file,
            seen: Mutex::new(seen),
        }
    }

    /// Whether an out-of-memory kill has occurred since the last call.
    pub fn take_kill(&self) -> bool {
        let now = count(&self.file).unwrap_or(0);
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::replace(&mut *seen, now) < now
    }
}

/// Files that count the kills in the groups of `/proc/self/cgroup`, the most exact first. If a group has two files, the
/// file that leaves out kills in groups below it (the groups of sandboxes) comes first. The memory controller may have
/// a hierarchy of its own.
fn counters(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            let group = Path::new("/sys/fs/cgroup").join(path);
            found.extend(["memory.events.local", "memory.events"].map(|file| group.join(file)));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            found.push(Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"));
        }
    }
    found
}

fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_seen_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("memory.events");
        fs::write(&file, "low 0\noom 3\noom_kill 2\n").expect("written");
        let watch = OomWatch {
            seen: Mutex::new(count(&file).expect("counted")),
            file: file.clone(),
        };
        assert!(!watch.take_kill());
        fs::write(&file, "low 0\noom 4\noom_kill 3\n").expect("written");
        assert!(watch.take_kill());
        assert!(!watch.take_kill());
    }

    #[test]
    fn kills_are_counted_in_the_group_of_either_hierarchy() {
        let named = |groups| {
            counters(groups)
                .into_iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            named("0::/user.slice/a:b\n"),
            [
                "/sys/fs/cgroup/user.slice/a:b/memory.events.local",
                "/sys/fs/cgroup/user.slice/a:b/memory.events"
            ]
        );
        assert_eq!(
            named("9:name=systemd:/\n4:cpu,memory:/jobs/7\n3:cpuset:/\n"),
            ["/sys/fs/cgroup/memory/jobs/7/memory.oom_control"]
        );
        assert_eq!(named("nothing\n4:memory\n"), [""; 0]);
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("memory.oom_control");
        fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n").expect("written");
        assert_eq!(count(&file), Some(5));
    }
}
