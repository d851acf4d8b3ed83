//! Facts from the kernel about a process.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// One process; its start time distinguishes it from a later process with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    started: u64,
}

impl Process {
    /// The process with this number, unless it is gone or a zombie.
    pub fn of(pid: i32) -> Option<Self> {
        let (state, _, started) = stat(pid)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, started })
    }

    /// Whether the process still runs. A zombie does not run.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Resident memory, bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.status_kib("VmRSS:") * 1024
    }

    /// Resident memory that no file backs: the memory that the process has allocated. (Pages of a program's file depend
    /// on the page cache.)
    pub fn anonymous_bytes(&self) -> u64 {
        self.status_kib("RssAnon:") * 1024
    }

    fn status_kib(&self, field: &str) -> u64 {
        let status = fs::read_to_string(self.path("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let value = line.and_then(|line| line.split_whitespace().next());
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Processor time that its threads have used so far; 0 if the process is gone. In steps of 10 ms.
    pub fn processor_time(&self) -> Duration {
        let text = fs::read_to_string(self.path("stat")).unwrap_or_default();
        let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<u64>().ok())
            .sum();
        Duration::from_millis(ticks * 10)
    }

    /// Number of open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.path("fd")).map_or(0, Iterator::count)
    }

    /// Number of mapped areas.
    pub fn mappings(&self) -> usize {
        fs::read_to_string(self.path("maps")).map_or(0, |maps| maps.lines().count())
    }

    /// Whether the process has mapped a file of this name.
    pub fn maps(&self, name: &str) -> bool {
        fs::read_to_string(self.path("maps")).is_ok_and(|maps| maps.contains(name))
    }

    /// Cores that each of its threads may run on, in the kernel's notation (`0`, `0-1`).
    pub fn cores_of_threads(&self) -> Vec<String> {
        let Ok(tasks) = fs::read_dir(self.path("task")) else {
            return Vec::new();
        };
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let cores = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.map(|cores| cores.trim().to_owned())
        };
        tasks.flatten().filter_map(status).filter_map(cores).collect()
    }

    /// Number, name, state and parent, for messages.
    pub fn describe(&self) -> String {
        let status = fs::read_to_string(self.path("status")).unwrap_or_default();
        let told = ["Name:", "State:", "PPid:", "Threads:"];
        let lines = status
            .lines()
            .filter(|line| told.iter().any(|field| line.starts_with(field)));
        format!(
            "{} {}",
            self.pid,
            lines.collect::<Vec<_>>().join(" ").replace('\t', " ")
        )
    }

    /// Running children, their children, and so on.
    pub fn descendants(&self) -> Vec<Self> {
        let pids = || {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        };
        let parents: Vec<(i32, i32)> = pids().filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
        let mut found = vec![self.pid];
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            next += 1;
        }
        found[1..].iter().filter_map(|pid| Self::of(*pid)).collect()
    }

    /// Sends the process a signal; does nothing if it is gone.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        if self.is_alive() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid), signal);
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }
}

/// State, parent and start time.
fn stat(pid: i32) -> Option<(char, i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, also spaces and parentheses.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some((
        fields.first()?.chars().next()?,
        fields.get(1)?.parse().ok()?,
        fields.get(19)?.parse().ok()?,
    ))
}

/// Cores that this process may run on.
pub fn cores() -> Vec<u32> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).expect("the affinity mask");
    (0..nix::sched::CpuSet::count())
        .filter(|core| set.is_set(*core).unwrap_or(false))
        .map(|core| core as u32)
        .collect()
}
