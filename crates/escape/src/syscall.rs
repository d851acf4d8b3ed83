//! Raw system calls. Attempts need calls that libraries do not offer, for good reasons.

use crate::attempt::{AttemptResult, StopReason, denied};
use nix::errno::Errno;
use std::fs;

/// `kernel!(SYS_name, arguments...)` makes a system call. Returns its result, or a [`StopReason`] that names the call
/// and its error.
///
/// Each argument is a number, or points to memory of the size that the call's manual requires, which lives until the
/// call returns. The author of each call must ensure this. The macro saves an unsafe block with a reason at each of a
/// hundred calls.
macro_rules! kernel {
    ($name:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the rule above, which each use of the macro follows.
        let result = unsafe { libc::syscall(libc::$name $(, $argument as libc::c_long)*) };
        $crate::syscall::checked(stringify!($name), result)
    }};
}
pub(crate) use kernel;

pub(crate) fn checked(name: &str, result: libc::c_long) -> Result<libc::c_long, StopReason> {
    match result {
        -1 => {
            let errno = Errno::last();
            denied(format!("{}: {errno:?}", name.trim_start_matches("SYS_")))
        }
        result => Ok(result),
    }
}

/// Judges a call with senseless arguments: the kernel checks the rights first, so an error about the arguments shows
/// that the process had the right.
pub(crate) fn judge_senseless_call(
    what: &str,
    result: Result<libc::c_long, StopReason>,
    about_arguments: &[Errno],
) -> AttemptResult {
    match result {
        Ok(_) => Ok(format!("{what} is allowed")),
        Err(StopReason::Denied(how))
            if about_arguments
                .iter()
                .any(|errno| how.ends_with(&format!(": {errno:?}"))) =>
        {
            Ok(format!("{what} is allowed: only the arguments were refused ({how})"))
        }
        Err(stop) => Err(stop),
    }
}

/// A set of capabilities of this process, by its name in `/proc/self/status`; 0 if it cannot be read.
pub(crate) fn capabilities(set: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(set));
    line.and_then(|line| u64::from_str_radix(line.trim_start_matches(':').trim(), 16).ok())
        .unwrap_or(0)
}

/// Effective capabilities of this process, one bit for each.
pub fn effective_capabilities() -> u64 {
    capabilities("CapEff")
}

/// Lets all processes of this user trace this process, even if the kernel (Yama) would otherwise allow that only to its
/// parents. Neighbours and the stand-in for the agent use it, so that only the sandbox protects them.
pub fn allow_tracing() {
    // Fails without Yama, and then the permission is not needed. SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
