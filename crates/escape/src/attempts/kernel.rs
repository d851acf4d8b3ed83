//! Attempts at parts of the kernel that no function needs, and that have had most of its vulnerabilities.

use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, denied, untried, with_place};
use crate::syscall::{judge_senseless_call, kernel};
use nix::errno::Errno;
use std::fs;
use std::os::fd::AsRawFd;

pub(super) const THEME: Threat = Threat {
    threat: "call parts of the kernel that no function needs, or get round the filter of system calls",
    attempts: attempts! {
        "no-filter", "find no filter between itself and the kernel", no_filter;
        "filter-undo", "switch the filter off again", filter_undo, need_not_succeed();
        "filter-notify", "be the supervisor of a filter of its own (SECCOMP_FILTER_FLAG_NEW_LISTENER)",
            filter_notify, need_not_succeed();
        "i386-calls", "get round the filter by 32-bit system calls (int 0x80)",
            i386_calls, needs("x86-64 with 32-bit emulation");
        "x32-calls", "get round the filter by x32 system calls", x32_calls, needs("x86-64 with x32");
        "io-uring", "set up a ring by which calls go round the filter (io_uring)", io_uring, needs("io_uring");
        "bpf", "load a program into the kernel (bpf)", bpf, with_capability(Capability::SysAdmin), needs("bpf");
        "perf-event", "count events of the host (perf_event_open)",
            perf_event, with_capability(Capability::SysAdmin), needs("perf events");
        "userfaultfd", "stop the kernel in the middle of a copy (userfaultfd)", userfaultfd, needs("userfaultfd");
        "fanotify", "watch what others do with files (fanotify)",
            fanotify, with_capability(Capability::SysAdmin), needs("fanotify");
        "inotify", "be told when others run a program of the host (inotify)", inotify, needs("inotify");
        "dnotify", "be told what others do in a folder of the host (F_NOTIFY)", dnotify, needs("dnotify");
        "nameless-lock", "lock a file in the name of no process (F_OFD_SETLK)", nameless_lock;
        "out-of-band", "send out of band over a Unix socket (MSG_OOB)", out_of_band, needs("MSG_OOB on Unix sockets");
        "ptrace-own", "trace a process of its own, to change its calls after the filter saw them", ptrace_own;
        "read-implies-exec", "make all readable memory executable (personality)", read_implies_exec;
        "no-randomisation", "switch the randomisation of addresses off (personality)", no_randomisation;
        "modify-ldt", "read or make segments of its own (modify_ldt)", modify_ldt, needs("x86-64 with modify_ldt");
        "kcmp", "compare what processes have in the kernel (kcmp)", kcmp, needs("kcmp");
        "kernel-addresses", "read addresses of the kernel from /proc/kallsyms",
            kernel_addresses, with_capability(Capability::Syslog), needs("/proc/kallsyms");
        "kernel-log", "read the kernel's log (syslog)", kernel_log, with_capability(Capability::Syslog);
        "proc-kcore", "read the kernel's memory from /proc/kcore",
            proc_kcore, with_capability(Capability::SysRawio), needs("/proc/kcore");
        "tracefs", "reach the kernel's tracing or debugging",
            tracefs, with_capability(Capability::SysAdmin), needs("tracefs or debugfs");
    },
};

fn no_filter() -> AttemptResult {
    match kernel!(SYS_prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) {
        Ok(0) => Ok("every system call is open to it".into()),
        Ok(mode) => denied(format!("seccomp mode {mode}")),
        Err(stop) => Err(stop),
    }
}

fn filter_undo() -> AttemptResult {
    kernel!(SYS_prctl, libc::PR_SET_SECCOMP, 0, 0, 0, 0)?;
    match no_filter() {
        Ok(_) => Ok("switched the filter off".into()),
        Err(stop) => Err(stop),
    }
}

fn filter_notify() -> AttemptResult {
    if no_filter().is_ok() {
        return denied("there is no filter to be got round");
    }
    // A filter that passes every call of getpid to a listener: struct sock_filter, struct sock_fprog.
    let program = [
        libc::sock_filter {
            code: 0x20,
            jt: 0,
            jf: 0,
            k: 0,
        },
        libc::sock_filter {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: libc::SYS_getpid as u32,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_USER_NOTIF,
        },
        libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        },
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    kernel!(
        SYS_seccomp,
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
        &raw const program
    )?;
    Ok("may answer system calls in the kernel's place".into())
}

