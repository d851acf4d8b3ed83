//! Sleeping on a port, for one thread or several.

use super::port::Port;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Nap of a sleeper if the provider has no descriptor to sleep on.
const NAP: Duration = Duration::from_micros(50);

impl Port {
    /// Descriptor that is readable when something may have arrived, but only after [`Port::prepare_sleep`] returned
    /// true and until the next progress. `None` if the provider has no descriptor to sleep on: nap instead.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor of the completion queue, which is open as long as the port.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Prepares a wait for [`Port::wait_fd`]; returns whether the descriptor will become readable for every later
    /// completion. If `false`, make progress first. For a port that only one thread uses; several threads must use
    /// [`Port::sleep`].
    pub fn prepare_sleep(&self) -> bool {
        self.wait_fd.is_some() && self.lock().endpoint.prepare_sleep()
    }

    /// Sleeps until `ready` returns true, or until `timeout`, and makes progress whenever something arrives. Returns
    /// whether `ready` returned true. Any number of threads may sleep: one of them sleeps on the wait object, and wakes
    /// the others. No thread misses a frame that another thread took.
    pub fn sleep(&self, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            self.drive(&mut state);
            if ready() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.failed.is_some() {
                return false;
            }
            let Some(fd) = self.wait_fd() else {
                drop(state);
                std::thread::sleep(NAP.min(left));
                state = self.lock();
                continue;
            };
            if state.leader {
                state.followers += 1;
                let waited = self.followers.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.followers -= 1;
                continue;
            }
            if !state.endpoint.prepare_sleep() {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            state.leader = true;
            drop(state);
            let signalled = wait_readable(fd, self.signal.as_fd(), left);
            state = self.lock();
            state.leader = false;
            if signalled {
                // An empty eventfd is fine. A signal after the wait only interrupts the next wait.
                let _ = self.signal.read();
            }
            // Another thread has to sleep on the wait object now.
            if state.followers > 0 {
                self.followers.notify_all();
            }
        }
    }
}

/// Waits until one of the two descriptors is readable, or until the timeout; returns whether `second` is readable.
fn wait_readable(first: BorrowedFd<'_>, second: BorrowedFd<'_>, timeout: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, ppoll};
    let mut fds = [first, second].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // On a signal or an error the caller checks again, as if a descriptor were readable.
    let _ = ppoll(&mut fds, Some(timeout.into()), None);
    fds[1].any().unwrap_or(true)
}
