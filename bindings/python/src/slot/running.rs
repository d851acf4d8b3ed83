//! What a function may ask about its invocation, from any of its threads.

use hotlease_worker::FunctionContext;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Of the running task; null between tasks. The slot's, which is there until the process ends.
static CONTEXT: AtomicPtr<FunctionContext> = AtomicPtr::new(std::ptr::null_mut());
/// Its deadline, CLOCK_MONOTONIC, nanoseconds; 0: none.
static DEADLINE_NS: AtomicU64 = AtomicU64::new(0);

/// A task begins.
pub fn begin(context: *mut FunctionContext) {
    // SAFETY: the slot's, which changes it only between tasks, on this thread.
    DEADLINE_NS.store(unsafe { &*context }.deadline_ns(), Ordering::Relaxed);
    CONTEXT.store(context, Ordering::Relaxed);
}

/// It is over.
pub fn end() {
    CONTEXT.store(std::ptr::null_mut(), Ordering::Relaxed);
    DEADLINE_NS.store(0, Ordering::Relaxed);
}

/// Of the running task.
pub fn context() -> *mut FunctionContext {
    CONTEXT.load(Ordering::Relaxed)
}

/// Whether the running task was cancelled, or is past its deadline. False outside of tasks.
#[pyfunction]
pub fn cancelled() -> bool {
    let context = CONTEXT.load(Ordering::Relaxed);
    // SAFETY: null, or the slot's, which lives as long as the process; its flag is atomic.
    unsafe { context.as_ref() }.is_some_and(FunctionContext::is_cancelled)
}

/// Until when the running task should be done, on the clock of `time.monotonic()`; `None`: whenever, or no task runs.
#[pyfunction]
pub fn deadline() -> Option<f64> {
    match DEADLINE_NS.load(Ordering::Relaxed) {
        0 => None,
        deadline_ns => Some(deadline_ns as f64 / 1e9),
    }
}
