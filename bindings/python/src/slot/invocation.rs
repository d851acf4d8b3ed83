//! State of the running invocation, which any thread of its function may read.

use hotlease_worker::FunctionContext;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Context of the running task; null between tasks. The slot owns the context, which exists until the process ends.
static CONTEXT: AtomicPtr<FunctionContext> = AtomicPtr::new(std::ptr::null_mut());
/// Deadline of the running task, CLOCK_MONOTONIC, nanoseconds; 0: none.
static DEADLINE_NS: AtomicU64 = AtomicU64::new(0);

/// Whether the client reads the result of the running task, or of the last one, as untrusted: see `hotlease._guarded`.
static IS_GUARDED: AtomicBool = AtomicBool::new(false);

/// Marks the start of a task.
pub fn begin(context: *mut FunctionContext) {
    // SAFETY: the context is the slot's, which changes it only between tasks, on this thread.
    DEADLINE_NS.store(unsafe { &*context }.deadline_ns(), Ordering::Relaxed);
    CONTEXT.store(context, Ordering::Relaxed);
}

/// Marks the end of a task.
pub fn end() {
    CONTEXT.store(std::ptr::null_mut(), Ordering::Relaxed);
    DEADLINE_NS.store(0, Ordering::Relaxed);
}

/// Context of the running task.
pub fn context() -> *mut FunctionContext {
    CONTEXT.load(Ordering::Relaxed)
}

/// Notes whether the client reads the result of the running task as untrusted.
pub fn set_guarded(is_guarded: bool) {
    IS_GUARDED.store(is_guarded, Ordering::Relaxed);
}

/// Whether results and exceptions are to be pickled for a client that reads them as untrusted.
#[pyfunction]
pub fn _is_guarded() -> bool {
    IS_GUARDED.load(Ordering::Relaxed)
}

/// Whether the running task was cancelled, or is past its deadline. False outside of tasks.
#[pyfunction]
pub fn cancelled() -> bool {
    let context = CONTEXT.load(Ordering::Relaxed);
    // SAFETY: null, or the slot's context, which lives as long as the process; its flag is atomic.
    unsafe { context.as_ref() }.is_some_and(FunctionContext::is_cancelled)
}

/// Deadline of the running task, on the clock of `time.monotonic()`; `None` if it has no deadline, or no task runs.
#[pyfunction]
pub fn deadline() -> Option<f64> {
    match DEADLINE_NS.load(Ordering::Relaxed) {
        0 => None,
        deadline_ns => Some(deadline_ns as f64 / 1e9),
    }
}
