//! Attempts at other processes of this user: at their memory and environment, and to kill or stop them.

use crate::attempt::{AttemptResult, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use crate::variables::{number, path, text};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

pub(super) const THEME: Threat = Threat {
    threat: "look into other processes, change or end them",
    attempts: attempts! {
        "ptrace-attach", "attach to the neighbour as a debugger does, and read its memory", ptrace_attach, by_secret();
        "ptrace-seize", "trace the neighbour without stopping it", ptrace_seize;
        "process-vm-readv", "read the neighbour's memory by process_vm_readv", process_vm_readv, by_secret();
        "process-vm-writev", "write into the neighbour's memory by process_vm_writev", process_vm_writev, by_effect();
        "proc-mem-read", "read the neighbour's memory from /proc/PID/mem", proc_mem_read, by_secret();
        "proc-mem-write", "write the neighbour's memory through /proc/PID/mem", proc_mem_write, by_effect();
        "proc-environ", "read the neighbour's environment from /proc/PID/environ", proc_environ, by_secret();
        "proc-maps", "read where the neighbour's memory is, from /proc/PID/maps", proc_maps;
        "proc-fd", "open the neighbour's nameless memory through /proc/PID/fd", proc_fd, by_secret();
        "pidfd-getfd", "take a descriptor out of the neighbour by pidfd_getfd",
            pidfd_getfd, by_secret(), needs("Linux 5.6");
        "proc-root", "reach a file through the neighbour's /proc/PID/root", proc_root, by_secret();
        "proc-cwd", "reach a file through the neighbour's /proc/PID/cwd", proc_cwd, by_secret();
        "proc-list", "find the neighbour in a listing of /proc, by its command line", proc_list;
        "kill", "kill the neighbour", kill, by_effect();
        "kill-group", "send a signal to the neighbour's process group", kill_group, by_effect();
        "pidfd-signal", "send a signal through a pidfd", pidfd_signal, by_effect(), needs("Linux 5.3");
        "queue-signal", "send a signal with a value, as if from another process", queue_signal, by_effect();
        "signal-by-descriptor", "have the kernel signal the neighbour when a descriptor is ready (F_SETOWN, F_SETSIG)",
            signal_by_descriptor, by_effect();
        "prlimit", "change the neighbour's limits", prlimit, by_effect();
        "renice", "make the neighbour slower by setpriority", renice, by_effect();
        "neighbour-affinity", "move the neighbour to one processor", affinity, by_effect(), needs("two processors");
        "neighbour-oom", "make the neighbour the first to be killed when memory runs out", oom_score, by_effect();
        "join-group", "move into the neighbour's process group by setpgid", join_group;
    },
};

/// Signal that the neighbour counts.
const SIGNAL: i32 = libc::SIGUSR1;

/// Text of the bytes, which may or may not contain the secret.
fn as_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ptrace_attach() -> AttemptResult {
    let (pid, address): (i32, u64) = (number("PID")?, number("ADDRESS")?);
    kernel!(SYS_ptrace, libc::PTRACE_ATTACH, pid, 0, 0)?;
    let mut status = 0;
    kernel!(SYS_wait4, pid, &raw mut status, libc::__WALL, 0)?;
    let mut read = [0u64; 4];
    for (index, word) in read.iter_mut().enumerate() {
        kernel!(
            SYS_ptrace,
            libc::PTRACE_PEEKDATA,
            pid,
            address + 8 * index as u64,
            &raw mut *word
        )?;
    }
    kernel!(SYS_ptrace, libc::PTRACE_DETACH, pid, 0, 0)?;
    Ok(as_text(&read.map(u64::to_ne_bytes).concat()))
}

fn ptrace_seize() -> AttemptResult {
    kernel!(SYS_ptrace, libc::PTRACE_SEIZE, number::<i32>("PID")?, 0, 0)?;
    Ok("traces the neighbour".into())
}

fn vectors(local: &mut [u8], remote: u64) -> (libc::iovec, libc::iovec) {
    let length = local.len();
    let of = |base: u64| libc::iovec {
        iov_base: base as *mut libc::c_void,
        iov_len: length,
    };
    (of(local.as_mut_ptr() as u64), of(remote))
}

/// Reads 32 bytes at `address` of another process by `process_vm_readv`.
pub(super) fn read_memory(pid: i32, address: u64) -> AttemptResult {
    let mut read = [0; 32];
    let (local, remote) = vectors(&mut read, address);
    kernel!(SYS_process_vm_readv, pid, &raw const local, 1, &raw const remote, 1, 0)?;
    Ok(as_text(&read))
}

fn process_vm_readv() -> AttemptResult {
    read_memory(number("PID")?, number("ADDRESS")?)
}

fn process_vm_writev() -> AttemptResult {
    let mut written = *b"overwritten";
    let (local, remote) = vectors(&mut written, number("CANARY")?);
    kernel!(
        SYS_process_vm_writev,
        number::<i32>("PID")?,
        &raw const local,
        1,
        &raw const remote,
        1,
        0
    )?;
    Ok("wrote the neighbour's memory".into())
}

fn of_neighbour(entry: &str) -> Result<String, crate::attempt::StopReason> {
    Ok(format!("/proc/{}/{entry}", number::<i32>("PID")?))
}

fn proc_mem_read() -> AttemptResult {
    let memory = File::open(of_neighbour("mem")?).map_err(with_place("open"))?;
    let mut read = [0; 32];
    memory.read_exact_at(&mut read, number("ADDRESS")?)?;
    Ok(as_text(&read))
}

fn proc_mem_write() -> AttemptResult {
    let memory = OpenOptions::new()
        .write(true)
        .open(of_neighbour("mem")?)
        .map_err(with_place("open"))?;
    memory.write_all_at(b"overwritten", number("CANARY")?)?;
    Ok("wrote the neighbour's memory".into())
}

fn proc_environ() -> AttemptResult {
    Ok(as_text(
        &fs::read(of_neighbour("environ")?).map_err(with_place("open"))?,
    ))
}

fn proc_maps() -> AttemptResult {
    let maps = fs::read_to_string(of_neighbour("maps")?).map_err(with_place("open"))?;
    match maps.lines().next() {
        Some(line) => Ok(line.to_owned()),
        None => denied("nothing in it"),
    }
}

fn proc_fd() -> AttemptResult {
    let name = of_neighbour(&format!("fd/{}", number::<i32>("MEMFD")?))?;
    Ok(as_text(&fs::read(name).map_err(with_place("open"))?))
}

fn pidfd_getfd() -> AttemptResult {
    let pidfd = kernel!(SYS_pidfd_open, number::<i32>("PID")?, 0)?;
    let taken = kernel!(SYS_pidfd_getfd, pidfd, number::<i32>("MEMFD")?, 0)?;
    let mut read = [0u8; 32];
    kernel!(SYS_pread64, taken, read.as_mut_ptr(), read.len(), 0)?;
    Ok(as_text(&read))
}

fn proc_root() -> AttemptResult {
    let through = format!("{}{}", of_neighbour("root")?, path("FILE")?.display());
    Ok(as_text(&fs::read(through).map_err(with_place("open"))?))
}

fn proc_cwd() -> AttemptResult {
    Ok(as_text(
        &fs::read(of_neighbour("cwd/secret")?).map_err(with_place("open"))?,
    ))
}

fn proc_list() -> AttemptResult {
    let token = text("NEIGHBOUR_TOKEN")?;
    for entry in fs::read_dir("/proc").map_err(with_place("/proc"))?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = as_text(&line);
        if line.contains("neighbour") && line.contains(&token) {
            return Ok(format!("sees process {}: {line}", entry.file_name().display()));
        }
    }
    denied("no such process in /proc")
}

