//! System calls as they are: attempts need those that libraries rightly do not offer.

use crate::attempt::{Attempted, Stop, denied};
use nix::errno::Errno;
use std::fs;

/// `kernel!(SYS_name, arguments...)`: the result, or a [`Stop`] that names the call and its error.
///
/// Each argument is a number, or points to memory of the size that the call's manual asks for, which lives until the
/// call returns. That is for whoever writes the call to see to: the macro takes the place of one unsafe block and its
/// reason at each of a hundred calls.
macro_rules! kernel {
    ($name:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the rule of the macro.
        let result = unsafe { libc::syscall(libc::$name $(, $argument as libc::c_long)*) };
        $crate::syscall::checked(stringify!($name), result)
    }};
}
pub(crate) use kernel;

pub(crate) fn checked(name: &str, result: libc::c_long) -> Result<libc::c_long, Stop> {
    match result {
        -1 => {
            let errno = Errno::last();
            denied(format!("{}: {errno:?}", name.trim_start_matches("SYS_")))
        }
        result => Ok(result),
    }
}

/// For calls with arguments that make no sense: the kernel looks at rights first, so an error about the arguments says
/// that the right was there.
pub(crate) fn reached(
    what: &str,
    result: Result<libc::c_long, Stop>,
    about_arguments: &[Errno],
) -> Attempted {
    match result {
        Ok(_) => Ok(format!("{what} is allowed")),
        Err(Stop::Denied(how))
            if about_arguments
                .iter()
                .any(|errno| how.ends_with(&format!(": {errno:?}"))) =>
        {
            Ok(format!(
                "{what} is allowed: only the arguments were refused ({how})"
            ))
        }
        Err(stop) => Err(stop),
    }
}

/// A set of capabilities of this process, by its name in `/proc/self/status`; 0 where that is not to be read.
pub(crate) fn capabilities(set: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(set));
    line.and_then(|line| u64::from_str_radix(line.trim_start_matches(':').trim(), 16).ok())
        .unwrap_or(0)
}

/// The capabilities that this process has now, a bit each.
pub fn effective_capabilities() -> u64 {
    capabilities("CapEff")
}

/// Lets processes of the same user trace this one where the kernel (Yama) would let only its parents: a neighbour
/// and an agent that are to be hard to get at by the sandbox alone.
pub fn may_be_traced() {
    // Fails where there is no Yama, and then nothing has to be allowed. SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
