//! Processes that functions fork: they begin with the signal actions that this process had before it became a worker,
//! and do nothing in the worker's name.

use nix::sys::signal::{SigAction, Signal};
use std::cell::Cell;
use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set in a child.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// Actions that the worker has set, and the actions before.
static CHANGED: OnceLock<Vec<ChangedAction>> = OnceLock::new();

struct ChangedAction {
    signal: libc::c_int,
    ours: libc::sighandler_t,
    before: libc::sigaction,
}

thread_local! {
    /// Signals that this thread had blocked before it began to fork. The value has no destructor, so that a thread can
    /// also fork while its other thread-local values are destroyed.
    // SAFETY: plain data, for which zeros are valid.
    static BLOCKED: Cell<libc::sigset_t> = const { Cell::new(unsafe { zeroed() }) };
}

/// Whether this process was forked by the worker and still runs the worker's program.
#[inline]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Sets the worker's own signal actions; forked children restore the actions from before. The handlers must be
/// async-signal-safe. Must be called only once.
pub(crate) fn set_actions(actions: impl IntoIterator<Item = (Signal, SigAction)>) -> io::Result<()> {
    let actions = actions.into_iter();
    let changed = actions.map(|(signal, action)| change(signal as libc::c_int, &action.into()));
    // A process becomes a worker once.
    let _ = CHANGED.set(changed.collect());
    // SAFETY: the functions make calls that are allowed around a fork.
    match unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn change(signal: libc::c_int, action: &libc::sigaction) -> ChangedAction {
    // SAFETY: plain data, for which zeros are valid.
    let mut before = unsafe { zeroed() };
    // SAFETY: the handler is async-signal-safe, by the contract of `set_actions`. An error, for a number that is no
    // signal, leaves the default action.
    unsafe { libc::sigaction(signal, action, &mut before) };
    ChangedAction {
        signal,
        ours: action.sa_sigaction,
        before,
    }
}

/// Blocks the signals: a child that gets a signal before its actions are set would lose it in a handler of the worker.
extern "C" fn before_fork() {
    // SAFETY: plain data, for which zeros are valid; all calls get valid places.
    unsafe {
        let (mut ours, mut blocked) = (zeroed(), zeroed());
        libc::sigemptyset(&mut ours);
        for changed in CHANGED.get().into_iter().flatten() {
            libc::sigaddset(&mut ours, changed.signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &ours, &mut blocked);
        BLOCKED.set(blocked);
    }
}

extern "C" fn in_parent() {
    // SAFETY: a mask that the system has returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &BLOCKED.get(), ptr::null_mut()) };
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    for changed in CHANGED.get().into_iter().flatten() {
        // SAFETY: plain data, for which zeros are valid.
        let mut current: libc::sigaction = unsafe { zeroed() };
        // SAFETY: asks only; then sets an action that the system has returned. An action that a function has set stays.
        unsafe {
            libc::sigaction(changed.signal, ptr::null(), &mut current);
            if current.sa_sigaction == changed.ours {
                libc::sigaction(changed.signal, &changed.before, ptr::null_mut());
            }
        }
    }
    in_parent();
}
