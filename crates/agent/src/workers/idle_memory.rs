//! Idle memory of the node: waiting workers borrow it, and must give it back before other processes have to wait for
//! memory. `/proc/meminfo` and `/proc/pressure/memory` are the sources; if the kernel lacks these files, there is
//! always enough.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Memory is short when less than one part in this many of the node's memory is available.
const LEAST_PART: u64 = 10;
/// Memory is ample when at least one part in this many of it is available. If processes wait for memory even then, they
/// have reached a limit of their own control group, or wait for pages of files: the end of idle workers would not help.
const AMPLE_PART: u64 = 2;
/// If memory is not ample, it is short when processes wait for it for more than this share of time. The kernel averages
/// this share over ten seconds.
const PRESSURE_PERCENT: f64 = 10.0;
/// Triggers for an alarm: the microseconds for which a process has waited, and the microseconds of the window in which
/// this is counted. The kernel checks ten times in each window. The shorter window needs CAP_SYS_RESOURCE. The kernel
/// treats the last byte as the end of the text.
const TRIGGERS: [&str; 2] = ["some 50000 500000\0", "some 50000 2000000\0"];
/// Interval of the checks without an alarm.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The node's idle memory, as the kernel reports it.
pub(crate) struct IdleMemory {
    meminfo: PathBuf,
    pressure: PathBuf,
}

impl IdleMemory {
    /// Reads the files of this host.
    pub fn of_node() -> Self {
        Self::from_files("/proc/meminfo", "/proc/pressure/memory")
    }

    /// Reads these files.
    pub fn from_files(meminfo: impl Into<PathBuf>, pressure: impl Into<PathBuf>) -> Self {
        Self {
            meminfo: meminfo.into(),
            pressure: pressure.into(),
        }
    }

    /// Whether other processes wait for memory, or will soon have to wait.
    pub fn is_short(&self) -> bool {
        let pressure = fs::read_to_string(&self.pressure).unwrap_or_default();
        !self.has_room(0) || is_waited_for(&pressure) && !self.is_ample()
    }

    /// Whether the host has ample memory: then waits of its processes for memory are ignored.
    pub fn is_ample(&self) -> bool {
        available_part(&self.meminfo()).is_none_or(|(total, available)| available >= total / AMPLE_PART)
    }

    /// Whether this many bytes may be borrowed.
    pub fn has_room(&self, bytes: u64) -> bool {
        has_room(&self.meminfo(), bytes)
    }

    /// Number of bytes that may be borrowed.
    pub fn room(&self) -> u64 {
        let room = |(total, available): (u64, u64)| available.saturating_sub(total / LEAST_PART);
        available_part(&self.meminfo()).map_or(u64::MAX, room)
    }

    fn meminfo(&self) -> String {
        fs::read_to_string(&self.meminfo).unwrap_or_default()
    }

    /// Sets up the kernel's alarm, which reports waits for memory at once.
    pub fn alarm(&self) -> Alarm {
        let told = TRIGGERS.iter().find_map(|trigger| self.told_at_once(trigger).ok());
        Alarm(told)
    }

    fn told_at_once(&self, trigger: &str) -> io::Result<AsyncFd<File>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK);
        let mut file = options.open(&self.pressure)?;
        // A trigger lives as long as its descriptor; one write sets it.
        file.write_all(trigger.as_bytes())?;
        // See AsyncSocket::new; a file owns its descriptor as well.
        #[allow(deprecated)]
        AsyncFd::with_interest(file, Interest::PRIORITY)
    }
}

/// The kernel's alarm for waits for memory.
pub(crate) struct Alarm(Option<AsyncFd<File>>);

impl Alarm {
    /// Waits until the alarm is raised; waits for ever if the kernel has no alarm.
    pub async fn wait(&mut self) {
        let Some(told) = &self.0 else {
            return std::future::pending().await;
        };
        match told.ready(Interest::PRIORITY).await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                tracing::warn!(%error, "the kernel no longer reports at once that memory is short: the agent reads free memory each second");
                self.0 = None;
            }
        }
    }
}

