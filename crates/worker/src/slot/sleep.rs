//! Sleep of a slot on the ports of fabrics.

use hotlease_fabric::ofi::Port;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest delay of an event that no descriptor reports. Longer naps would save little, because a nap costs only some
/// microseconds.
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep without a check, in case a provider misses a wake-up.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Sleeps until `ready` returns true, or until `timeout` has passed. Drives the ports, which no other thread drives.
/// `wake` interrupts the sleep. `neighbours`: whether requests may arrive that neither ports nor `wake` report. Returns
/// whether `ready` returned true.
pub fn on_ports(
    ports: &[Arc<Port>],
    wake: &EventFd,
    neighbours: bool,
    timeout: Duration,
    ready: impl Fn() -> bool,
) -> bool {
    let until = Instant::now() + timeout;
    let tells = !neighbours && ports.iter().all(|port| port.wait_fd().is_some());
    let limit = if tells { CHECK_INTERVAL } else { NAP };
    loop {
        for port in ports {
            port.progress();
        }
        if ready() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        // A port that has work to do first does this work in the next turn.
        if tells && !ports.iter().all(|port| port.prepare_sleep()) {
            continue;
        }
        let fds = ports.iter().filter_map(|port| port.wait_fd());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(wake.as_fd(), PollFlags::POLLIN));
        // After a signal or an error the loop checks, as it does after readiness.
        let _ = ppoll(&mut fds, Some(limit.min(left).into()), None);
        // An empty eventfd is fine.
        let _ = wake.read();
    }
}
