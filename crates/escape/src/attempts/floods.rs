//! Attempts to use up resources. Each flood uses twice the granted amount if it can. Otherwise it continues for a
//! while, so that the neighbour's pace can be measured meanwhile.

use super::files::own_path;
use crate::attempt::{AttemptResult, StopReason, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use crate::variables::number;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(super) const THEME: Threat = Threat {
    threat: "use up processes, memory, disk, descriptors or time of others",
    attempts: attempts! {
        "flood-processes", "have twice as many processes as were granted", processes, flood();
        "flood-threads", "have twice as many threads as were granted", threads, flood();
        "flood-zombies", "leave twice as many dead processes unwaited for", zombies, flood();
        "flood-memory", "use twice as much memory as was granted", memory, flood();
        "flood-memory-children", "the same, spread over children", memory_children, flood();
        "flood-memory-files", "the same, in nameless files (memfd_create)", memory_files, flood();
        "flood-tmp", "write twice as much into its temporary folder as was granted", tmp, flood();
        "flood-shm", "write twice as much into /dev/shm as was granted", shm, flood();
        "flood-descriptors", "open twice as many descriptors as were granted", descriptors, flood();
        "flood-log", "print until the agent's memory is full", log, flood(), by_effect(), need_not_succeed();
        "flood-cpu", "compute on more processors than were granted", cpu, flood(), need_not_succeed();
    },
};

/// Repeats the attempt for the duration of a flood. Ends at once if the attempt succeeds.
fn keep_on(mut go: impl FnMut() -> AttemptResult) -> AttemptResult {
    let patience = Duration::from_millis(number("FLOOD_MILLIS")?);
    let begin = Instant::now();
    loop {
        let outcome = go();
        if outcome.is_ok() || begin.elapsed() >= patience {
            return outcome;
        }
    }
}

/// Forks. The new process calls `child` and ends, so only the parent returns from this function.
pub(super) fn spawn(child: impl FnOnce()) -> Result<libc::pid_t, StopReason> {
    // SAFETY: this process has one thread, so the child may do what any process may.
    match unsafe { libc::fork() } {
        0 => {
            child();
            // SAFETY: ends this process without running the exit handlers of its parent.
            unsafe { libc::_exit(0) }
        }
        -1 => Err(with_place("fork")(nix::errno::Errno::last())),
        pid => Ok(pid),
    }
}

/// Sleeps until the process is killed.
pub(super) fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn end_children(children: &[libc::pid_t]) {
    for child in children {
        // Each of them is a child of this process that was not waited for yet, so it can be killed and waited for.
        let _ = kernel!(SYS_kill, *child, libc::SIGKILL);
    }
    for child in children {
        let _ = kernel!(SYS_wait4, *child, 0, 0, 0);
    }
}

/// Starts this number of children, which live at the same time, and ends them.
fn with_children(count: usize, child: impl Fn()) -> Result<(), StopReason> {
    let mut children = Vec::with_capacity(count);
    let mut outcome = Ok(());
    for _ in 0..count {
        match spawn(&child) {
            Ok(pid) => children.push(pid),
            Err(stop) => {
                outcome = Err(with_place(format!("after {}", children.len()))(stop));
                break;
            }
        }
    }
    end_children(&children);
    outcome
}

fn twice(name: &str) -> Result<usize, StopReason> {
    Ok(2 * number::<usize>(name)?)
}

fn processes() -> AttemptResult {
    let count = twice("PROCESSES")?;
    keep_on(|| {
        with_children(count, || sleep_forever())?;
        Ok(format!("had {count} processes"))
    })
}

fn threads() -> AttemptResult {
    let count = twice("PROCESSES")?;
    keep_on(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut started = Vec::with_capacity(count);
            let mut outcome = Ok(format!("had {count} threads"));
            for number in 0..count {
                let thread = std::thread::Builder::new().stack_size(64 << 10);
                match thread.spawn_scoped(scope, || {
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::park();
                    }
                }) {
                    Ok(handle) => started.push(handle),
                    Err(error) => {
                        outcome = Err(with_place(format!("after {number}: clone"))(error));
                        break;
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            started.iter().for_each(|handle| handle.thread().unpark());
            outcome
        })
    })
}

fn zombies() -> AttemptResult {
    let count = twice("PROCESSES")?;
    keep_on(|| {
        with_children(count, || {})?;
        Ok(format!("left {count} dead processes"))
    })
}

const STEP: usize = 1 << 20;

/// Allocates this much memory, touches every page, and never frees it.
fn allocate(bytes: usize) -> Result<(), StopReason> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for taken in (0..bytes).step_by(STEP) {
        let address = kernel!(SYS_mmap, 0, STEP, protection, flags, -1, 0)
            .map_err(with_place(format!("after {} MiB", taken >> 20)))?;
        for offset in (0..STEP).step_by(4096) {
            // SAFETY: the address is in the mapping that was just made, which is writable.
            unsafe { std::ptr::write_volatile((address as usize + offset) as *mut u8, 1) };
        }
    }
    Ok(())
}

fn memory() -> AttemptResult {
    let bytes = twice("MEMORY_BYTES")?;
    // Allocates in a child, because the kernel may kill the process that allocates.
    keep_on(|| memory_of(1, bytes))
}

fn memory_children() -> AttemptResult {
    let bytes = twice("MEMORY_BYTES")?;
    keep_on(|| memory_of(4, bytes / 4))
}