#[cfg(target_arch = "x86_64")]
fn i386_calls() -> AttemptResult {
    const GETPID: i32 = 20;
    let mut result = GETPID;
    // SAFETY: getpid has no arguments and touches no memory; the kernel may change r8 to r11, which are declared.
    // Without the emulation the processor faults, which ends this process, as intended.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("eax") result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    match result as u32 == std::process::id() {
        true => Ok("a 32-bit getpid was answered".into()),
        false => denied(format!("{:?}", Errno::from_raw(-result))),
    }
}

#[cfg(target_arch = "x86_64")]
fn x32_calls() -> AttemptResult {
    const X32: libc::c_long = 0x4000_0000;
    // SAFETY: getpid has no arguments and touches no memory.
    let result = unsafe { libc::syscall(X32 | libc::SYS_getpid) };
    crate::syscall::checked("getpid", result)?;
    Ok("an x32 getpid was answered".into())
}

#[cfg(target_arch = "x86_64")]
fn modify_ldt() -> AttemptResult {
    let mut table = [0u8; 64];
    kernel!(SYS_modify_ldt, 0, table.as_mut_ptr(), table.len())?;
    Ok("read its segments".into())
}

#[cfg(not(target_arch = "x86_64"))]
fn i386_calls() -> AttemptResult {
    denied("not x86-64")
}

#[cfg(not(target_arch = "x86_64"))]
fn x32_calls() -> AttemptResult {
    denied("not x86-64")
}

#[cfg(not(target_arch = "x86_64"))]
fn modify_ldt() -> AttemptResult {
    denied("not x86-64")
}

fn io_uring() -> AttemptResult {
    let mut parameters = [0u8; 120];
    kernel!(SYS_io_uring_setup, 1, parameters.as_mut_ptr())?;
    Ok("set up a ring".into())
}

fn bpf() -> AttemptResult {
    // BPF_PROG_LOAD of a socket filter: r0 = 0; exit.
    let program = [0x0000_0000_0000_00b7u64, 0x0000_0000_0000_0095];
    let mut about = [0u64; 16];
    about[0] = 1 | 2 << 32;
    about[1] = program.as_ptr() as u64;
    about[2] = c"GPL".as_ptr() as u64;
    kernel!(SYS_bpf, 5, about.as_ptr(), 72)?;
    Ok("loaded a program into the kernel".into())
}

fn perf_event() -> AttemptResult {
    // struct perf_event_attr: software, size, page faults; of this process.
    let mut about = [0u64; 16];
    about[0] = 1 | 112 << 32;
    about[1] = 2;
    kernel!(SYS_perf_event_open, about.as_ptr(), 0, -1, -1, 0)?;
    Ok("opened a counter".into())
}

fn userfaultfd() -> AttemptResult {
    const UFFD_USER_MODE_ONLY: i32 = 1;
    kernel!(SYS_userfaultfd, UFFD_USER_MODE_ONLY)?;
    Ok("may stop the kernel at its page faults".into())
}

fn fanotify() -> AttemptResult {
    kernel!(SYS_fanotify_init, libc::FAN_CLASS_NOTIF, libc::O_RDONLY)?;
    Ok("may watch file systems".into())
}

fn inotify() -> AttemptResult {
    let watch = kernel!(SYS_inotify_init1, 0)?;
    kernel!(
        SYS_inotify_add_watch,
        watch,
        c"/usr/bin".as_ptr(),
        libc::IN_OPEN | libc::IN_ACCESS
    )?;
    Ok("is told what is opened in /usr/bin, which has the same inode for all".into())
}

