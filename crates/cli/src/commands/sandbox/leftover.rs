//! Processes of an attempt that are there when its sandbox is gone.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// What was killed with its sandbox is gone by then, also on a machine with much to do.
const GRACE: Duration = Duration::from_millis(500);
/// What is killed one by one may fork meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Those with this argument, the neighbour's and ours excepted, as it is not in theirs. The dead have none.
fn living(token: &str) -> Vec<Pid> {
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

/// How many have outlived it. They are killed then.
pub(super) async fn outlived(token: &str) -> usize {
    let begin = Instant::now();
    let mut left = living(token);
    while !left.is_empty() && begin.elapsed() < GRACE {
        tokio::time::sleep(PAUSE).await;
        left = living(token);
    }
    let outlived = left.len();
    while !left.is_empty() && begin.elapsed() < PATIENCE {
        for pid in left {
            // ESRCH: it ended meanwhile.
            let _ = kill(pid, Signal::SIGKILL);
        }
        tokio::time::sleep(PAUSE).await;
        left = living(token);
    }
    outlived
}