/// Starts children that allocate this much memory each, at the same time.
fn memory_of(children: usize, bytes: usize) -> AttemptResult {
    let (mut done, said) = std::io::pipe()?;
    let mut started = Vec::new();
    for _ in 0..children {
        let said = said.try_clone()?;
        started.push(spawn(move || {
            let answer = match allocate(bytes) {
                Ok(()) => b'k',
                Err(_) => b'n',
            };
            let _ = (&said).write_all(&[answer]);
            sleep_forever();
        })?);
    }
    drop(said);
    // A killed child writes no answer, so the loop alternates between reading the pipe and waiting for children.
    let mut answers = Vec::new();
    let mut killed = 0;
    let patience = Instant::now();
    while answers.len() + killed < children && patience.elapsed() < Duration::from_secs(5) {
        let mut ready = [nix::poll::PollFd::new(done.as_fd(), nix::poll::PollFlags::POLLIN)];
        if nix::poll::poll(&mut ready, 5u8)? > 0 {
            let mut answer = [0];
            match std::io::Read::read(&mut done, &mut answer)? {
                0 => break,
                _ => answers.push(answer[0]),
            }
        }
        started.retain(|child| {
            let gone = kernel!(SYS_wait4, *child, 0, libc::WNOHANG, 0).is_ok_and(|pid| pid != 0);
            killed += usize::from(gone);
            !gone
        });
    }
    end_children(&started);
    match answers.iter().filter(|answer| **answer == b'k').count() {
        all if all == children => Ok(format!("used {} MiB", (children * bytes) >> 20)),
        _ if killed > 0 => denied(format!("{killed} of {children} killed")),
        some => denied(format!("{some} of {children} got {} MiB each", bytes >> 20)),
    }
}

/// Writes this many bytes into an open file. Stops at an error of the file system or at a limit.
fn fill(file: &mut File, bytes: usize) -> Result<(), StopReason> {
    let chunk = vec![0x5a; STEP];
    for written in (0..bytes).step_by(STEP) {
        file.write_all(&chunk)
            .map_err(with_place(format!("after {} MiB", written >> 20)))?;
    }
    Ok(())
}

fn memory_files() -> AttemptResult {
    let bytes = twice("MEMORY_BYTES")?;
    keep_on(|| {
        // Uses several files, so that a limit on the length of one file does not stop the attempt.
        let mut files = Vec::new();
        for _ in 0..8 {
            let fd = nix::sys::memfd::memfd_create(c"flood", nix::sys::memfd::MFdFlags::empty())?;
            let mut file = File::from(fd);
            fill(&mut file, bytes / 8).map_err(with_place(format!("file {}", files.len())))?;
            files.push(file);
        }
        Ok(format!("used {} MiB", bytes >> 20))
    })
}

fn fill_folder(names: impl Fn(usize) -> PathBuf) -> AttemptResult {
    let bytes = twice("TMP_BYTES")?;
    ignore_file_size();
    keep_on(|| {
        let mut outcome = Ok(format!("wrote {} MiB", bytes >> 20));
        for number in 0..4 {
            let filled = File::create(names(number))
                .map_err(with_place("create"))
                .and_then(|mut file| fill(&mut file, bytes / 4).map_err(with_place(format!("file {number}"))));
            if let Err(stop) = filled {
                outcome = Err(stop);
                break;
            }
        }
        (0..4).for_each(|number| {
            // Fails for files that were not made.
            let _ = fs::remove_file(names(number));
        });
        outcome
    })
}

/// Makes a limit on the length of files an error instead of a signal.
fn ignore_file_size() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn tmp() -> AttemptResult {
    let name = own_path("-flood")?;
    fill_folder(|number| name.with_extension(format!("attempt-flood{number}")))
}

fn shm() -> AttemptResult {
    let name = own_path("-flood")?;
    let name = Path::new("/dev/shm").join(name.file_name().unwrap_or_default());
    fill_folder(|number| name.with_extension(format!("attempt-flood{number}")))
}

fn descriptors() -> AttemptResult {
    let count = twice("DESCRIPTORS")?;
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    kernel!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit)?;
    limit.rlim_cur = limit.rlim_max;
    kernel!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, 0)?;
    keep_on(|| {
        let mut open = Vec::with_capacity(count);
        for number in 0..count {
            let copy = std::io::stdout().as_fd().try_clone_to_owned();
            open.push(copy.map_err(with_place(format!("after {number}")))?);
        }
        Ok(format!("opened {count} descriptors"))
    })
}

fn log() -> AttemptResult {
    let line = [b'x'; 4095];
    let mut out = std::io::stdout().lock();
    let bytes = number::<usize>("LOG_BYTES")?;
    for _ in (0..bytes).step_by(line.len() + 1) {
        out.write_all(&line)?;
        out.write_all(b"\n")?;
    }
    Ok(format!("printed {} MiB", bytes >> 20))
}

fn cpu() -> AttemptResult {
    let granted: usize = number("CPUS")?;
    let millis = Duration::from_millis(number("FLOOD_MILLIS")?);
    let all = [u64::MAX; 16];
    // Fails if the sandbox prevents it.
    let _ = kernel!(SYS_sched_setaffinity, 0, 128, all.as_ptr());
    let begin = Instant::now();
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let spin = || {
                while begin.elapsed() < millis {
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            };
            // Starts as many threads as the limits allow.
            let _ = std::thread::Builder::new().spawn_scoped(scope, spin);
        }
    });
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    let used = Duration::from(used).as_secs_f64();
    let share = used / begin.elapsed().as_secs_f64();
    match share > granted as f64 * 1.5 {
        true => Ok(format!("used {share:.1} processors, and was granted {granted}")),
        false => denied(format!("used {share:.1} processors of {granted}")),
    }
}