fn has_room(meminfo: &str, bytes: u64) -> bool {
    available_part(meminfo).is_none_or(|(total, available)| available >= (total / LEAST_PART).saturating_add(bytes))
}

/// Bytes of memory, and how many of them are available.
fn available_part(meminfo: &str) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.map(|kib| kib.saturating_mul(1024))
    };
    Some((of("MemTotal:")?, of("MemAvailable:")?))
}

fn is_waited_for(pressure: &str) -> bool {
    let waits = pressure.lines().find_map(|line| {
        let average = line.strip_prefix("some ")?.split_whitespace().next()?;
        average.strip_prefix("avg10=")?.parse::<f64>().ok()
    });
    waits.is_some_and(|percent| percent > PRESSURE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_when_little_is_left_or_a_request_waits_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (meminfo, pressure) = (folder.path().join("meminfo"), folder.path().join("memory"));
        let memory = IdleMemory::from_files(&meminfo, &pressure);
        assert!(
            !memory.is_short() && memory.has_room(u64::MAX),
            "a kernel that does not say"
        );
        for (available, average, short) in [
            (500, "0.00", false),
            (99, "0.00", true),
            (499, "10.01", true),
            (499, "10.00", false),
            (499, "?", false),
            (500, "10.01", false),
        ] {
            let text = format!("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n");
            fs::write(&meminfo, text).expect("written");
            let text = format!("some avg10={average} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00\n");
            fs::write(&pressure, text).expect("written");
            assert_eq!(memory.is_short(), short, "{available} {average}");
        }
    }

    #[test]
    fn borrowed_memory_leaves_a_tenth_of_the_host() {
        let meminfo = "MemTotal: 1000 kB\nMemAvailable: 300 kB\n";
        assert!(has_room(meminfo, 200 << 10));
        assert!(!has_room(meminfo, (200 << 10) + 1));
        assert!(!has_room(meminfo, u64::MAX));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("meminfo");
        fs::write(&file, meminfo).expect("written");
        assert_eq!(IdleMemory::from_files(&file, "").room(), 200 << 10);
        fs::write(&file, "MemTotal: 1000 kB\nMemAvailable: 30 kB\n").expect("written");
        assert_eq!(IdleMemory::from_files(&file, "").room(), 0);
        assert_eq!(IdleMemory::from_files("", "").room(), u64::MAX);
    }

    /// Microseconds for which processes of this host have waited for memory.
    fn stall_us(memory: &IdleMemory) -> u64 {
        let pressure = fs::read_to_string(&memory.pressure).expect("readable");
        let total = pressure.lines().next().and_then(|line| line.rsplit_once("total="));
        total.expect("a total").1.parse().expect("a number")
    }

    #[tokio::test]
    async fn the_kernel_is_asked_for_an_alarm_where_it_has_one_and_a_file_that_is_none_never_rings() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory");
        fs::write(&file, "").expect("written");
        for memory in [IdleMemory::from_files("", &file), IdleMemory::from_files("", "")] {
            let mut alarm = memory.alarm();
            assert!(alarm.0.is_none());
            let rung = tokio::time::timeout(Duration::from_millis(20), alarm.wait()).await;
            assert!(rung.is_err(), "it rang");
        }
        let node = IdleMemory::of_node();
        match fs::read_to_string(&node.pressure) {
            Ok(_) => {
                let before = stall_us(&node);
                let mut alarm = node.alarm();
                assert!(alarm.0.is_some(), "the kernel refused a trigger");
                // The file is always readable, which must not be taken for an alarm.
                let rung = tokio::time::timeout(Duration::from_millis(20), alarm.wait()).await;
                assert!(
                    rung.is_err() || stall_us(&node) > before,
                    "it rang, and no process had waited"
                );
            }
            Err(error) => eprintln!("skipped: {}: {error}", node.pressure.display()),
        }
    }
}
