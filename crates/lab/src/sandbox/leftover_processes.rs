//! Processes of an attempt that remain when its sandbox is gone.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Time within which processes that were killed with their sandbox are gone, even on a busy node.
const GRACE: Duration = Duration::from_millis(500);
/// Time limit for killing the remaining processes, which may fork while they are killed one by one.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Living processes with this argument. The neighbour and this process do not have it, and dead processes have no
/// arguments.
fn processes_of(token: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|argument| argument == token.as_bytes())
        })
        .collect()
}

/// Kills the processes that have outlived their sandbox. Returns the number of processes.
pub(super) async fn kill_outlived(token: &str) -> usize {
    let begin = Instant::now();
    let mut left = processes_of(token);
    while !left.is_empty() && begin.elapsed() < GRACE {
        tokio::time::sleep(PAUSE).await;
        left = processes_of(token);
    }
    let outlived = left.len();
    while !left.is_empty() && begin.elapsed() < PATIENCE {
        for pid in left {
            // Fails with ESRCH if the process has ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
        tokio::time::sleep(PAUSE).await;
        left = processes_of(token);
    }
    outlived
}
