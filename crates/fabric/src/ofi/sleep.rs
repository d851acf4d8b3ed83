//! Sleeping on a port, for one thread or several.

use super::port::Port;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Nap of a sleeper where the provider has nothing to sleep on.
const NAP: Duration = Duration::from_micros(50);

impl Port {
    /// Descriptor that is readable when something may have arrived, but only after [`Port::prepare_sleep`] returned
    /// true and until the next progress. `None`: the provider has nothing to sleep on; nap instead.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the completion queue's, which is open as long as the port.
        self.wait_fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Prepares a wait for [`Port::wait_fd`]; returns whether it will become readable for every later completion.
    /// False: make progress first. For a port that only one thread uses; several threads use [`Port::sleep`].
    pub fn prepare_sleep(&self) -> bool {
        self.wait_fd.is_some() && self.lock().endpoint.prepare_sleep()
    }

    /// Sleeps until `ready` returns true or `timeout`, making progress whenever something arrives; returns whether it
    /// is ready. Any number of threads may sleep: one of them on the wait object, the others behind it, and none misses
    /// a frame that another thread took.
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
                // An empty eventfd is fine. A signal after the wait interrupts the next one, no more.
                let _ = self.signal.read();
            }
            // Another thread has to watch the wait object now.
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
    // A signal or an error makes the caller look, as readiness does.
    let _ = ppoll(&mut fds, Some(timeout.into()), None);
    fds[1].any().unwrap_or(true)
}
