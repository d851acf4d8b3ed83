//! Restoring the signal handlers that a library replaces when it is loaded.

use std::ffi::{CStr, c_int};

/// Libraries for PSM adapters, on which Debian's libfabric depends. When loaded, they install a handler that writes a
/// backtrace and exits on SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT and SIGTERM.
const HANDLER_LIBRARIES: [&str; 3] = ["libinfinipath", "libpsm_infinipath", "libpsm2"];
const HANDLED_SIGNALS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGINT,
    libc::SIGTERM,
];

/// Actions of the signals before the library was loaded.
pub(super) struct SignalHandlers([libc::sigaction; HANDLED_SIGNALS.len()]);

impl SignalHandlers {
    pub(super) fn note() -> Self {
        Self(HANDLED_SIGNALS.map(current))
    }

    /// Restores the previous action of a signal if one of these libraries has replaced it. If other code has changed
    /// the action since, it stays, for example a handler that another thread has set meanwhile.
    pub(super) fn restore(&self) {
        for (signal, before) in HANDLED_SIGNALS.into_iter().zip(&self.0) {
            if is_takers(&current(signal)) && !is_takers(before) {
                // SAFETY: an action that the system returned for this signal.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

fn current(signal: c_int) -> libc::sigaction {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the action. On an error the action stays zeroed, which is the default action.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    action
}

fn is_takers(action: &libc::sigaction) -> bool {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address.
    let known = unsafe { libc::dladdr(action.sa_sigaction as *const _, &mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return false;
    }
    // SAFETY: the name of a loaded object. As libfabric is never unloaded, neither are the libraries on which it
    // depends.
    let name = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy();
    let file = name.rsplit('/').next().unwrap_or_default();
    HANDLER_LIBRARIES.iter().any(|taker| file.starts_with(taker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofi::{Libfabric, providers};

    #[test]
    fn loading_libfabric_leaves_the_handlers_of_signals_alone() {
        let handlers = || HANDLED_SIGNALS.map(|signal| current(signal).sa_sigaction);
        let before = handlers();
        let Ok(library) = Libfabric::load() else {
            return eprintln!("skipped: no libfabric");
        };
        providers(&library, None);
        assert_eq!(handlers(), before, "{library:?} took signal handlers and kept them");
    }
}
