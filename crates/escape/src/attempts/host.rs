//! Attempts at the host as a whole: its clock, its name, its power, its kernel.

use super::kernel::judge_argument_errors;
use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, with_place};
use crate::syscall::kernel;
use std::fs::OpenOptions;
use std::io::ErrorKind;

pub(super) const THEME: Threat = Threat {
    threat: "change the host: its clock, its name, its settings, its kernel, its power",
    attempts: attempts! {
        "clock", "change the host's clock (adjtimex)", clock, with_capability(Capability::SysTime);
        "hostname", "change the host's name", hostname, with_capability(Capability::SysAdmin);
        "module-load", "load a module into the kernel",
            module_load, with_capability(Capability::SysModule), needs("a kernel with modules");
        "module-remove", "remove a module from the kernel",
            module_remove, with_capability(Capability::SysModule), needs("a kernel with modules");
        "kexec", "start another kernel (kexec)",
            kexec, with_capability(Capability::SysBoot), needs("a kernel with kexec");
        "reboot", "reboot the host", reboot, with_capability(Capability::SysBoot);
        "swapon", "give the host swap space",
            swapon, with_capability(Capability::SysAdmin), needs("a kernel with swap");
        "accounting", "have all processes of the host accounted (acct)",
            accounting, with_capability(Capability::SysPacct), needs("a kernel with accounting");
        "io-ports", "use the host's ports (iopl)",
            io_ports, with_capability(Capability::SysRawio), needs("x86-64 with iopl");
        "proc-sys", "open the kernel's settings for writing (/proc/sys)",
            proc_sys, with_capability(Capability::SysAdmin);
        "sysrq", "open the kernel's emergency keys (/proc/sysrq-trigger)",
            sysrq, with_capability(Capability::DacOverride), needs("/proc/sysrq-trigger");
        "sys-write", "open settings of devices for writing (/sys)",
            sys_write, with_capability(Capability::DacOverride), needs("/sys");
        "drop-caches", "open the host's page cache for dropping",
            drop_caches, with_capability(Capability::DacOverride), needs("/proc/sys/vm/drop_caches");
    },
};

fn clock() -> AttemptResult {
    const ADJ_STATUS: u32 = 0x10;
    // SAFETY: a struct of numbers, for which zero is valid.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    kernel!(SYS_adjtimex, &raw mut clock)?;
    // Sets the clock's status to its present value.
    clock.modes = ADJ_STATUS;
    kernel!(SYS_adjtimex, &raw mut clock)?;
    Ok("may change the clock".into())
}

fn hostname() -> AttemptResult {
    // struct utsname: six texts of 65 bytes; the second is the name.
    let mut about = [0u8; 390];
    kernel!(SYS_uname, about.as_mut_ptr())?;
    let name = &about[65..130];
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(64);
    // Sets the name to its present value.
    kernel!(SYS_sethostname, name.as_ptr(), length)?;
    Ok("may change the name".into())
}

fn module_load() -> AttemptResult {
    judge_argument_errors(
        "init_module",
        kernel!(SYS_init_module, c"no module".as_ptr(), 9, c"".as_ptr()),
    )
}

fn module_remove() -> AttemptResult {
    let result = kernel!(SYS_delete_module, c"hotlease_no_such_module".as_ptr(), libc::O_NONBLOCK);
    judge_argument_errors("delete_module", result)
}

fn kexec() -> AttemptResult {
    // These flags do not exist. With valid flags and no segments, a loaded crash kernel would be unloaded.
    judge_argument_errors("kexec_load", kernel!(SYS_kexec_load, 0, 0, 0, 0xffffu32))
}

fn reboot() -> AttemptResult {
    // The magic numbers differ from those that the call requires.
    judge_argument_errors("reboot", kernel!(SYS_reboot, 1, 2, 3, 0))
}

fn swapon() -> AttemptResult {
    judge_argument_errors("swapon", kernel!(SYS_swapon, c"/hotlease/no/such/file".as_ptr(), 0))
}

fn accounting() -> AttemptResult {
    judge_argument_errors("acct", kernel!(SYS_acct, c"/hotlease/no/such/file".as_ptr()))
}

#[cfg(target_arch = "x86_64")]
fn io_ports() -> AttemptResult {
    kernel!(SYS_iopl, 3)?;
    Ok("may use every port".into())
}

#[cfg(not(target_arch = "x86_64"))]
fn io_ports() -> AttemptResult {
    crate::attempt::denied("not x86-64")
}

/// Opens the first of these files that can be opened for writing, and writes nothing.
fn writable(files: &[&str]) -> AttemptResult {
    let mut stopped = StopReason::Denied("not there".into());
    for file in files {
        match OpenOptions::new().write(true).open(file) {
            Ok(_) => return Ok(format!("may write {file}")),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => stopped = with_place(file)(error),
        }
    }
    Err(stopped)
}

fn proc_sys() -> AttemptResult {
    writable(&[
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/threads-max",
        "/proc/sys/fs/file-max",
    ])
}

fn sysrq() -> AttemptResult {
    writable(&["/proc/sysrq-trigger"])
}

fn sys_write() -> AttemptResult {
    writable(&[
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/devices/system/cpu/cpu1/online",
        "/sys/module/kernel/parameters/panic",
    ])
}

fn drop_caches() -> AttemptResult {
    writable(&["/proc/sys/vm/drop_caches"])
}
