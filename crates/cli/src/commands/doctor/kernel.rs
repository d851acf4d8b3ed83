//! Checks of kernel features: tried out where possible, not guessed from the kernel's version.

use super::Finding;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::{Memory, read_sealed, sealed_copy};
use hotlease_terminal::quantity;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const CHECKS: &[fn() -> Vec<Finding>] = &[version, shared_memory, futex, limits, memory];

/// First kernel with `pidfd_open`, by which agents learn at once that a worker died.
const KERNEL_MIN: (u32, u32) = (5, 3);

fn version() -> Vec<Finding> {
    const CHECK: &str = "kernel";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let (major, minor) = KERNEL_MIN;
    vec![match release_number(release) {
        Some(number) if number >= KERNEL_MIN => Finding::ok(CHECK, release),
        Some(_) => Finding::fail(
            CHECK,
            release,
            format!("Linux {major}.{minor} or later is needed (pidfd_open)"),
        ),
        None => Finding::warn(
            CHECK,
            "its release is not known",
            format!("Linux {major}.{minor} or later is needed; mount /proc"),
        ),
    }]
}

fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn shared_memory() -> Vec<Finding> {
    const CHECK: &str = "shared memory";
    let size = 1 << 20;
    let tried = || {
        let rings = Memory::create("hotlease-doctor", size)?;
        let copy = rings.fd().try_clone_to_owned().map(|fd| Memory::attach(fd, size));
        let sealed = sealed_copy("hotlease-doctor", b"sealed")?;
        let read = read_sealed(sealed.as_fd(), 6)?;
        Ok::<_, hotlease_fabric::memory::MemoryError>((copy, read))
    };
    let advice =
        "memfd_create, F_ADD_SEALS and mmap must be allowed: check the container's system call filter and memory limit";
    vec![match tried() {
        Ok((Ok(Ok(_)), read)) if read == b"sealed" => Finding::ok(CHECK, "memfd, seals and mapping work"),
        Ok((Ok(Err(error)), _)) => Finding::fail(CHECK, format!("cannot be attached: {error}"), advice),
        Ok((Err(error), _)) => Finding::fail(CHECK, format!("cannot be passed on: {error}"), advice),
        Ok(_) => Finding::fail(CHECK, "sealed bytes read back differently", advice),
        Err(error) => Finding::fail(CHECK, error.to_string(), advice),
    }]
}

fn futex() -> Vec<Finding> {
    const CHECK: &str = "futex";
    const SLEEP: Duration = Duration::from_millis(20);
    const WAKE_WITHIN: Duration = Duration::from_secs(2);
    // A sleeper checks its condition after every wake-up, and spurious wake-ups are rare.
    const LOOKS_MAX: u32 = 100;
    let advice = "the futex system call must be allowed: check the container's system call filter";
    let doorbell = match Doorbell::create() {
        Ok(doorbell) => doorbell,
        Err(error) => return vec![Finding::fail(CHECK, error.to_string(), advice)],
    };
    let rung = AtomicBool::new(false);
    let mut looks = 0;
    let (woken, took) = thread::scope(|scope| {
        let ringer = scope.spawn(|| {
            thread::sleep(SLEEP);
            let start = Instant::now();
            rung.store(true, Ordering::Release);
            doorbell.ring();
            start
        });
        let look = || {
            looks += 1;
            rung.load(Ordering::Acquire)
        };
        let woken = doorbell.sleep_unless(look, Some(WAKE_WITHIN));
        let end = Instant::now();
        let start = ringer.join().unwrap_or(end);
        (woken, end.saturating_duration_since(start))
    });
    vec![match woken {
        false => Finding::fail(CHECK, "a sleeper was not woken", advice),
        true if looks > LOOKS_MAX => Finding::fail(CHECK, "sleeping returns at once", advice),
        true => {
            let took = quantity::nanoseconds(took.as_nanos() as u64);
            Finding::ok(CHECK, format!("a sleeper was woken in {took}"))
        }
    }]
}

fn limits() -> Vec<Finding> {
    const CHECK: &str = "limits";
    const FILES_MIN: u64 = 1024;
    const PROCESSES_MIN: u64 = 256;
    const ADDRESS_SPACE_MIN: u64 = 1 << 40;
    let mut findings = Vec::new();
    let soft = |resource| getrlimit(resource).map(|(soft, _)| soft).unwrap_or(RLIM_INFINITY);
    let files = soft(Resource::RLIMIT_NOFILE);
    if files < FILES_MIN {
        let advice = format!("a worker takes about ten; `ulimit -n {FILES_MIN}` before `hotlease up`");
        findings.push(Finding::warn(CHECK, format!("{files} open files"), advice));
    }
    let processes = soft(Resource::RLIMIT_NPROC);
    if processes < PROCESSES_MIN {
        let advice = format!("workers and slots count as processes; `ulimit -u {PROCESSES_MIN}` or more");
        findings.push(Finding::warn(CHECK, format!("{processes} processes"), advice));
    }
    let space = soft(Resource::RLIMIT_AS);
    if space != RLIM_INFINITY && space < ADDRESS_SPACE_MIN {
        let finding = format!("{} of address space", quantity::bytes(space));
        let advice = "buffers are mapped by client and worker; `ulimit -v unlimited` unless the limit is intended";
        findings.push(Finding::warn(CHECK, finding, advice));
    }
    if findings.is_empty() {
        let files = if files == RLIM_INFINITY {
            "unlimited".into()
        } else {
            files.to_string()
        };
        findings.push(Finding::ok(
            CHECK,
            format!("open files: {files}; processes and address space: enough"),
        ));
    }
    findings
}

fn memory() -> Vec<Finding> {
    const CHECK: &str = "memory";
    const AVAILABLE_MIN: u64 = 512 << 20;
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(available) = available_bytes(&text) else {
        return vec![Finding::warn(CHECK, "/proc/meminfo cannot be read", "mount /proc")];
    };
    let finding = format!("{} available", quantity::bytes(available));
    vec![if available < AVAILABLE_MIN {
        Finding::warn(
            CHECK,
            finding,
            "buffers and cached libraries are kept in memory; free some",
        )
    } else {
        Finding::ok(CHECK, finding)
    }]
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_as_numbers() {
        assert_eq!(release_number("6.1.0-32-amd64"), Some((6, 1)));
        assert_eq!(release_number("5.10"), Some((5, 10)));
        assert!(release_number("5.10").unwrap() > KERNEL_MIN);
        assert_eq!(release_number("unknown"), None);
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(
            available_bytes("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(available_bytes("MemAvailable: lots\n"), None);
    }
}
