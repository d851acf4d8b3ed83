//! Attempts to become another user, or to get capabilities.

use crate::attempt::{AttemptResult, Capability, Threat, attempts, denied, untried, with_place};
use crate::syscall::{capabilities, kernel};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

pub(super) const THEME: Threat = Threat {
    threat: "become another user, or get or keep capabilities",
    attempts: attempts! {
        "setuid", "become another user (setresuid)", setuid, with_capability(Capability::Setuid);
        "setgid", "become another group (setresgid)", setgid, with_capability(Capability::Setgid);
        "setgroups", "join other groups (setgroups)", setgroups, with_capability(Capability::Setgid);
        "capabilities", "have a capability", find_capabilities, with_capability(Capability::SysAdmin);
        "capability-raise", "give itself capabilities (capset)",
            capability_raise, with_capability(Capability::SysAdmin);
        "capability-ambient", "give what it starts capabilities (PR_CAP_AMBIENT)",
            capability_ambient, with_capability(Capability::SysAdmin);
        "capability-bound", "get capabilities back from files (the bounding set)", capability_bound;
        "new-privileges", "be allowed to gain rights by starting programs (no_new_privs off)", new_privileges;
        "suid-program", "start a program that makes it root",
            suid_program, needs("a user who is not root, and a program like su");
        "securebits", "change what being root means (PR_SET_SECUREBITS)", securebits, need_not_succeed();
    },
};

fn setuid() -> AttemptResult {
    let other = nix::unistd::getuid().as_raw() + 1;
    kernel!(SYS_setresuid, other, other, other)?;
    Ok(format!("is user {other} now"))
}

fn setgid() -> AttemptResult {
    let other = nix::unistd::getgid().as_raw() + 1;
    kernel!(SYS_setresgid, other, other, other)?;
    Ok(format!("is of group {other} now"))
}

fn setgroups() -> AttemptResult {
    let groups = [nix::unistd::getgid().as_raw() + 1];
    kernel!(SYS_setgroups, 1, groups.as_ptr())?;
    Ok(format!("joined group {}", groups[0]))
}

fn find_capabilities() -> AttemptResult {
    match capabilities("CapEff") | capabilities("CapPrm") | capabilities("CapInh") | capabilities("CapAmb") {
        0 => denied("it has none"),
        set => Ok(format!("has {set:#x}")),
    }
}

/// Calls `capset` with these effective (and permitted) and these inheritable capabilities, of the lower 32.
fn capset(effective: u32, inheritable: u32) -> AttemptResult {
    // struct __user_cap_header_struct, version 3; two of __user_cap_data_struct.
    let header = [0x2008_0522u32, 0];
    let data = [effective, effective, inheritable, 0, 0, 0];
    kernel!(SYS_capset, header.as_ptr(), data.as_ptr())?;
    Ok("capset was taken".into())
}

fn capability_raise() -> AttemptResult {
    capset(1 << Capability::SysAdmin as u32, 0)
}

fn capability_ambient() -> AttemptResult {
    let sys_admin = 1 << Capability::SysAdmin as u32;
    capset(sys_admin, sys_admin)?;
    kernel!(
        SYS_prctl,
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_RAISE,
        Capability::SysAdmin as u32,
        0,
        0
    )?;
    Ok("what it starts has cap_sys_admin".into())
}

fn capability_bound() -> AttemptResult {
    match capabilities("CapBnd") {
        // no_new_privs also prevents that files give capabilities, but then it would be the only barrier.
        0 => denied("its bounding set is empty"),
        set => Ok(format!("its bounding set is {set:#x}")),
    }
}

fn new_privileges() -> AttemptResult {
    match kernel!(SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)? {
        0 => Ok("programs with set-user-id bits work".into()),
        _ => denied("no_new_privs is set"),
    }
}

fn suid_program() -> AttemptResult {
    if nix::unistd::getuid().is_root() {
        return untried("root has nothing to gain");
    }
    for folder in ["/usr/bin", "/bin", "/usr/sbin", "/sbin"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else { continue };
            let gives_root = about.uid() == 0 && about.is_file() && about.permissions().mode() & 0o4001 == 0o4001;
            let flags = nix::sys::statvfs::statvfs(&entry.path()).map(|about| about.flags());
            let ignored = flags.is_ok_and(|flags| flags.contains(nix::sys::statvfs::FsFlags::ST_NOSUID));
            if gives_root && !ignored {
                new_privileges().map_err(with_place(entry.path().display()))?;
                return Ok(format!("{} would make it root", entry.path().display()));
            }
        }
    }
    denied("there is none, or they are mounted nosuid")
}

fn securebits() -> AttemptResult {
    if capabilities("CapEff") != 0 {
        return denied("it is root already");
    }
    kernel!(SYS_prctl, libc::PR_SET_SECUREBITS, 0x20, 0, 0, 0)?;
    Ok("changed its securebits".into())
}
