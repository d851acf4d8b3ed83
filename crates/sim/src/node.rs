//! Nodes of a simulated site, and clocks of their processes.

use std::fmt;
use std::time::Duration;

/// A node of the simulated site; its processes start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// Node of the manager.
    Manager,
    /// Node of an agent with its workers.
    Agent(usize),
    /// Node of a client.
    Client(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manager => f.pad("manager"),
            Self::Agent(number) => f.pad(&format!("agent{number}")),
            Self::Client(number) => f.pad(&format!("client{number}")),
        }
    }
}

const MILLION: u128 = 1_000_000;

/// Clock of a process. It starts at zero with the process, and runs a little too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// True time at which the clock starts.
    start: Duration,
    /// Parts per million by which the clock is too fast; negative if it is too slow.
    drift_ppm: i32,
}

impl Clock {
    /// Clock of a process that starts at the true time `start`.
    pub fn new(start: Duration, drift_ppm: i32) -> Self {
        Self { start, drift_ppm }
    }

    fn rate(self) -> u128 {
        (1_000_000 + i64::from(self.drift_ppm)) as u128
    }

    /// Time that the clock shows at the true time `now`.
    pub fn shows(self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.start).as_nanos();
        Duration::from_nanos((passed * self.rate() / MILLION) as u64)
    }

    /// First true time at which the clock shows at least `local`.
    pub fn true_time(self, local: Duration) -> Duration {
        let passed = (local.as_nanos() * MILLION).div_ceil(self.rate());
        self.start + Duration::from_nanos(passed as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_never_goes_off_early() {
        for drift_ppm in [-20_000, -7, 0, 3, 20_000] {
            let clock = Clock::new(Duration::from_secs(3), drift_ppm);
            for nanos in [1, 999, 1_000_000_007, 61_000_000_000] {
                let local = Duration::from_nanos(nanos);
                let at = clock.true_time(local);
                assert!(clock.shows(at) >= local, "{drift_ppm} ppm, {nanos} ns");
                assert!(clock.shows(at - Duration::from_nanos(2)) < local);
            }
        }
    }
}
