//! Demand for fabrics: whether clients reach the workers of this node over fabrics. If they do, workers that wait for
//! leases load the library for fabrics ahead, because loading takes up to 300 ms
//! ([`hotlease_fabric::ofi::Libfabric::preload`]). If clients use shared memory only, workers never map the library.

use crate::workers::worker::StartedWorker;
use hotlease_wire::control::WorkerOrder;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time for which another client over a fabric is expected after the last such client.
const EXPECTED_FOR: Duration = Duration::from_secs(600);

/// Delay between the start of a worker and its loading of the library: a worker is started when a lease has taken
/// another worker, which needs the processor now.
pub(crate) const PREPARE_AFTER: Duration = Duration::from_millis(50);

/// Time within which a worker has loaded the library.
const LOADED_WITHIN: Duration = Duration::from_millis(500);
/// Time between the loads of two workers that wait already: about the duration of one load.
pub(crate) const PREPARE_EACH: Duration = Duration::from_millis(300);

/// Time at which a worker was ordered to load the library, if it was.
#[derive(Default)]
pub(crate) struct FabricLoading(OnceLock<Instant>);

impl FabricLoading {
    /// Whether the worker may still be loading the library. Meanwhile it can load nothing else.
    pub fn is_under_way(&self) -> bool {
        self.0.get().is_some_and(|since| since.elapsed() < LOADED_WITHIN)
    }
}

/// Record of the last client that reached a worker over a fabric.
#[derive(Default)]
pub(crate) struct FabricDemand {
    last: Mutex<Option<Instant>>,
}

impl FabricDemand {
    /// Notes a client over a fabric; returns whether none was expected.
    pub fn note(&self) -> bool {
        let last = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(Instant::now());
        !is_recent(last)
    }

    /// Whether a client over a fabric is expected.
    pub fn is_expected(&self) -> bool {
        is_recent(*self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a worker that is ready load the library, if a client over a fabric is expected.
    pub fn prepare(&self, worker: &StartedWorker) {
        if self.is_expected() && worker.is_ready() {
            // The answer carries no information. If the order cannot be sent, the worker is gone.
            drop(worker.send(&WorkerOrder::PrepareFabric, &[]));
            // A worker loads the library only once.
            let _ = worker.fabric.0.set(Instant::now());
        }
    }
}

fn is_recent(last: Option<Instant>) -> bool {
    last.is_some_and(|last| last.elapsed() < EXPECTED_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_over_a_fabric_is_expected_for_a_while_after_the_last_one() {
        let demand = FabricDemand::default();
        assert!(!demand.is_expected());
        assert!(demand.note(), "the first one");
        assert!(demand.is_expected());
        assert!(!demand.note());
        let long_ago = Instant::now().checked_sub(EXPECTED_FOR);
        if long_ago.is_some() {
            *demand.last.lock().unwrap() = long_ago;
            assert!(demand.note(), "the last one was long ago");
        }
        assert!(!demand.note());
    }
}
