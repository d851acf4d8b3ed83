//! Attempts to get more than the grant: priority, processors, limits.

use crate::attempt::{AttemptResult, Capability, Threat, attempts, denied, untried};
use crate::syscall::kernel;
use crate::variables::number;

pub(super) const THEME: Threat = Threat {
    threat: "take more processors, priority or locked memory than was granted, or raise its limits",
    attempts: attempts! {
        "processors", "run on processors that were not granted (sched_setaffinity)",
            processors, needs("two processors");
        "realtime", "run before everybody else (SCHED_FIFO)",
            realtime, with_capability(Capability::SysNice), needs("real-time scheduling");
        "deadline", "reserve a processor (SCHED_DEADLINE)",
            deadline, with_capability(Capability::SysNice), needs("a processor that can be reserved");
        "nice", "raise its own priority", nice, with_capability(Capability::SysNice);
        "io-priority", "have its disk accesses made first (ioprio_set)",
            io_priority, with_capability(Capability::SysNice);
        "mlock", "lock more memory than its limit allows", mlock, with_capability(Capability::IpcLock);
        "limits-raise", "raise its own hard limits", limits_raise, with_capability(Capability::SysResource);
        "oom-score", "be the last to be killed when memory runs out",
            oom_score, with_capability(Capability::SysResource);
        "pipe-size", "make pipes larger than the system allows", pipe_size, with_capability(Capability::SysResource);
    },
};

fn processors() -> AttemptResult {
    let granted: u32 = number("CPUS")?;
    let all = [u64::MAX; 16];
    let asked = kernel!(SYS_sched_setaffinity, 0, 128, all.as_ptr());
    let mut now = [0u64; 16];
    kernel!(SYS_sched_getaffinity, 0, 128, now.as_mut_ptr())?;
    let count: u32 = now.iter().map(|word| word.count_ones()).sum();
    match count > granted {
        true => Ok(format!("may run on {count} processors, and was granted {granted}")),
        false => {
            asked?;
            denied(format!("without effect: still on {count} of them"))
        }
    }
}

fn realtime() -> AttemptResult {
    let priority = 1i32;
    kernel!(SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority)?;
    Ok("runs before everybody".into())
}

fn deadline() -> AttemptResult {
    // struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period. A tenth of a processor.
    const SCHED_DEADLINE: u64 = 6;
    let attributes = [48 | SCHED_DEADLINE << 32, 0, 0, 1_000_000, 10_000_000, 10_000_000];
    kernel!(SYS_sched_setattr, 0, attributes.as_ptr(), 0)?;
    Ok("reserved a part of a processor".into())
}

fn nice() -> AttemptResult {
    let before = kernel!(SYS_getpriority, libc::PRIO_PROCESS, 0)?;
    // The raw call returns 20 minus the nice value, from 40 down.
    kernel!(SYS_setpriority, libc::PRIO_PROCESS, 0, 20 - before - 5)?;
    Ok("raised its priority".into())
}

fn io_priority() -> AttemptResult {
    const REALTIME: i32 = 1 << 13;
    kernel!(SYS_ioprio_set, 1, 0, REALTIME)?;
    Ok("its disk accesses come first".into())
}

fn limit(resource: u32) -> Result<libc::rlimit64, crate::attempt::StopReason> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    kernel!(SYS_prlimit64, 0, resource, 0, &raw mut limit)?;
    Ok(limit)
}

fn mlock() -> AttemptResult {
    const TOO_MUCH: usize = 128 << 20;
    let allowed = limit(libc::RLIMIT_MEMLOCK)?.rlim_max;
    let Ok(allowed @ 0..TOO_MUCH) = usize::try_from(allowed) else {
        return Ok("there is no limit".into());
    };
    let length = allowed + (1 << 20);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let address = kernel!(SYS_mmap, 0, length, protection, flags, -1, 0)?;
    kernel!(SYS_mlock, address, length)?;
    Ok(format!("locked {length} bytes where {allowed} are allowed"))
}

fn limits_raise() -> AttemptResult {
    let mut finite = 0;
    let mut stopped = None;
    for resource in 0..16 {
        let mut now = limit(resource)?;
        if now.rlim_max == libc::RLIM64_INFINITY {
            continue;
        }
        finite += 1;
        now.rlim_max += 1;
        match kernel!(SYS_prlimit64, 0, resource, &raw const now, 0) {
            Ok(_) => return Ok(format!("raised limit {resource}")),
            Err(stop) => stopped = Some(stop),
        }
    }
    match stopped {
        Some(stop) => Err(stop),
        None => untried(format!("{finite} limits to be raised")),
    }
}

fn oom_score() -> AttemptResult {
    // The value is below the initial value, which needs the capability.
    std::fs::write("/proc/self/oom_score_adj", "-999")?;
    Ok("changed its oom_score_adj".into())
}

fn pipe_size() -> AttemptResult {
    let limit = std::fs::read_to_string("/proc/sys/fs/pipe-max-size").unwrap_or_default();
    let limit: i64 = limit.trim().parse().unwrap_or(1 << 20);
    let (reader, _writer) = std::io::pipe()?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
    kernel!(SYS_fcntl, fd, libc::F_SETPIPE_SZ, limit * 2)?;
    Ok(format!("a pipe of {} bytes", limit * 2))
}
