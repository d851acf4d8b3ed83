//! The edges of the process: its inherited descriptors, its signals, and the record of its crash.
//!
//! When a function crashes the process, the handler writes a crash record into the usage block, which the agent reads
//! when the process is gone: signal, slot, function, and whether the faulting address was in the guard page behind the
//! function's output. Then the signal takes its default action.

use crate::forks;
use hotlease_fabric::memory::PAGE_BYTES;
use hotlease_fabric::usage::UsageBlock;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

const FATAL: [Signal; 6] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGABRT,
    Signal::SIGSYS,
];

/// Signals by which a batch system warns every process of a job that it takes the node back. The agent then drains, and
/// ends its workers in time; a worker that died of such a signal would break calls that may still finish.
const AGENT_SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1];

extern "C" fn ignore_signal(_signal: libc::c_int) {}

static USAGE: OnceLock<Arc<UsageBlock>> = OnceLock::new();

thread_local! {
    /// Constant-initialised and without destructor, so that the handler may read it.
    static SLOT: Cell<Option<u16>> = const { Cell::new(None) };
}

/// Moves the control socket away from standard input, where functions would find it.
pub fn take_control_socket() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    hotlease_fabric::socket::Socket::from(socket.try_clone()?).peer()?;
    let null = File::open("/dev/null")?;
    // SAFETY: descriptor 0 is ours (standard input), and forgotten again right below.
    let mut stdin = unsafe { OwnedFd::from_raw_fd(0) };
    let replaced = nix::unistd::dup2(&null, &mut stdin);
    std::mem::forget(stdin);
    replaced?;
    Ok(socket)
}

/// Prepares the process: crash handlers, no core dumps (they would delay the report of a death by seconds), and
/// line-buffered output. So the output of a function that dies is not lost. `hosted`: another program hosts the worker.
pub fn install(hosted: bool) -> io::Result<()> {
    // If the limit cannot be lowered, the worker works all the same.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // Async-signal-safe: atomics in mapped memory, sigaction and raise.
    let record = SigAction::new(
        SigHandler::SigAction(on_fatal),
        SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK,
        SigSet::empty(),
    );
    // A handler instead of SIG_IGN: programs that a function executes then start with the default actions.
    let ignore = SigAction::new(SigHandler::Handler(ignore_signal), SaFlags::SA_RESTART, SigSet::empty());
    let mut ignored = AGENT_SIGNALS.to_vec();
    if !hosted {
        // Rust's runtime handles some of these in its own programs, for its stacks. It ignores SIGPIPE, and programs
        // that functions execute would inherit this action.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        for signal in FATAL.into_iter().chain([Signal::SIGPIPE]) {
            // SAFETY: sets the default action.
            unsafe { sigaction(signal, &default) }?;
        }
        ignored.push(Signal::SIGPIPE);
    }
    let recorded = FATAL.map(|signal| (signal, record));
    let ignored = ignored.into_iter().map(|signal| (signal, ignore));
    forks::set_actions(recorded.into_iter().chain(ignored))?;
    unsafe extern "C" {
        static mut stdout: *mut libc::FILE;
        fn atexit(handler: extern "C" fn()) -> libc::c_int;
    }
    // SAFETY: C's stdout exists from the start and is not used yet; the exit handler is a plain function.
    unsafe {
        libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 0);
        atexit(on_exit);
    }
    Ok(())
}

/// Sets the usage block in which crashes are recorded from now on.
pub fn set_usage_block(usage: Arc<UsageBlock>) {
    // The worker is configured once; a second block is ignored.
    let _ = USAGE.set(usage);
}

/// Marks the calling thread as the thread of this slot.
pub fn set_slot(slot: u16) {
    SLOT.set(Some(slot));
}

/// Ends the process without running exit handlers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Ends the process as the remote worker has ended, and records its crash.
pub fn end_as(end: crate::WorkerEnd) -> ! {
    if let (Some(usage), Some(crash)) = (USAGE.get(), end.crash) {
        usage.record_end(crash.slot, crash.signal, crash.overrun_capacity);
    }
    if let Ok(signal) = Signal::try_from(end.status.saturating_neg()) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: sets the default action; SIGKILL has no other action.
        let _ = unsafe { sigaction(signal, &default) };
        let _ = raise(signal);
        // `raise` sends the signal to this thread, so a signal that ends the process is delivered before the call
        // returns. A signal to the whole process might be delivered only after the exit below.
    }
    exit_now(end.status.clamp(0, 255))
}

extern "C" fn on_fatal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if let Some(usage) = USAGE.get().filter(|_| !forks::is_child()) {
        let address = match signal {
            // SAFETY: the kernel passes a valid siginfo, whose address field these two signals fill.
            libc::SIGSEGV | libc::SIGBUS => unsafe { (*info).si_addr() as u64 },
            _ => 0,
        };
        usage.record_crash(SLOT.get(), signal, address, PAGE_BYTES as u64);
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    if let Ok(signal) = Signal::try_from(signal) {
        // SAFETY: sets the default action. The signal is blocked while we are here; raised again, it is
        // delivered when the handler returns.
        let _ = unsafe { sigaction(signal, &default) };
        let _ = raise(signal);
    }
}

/// Records that a function has called `exit`, which the worker itself never calls.
extern "C" fn on_exit() {
    if let Some(usage) = USAGE.get().filter(|_| !forks::is_child()) {
        usage.record_crash(SLOT.get(), 0, 0, 0);
    }
}