fn kill() -> AttemptResult {
    kernel!(SYS_kill, number::<i32>("PID")?, libc::SIGKILL)?;
    Ok("kill was taken".into())
}

fn kill_group() -> AttemptResult {
    kernel!(SYS_kill, -number::<i32>("PID")?, SIGNAL)?;
    Ok("kill was taken".into())
}

fn pidfd_signal() -> AttemptResult {
    let pidfd = kernel!(SYS_pidfd_open, number::<i32>("PID")?, 0)?;
    kernel!(SYS_pidfd_send_signal, pidfd, SIGNAL, 0, 0)?;
    Ok("the signal was taken".into())
}

fn queue_signal() -> AttemptResult {
    // A siginfo_t: number, errno, code (SI_QUEUE), and a sender that does not exist.
    let mut info = [0i32; 32];
    info[0] = SIGNAL;
    info[2] = -1;
    kernel!(SYS_rt_sigqueueinfo, number::<i32>("PID")?, SIGNAL, info.as_ptr())?;
    Ok("the signal was taken".into())
}

fn signal_by_descriptor() -> AttemptResult {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
    let fd = ours.as_raw_fd();
    kernel!(SYS_fcntl, fd, libc::F_SETOWN, number::<i32>("PID")?)?;
    kernel!(SYS_fcntl, fd, 10 /* F_SETSIG */, SIGNAL)?;
    kernel!(SYS_fcntl, fd, libc::F_SETFL, libc::O_ASYNC)?;
    theirs.write_all(b"now")?;
    Ok("the descriptor has the neighbour as its owner".into())
}

fn prlimit() -> AttemptResult {
    let pid: i32 = number("PID")?;
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    kernel!(SYS_prlimit64, pid, libc::RLIMIT_NOFILE, 0, &raw mut limit)?;
    limit.rlim_cur -= 1;
    kernel!(SYS_prlimit64, pid, libc::RLIMIT_NOFILE, &raw const limit, 0)?;
    Ok("changed the neighbour's limit of descriptors".into())
}

fn renice() -> AttemptResult {
    kernel!(SYS_setpriority, libc::PRIO_PROCESS, number::<i32>("PID")?, 19)?;
    Ok("changed the neighbour's priority".into())
}

fn affinity() -> AttemptResult {
    let mask = 1u64;
    kernel!(SYS_sched_setaffinity, number::<i32>("PID")?, 8, &raw const mask)?;
    Ok("moved the neighbour".into())
}

fn oom_score() -> AttemptResult {
    fs::write(of_neighbour("oom_score_adj")?, "1000").map_err(with_place("oom_score_adj"))?;
    Ok("changed the neighbour's oom_score_adj".into())
}

fn join_group() -> AttemptResult {
    kernel!(SYS_setpgid, 0, number::<i32>("PID")?)?;
    Ok("is of the neighbour's group now, and no longer of the agent's".into())
}
