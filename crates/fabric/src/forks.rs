//! Forks of this process: marks of the process that made a value, and values that a child of a fork makes anew.
//!
//! A child has a copy of its parent's memory, but none of the parent's threads: a lock that another thread held stays
//! locked, and threads on which the copied values rely do not exist.

use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Number of forks between this process and the ancestor that called this function first. Values that are made after a
/// call belong to this process as long as later calls return the same number.
fn count() -> u32 {
    WATCH.call_once(|| {
        // This fails only if there is no memory for a list entry; a child is then not distinguished from its parent.
        // SAFETY: a plain function that adds to an atomic, which is allowed after a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    COUNT.load(Ordering::Relaxed)
}

/// Mark of the process that made the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMark(u32);

impl ProcessMark {
    /// Mark of this process.
    pub fn here() -> Self {
        Self(count())
    }

    /// Whether this process is a forked child of the process that made the mark. Costs one load: forks are counted from
    /// the first mark on.
    #[inline]
    pub fn is_foreign(self) -> bool {
        COUNT.load(Ordering::Relaxed) != self.0
    }
}

/// A static value that each process makes for itself, on first use. A child of a fork leaks its parent's value: the
/// threads and registered descriptors to which that value refers belong to the parent.
pub struct PerProcess<T: 'static>(AtomicPtr<ProcessValue<T>>);

struct ProcessValue<T> {
    made_by: ProcessMark,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// A value that no process has made yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// This process's value.
    pub fn get(&'static self) -> &'static T {
        let here = ProcessMark::here();
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was leaked below and is never freed.
            if let Some(made) = unsafe { known.as_ref() }
                && made.made_by == here
            {
                return &made.value;
            }
            let made = Box::into_raw(Box::new(ProcessValue {
                made_by: here,
                value: T::default(),
            }));
            // Acquire and release: a thread that sees the pointer sees the value.
            match self
                .0
                .compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire)
            {
                // SAFETY: just made, and from now on never freed.
                Ok(_) => return unsafe { &(*made).value },
                Err(of_another_thread) => {
                    // SAFETY: just made, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    known = of_another_thread;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::sync::Mutex;

    static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();

    #[test]
    fn the_child_of_a_fork_makes_its_own_value_though_the_parent_s_is_locked() {
        let (before, mark) = (count(), ProcessMark::here());
        *VALUE.get().lock().unwrap() = 7;
        let held = VALUE.get().lock().unwrap();
        // SAFETY: the child only reads atomics, allocates (which the C library allows after a fork) and ends.
        match unsafe { fork() }.expect("another process") {
            ForkResult::Child => {
                let own = VALUE.get().try_lock().is_ok_and(|value| *value == 0);
                let is_right =
                    own && mark.is_foreign() && count() == before + 1 && std::ptr::eq(VALUE.get(), VALUE.get());
                // SAFETY: ends the process.
                unsafe { libc::_exit(if is_right { 0 } else { 1 }) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
        assert_eq!((*held, count()), (7, before), "the parent's value stays");
        assert!(!mark.is_foreign());
    }
}