fn dnotify() -> AttemptResult {
    const F_SETSIG: libc::c_int = 10;
    const DN_ACCESS: libc::c_int = 1;
    let folder = fs::File::open("/usr/bin").map_err(with_place("/usr/bin"))?;
    // Uses a real-time signal, because the default signal of a notification would end this process.
    kernel!(SYS_fcntl, folder.as_raw_fd(), F_SETSIG, libc::SIGRTMIN())?;
    match kernel!(SYS_fcntl, folder.as_raw_fd(), libc::F_NOTIFY, DN_ACCESS) {
        // The kernel was built without this feature.
        Err(StopReason::Denied(how)) if how.ends_with("EINVAL") => untried(how),
        Err(stop) => Err(stop),
        Ok(_) => Ok("is signalled what is read in /usr/bin".into()),
    }
}

fn nameless_lock() -> AttemptResult {
    let file = kernel!(SYS_memfd_create, c"lock".as_ptr(), libc::MFD_CLOEXEC)?;
    // SAFETY: a struct of numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    kernel!(SYS_fcntl, file, libc::F_OFD_SETLK, &raw const lock)?;
    Ok("has a lock that outlives it in any copy of the descriptor, and that names no process".into())
}

fn out_of_band() -> AttemptResult {
    let (one, _other) = std::os::unix::net::UnixStream::pair()?;
    let byte = b"x";
    match kernel!(SYS_sendto, one.as_raw_fd(), byte.as_ptr(), 1, libc::MSG_OOB, 0, 0) {
        Err(StopReason::Denied(how)) if how.ends_with("EOPNOTSUPP") => untried(how),
        Err(stop) => Err(stop),
        Ok(_) => Ok("sent a byte out of band".into()),
    }
}

fn ptrace_own() -> AttemptResult {
    // This call suffices to show whether ptrace is allowed; only the parent could use the tracing.
    kernel!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)?;
    Ok("ptrace is open to it".into())
}

fn set_personality(bits: libc::c_long) -> AttemptResult {
    kernel!(SYS_personality, bits)?;
    let now = kernel!(SYS_personality, 0xffff_ffffu32)?;
    match now & bits == bits {
        true => Ok(format!("personality {now:#x}")),
        false => denied(format!("without effect: personality {now:#x}")),
    }
}

fn read_implies_exec() -> AttemptResult {
    set_personality(0x0040_0000)
}

fn no_randomisation() -> AttemptResult {
    set_personality(0x0004_0000)
}

fn kcmp() -> AttemptResult {
    const KCMP_FILES: i32 = 2;
    let ours = std::process::id();
    kernel!(SYS_kcmp, ours, ours, KCMP_FILES, 0, 0)?;
    Ok("compared".into())
}

fn kernel_addresses() -> AttemptResult {
    let symbols = fs::read_to_string("/proc/kallsyms").map_err(with_place("open"))?;
    match symbols.lines().find(|line| !line.starts_with("0000000000000000")) {
        Some(line) => Ok(format!("sees {line}")),
        None => denied("all addresses are hidden"),
    }
}

fn kernel_log() -> AttemptResult {
    const SYSLOG_ACTION_READ_ALL: i32 = 3;
    let mut read = [0u8; 64];
    let length = kernel!(SYS_syslog, SYSLOG_ACTION_READ_ALL, read.as_mut_ptr(), read.len())?;
    Ok(format!("read {length} bytes"))
}

fn proc_kcore() -> AttemptResult {
    fs::File::open("/proc/kcore").map_err(with_place("open"))?;
    Ok("opened /proc/kcore".into())
}

fn tracefs() -> AttemptResult {
    let mut stopped = StopReason::Denied("not there".into());
    for folder in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
        match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Ok(format!("lists {folder}")),
            Ok(false) => {}
            Err(error) => stopped = error.into(),
        }
    }
    Err(stopped)
}

/// Judges a call with senseless arguments: an error about the arguments shows that the process had the right. Attempts
/// at the host use it, too.
pub(super) fn judge_argument_errors(what: &str, result: Result<libc::c_long, StopReason>) -> AttemptResult {
    let about_arguments = [
        Errno::EINVAL,
        Errno::ENOENT,
        Errno::EFAULT,
        Errno::EBUSY,
        Errno::ENOEXEC,
        Errno::EBADF,
        Errno::ENODEV,
        Errno::ENOTBLK,
    ];
    judge_senseless_call(what, result, &about_arguments)
}
