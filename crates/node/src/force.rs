//! The last resort: an agent that does not answer is killed, with all its workers.

use hotlease_fabric::socket::Socket;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

/// What was killed.
pub struct Forced {
    /// Process id of the agent.
    pub agent: i32,
    /// Number of processes that it had started.
    pub processes: usize,
}

/// Kills the agent that listens at this socket, and all processes below it.
pub fn kill_agent(socket: &Path) -> io::Result<Forced> {
    // The kernel tells the process that listens, whether or not it still accepts.
    let agent = Socket::connect(socket)?.peer()?.pid;
    let killed = |pid: i32| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok();
    // Stopped first, so that it starts nothing while its processes are counted.
    kill(Pid::from_raw(agent), Signal::SIGSTOP)?;
    let below = below(agent, &parents()?);
    killed(agent);
    let processes = below.into_iter().filter(|pid| killed(*pid)).count();
    Ok(Forced { agent, processes })
}

/// Parent of each process.
fn parents() -> io::Result<HashMap<i32, i32>> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has ended meanwhile has no parent any more.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(parent) = parent_in(&stat) {
            parents.insert(pid, parent);
        }
    }
    Ok(parents)
}

/// Parent in the text of `/proc/PID/stat`, behind the program's name, which may contain anything.
fn parent_in(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// All processes below this one.
fn below(top: i32, parents: &HashMap<i32, i32>) -> HashSet<i32> {
    let mut found = HashSet::new();
    let mut last = vec![top];
    while let Some(parent) = last.pop() {
        let children = parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid);
        last.extend(children.filter(|pid| found.insert(*pid)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_children_are_below_and_others_are_not() {
        let parents = HashMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 7)]);
        assert_eq!(below(2, &parents), HashSet::from([3, 4]));
        assert_eq!(below(7, &parents), HashSet::from([7]), "a circle ends");
        assert_eq!(below(9, &parents), HashSet::new());
    }

    #[test]
    fn the_parent_stands_behind_any_name() {
        assert_eq!(parent_in("7 (python3) T 12 7 7 0"), Some(12));
        assert_eq!(parent_in("7 (a) S 1 b) S 3 7 7 0"), Some(3));
        assert_eq!(parent_in(""), None);
    }
}
