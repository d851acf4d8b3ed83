//! Start of a lease's worker, step by step: the durations, and whether it had waited for the lease.

use super::terms::ServedLease;
use crate::workers::worker::StartedWorker;
use hotlease_wire::session::{StartPhases, StartSteps};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Origin of a worker.
pub(crate) enum WorkerOrigin {
    /// It was ready and waited; the text says why no zygote was used, if that matters.
    Warm(String),
    /// It was being started for the next lease.
    Unready,
    /// It was started for this lease, for this reason.
    Cold(String),
    /// It was forked from a zygote for this lease, for this reason.
    Forked(String),
}

/// Text for a worker that was forked after the imports.
pub(super) const FROM_ZYGOTE: &str = "forked from a zygote that has done its imports";

/// Start of an incarnation, with its durations.
#[derive(Default)]
pub(crate) struct IncarnationStart {
    phases: Mutex<StartPhases>,
    up: OnceLock<Instant>,
    connect: OnceLock<Duration>,
    memory_by_kernel: AtomicBool,
}

impl IncarnationStart {
    /// Records that its worker serves; the worker was requested at `begun`, and ready at `ready`.
    pub fn record_up(
        &self,
        lease: &ServedLease,
        worker: &StartedWorker,
        came: &WorkerOrigin,
        (begun, ready): (Instant, Instant),
    ) {
        let start_us = us(ready.duration_since(begun));
        let warm = matches!(came, WorkerOrigin::Warm(_));
        let (mut steps, cold) = match came {
            WorkerOrigin::Warm(said) => (StartSteps::default(), said.clone()),
            WorkerOrigin::Unready => {
                let waited = StartSteps {
                    interpreter_us: Some(start_us),
                    ..StartSteps::default()
                };
                let why = "the worker that was to wait for it was still being started";
                let said = match worker.is_forked() {
                    true => format!("{FROM_ZYGOTE}: {why}"),
                    false => why.into(),
                };
                (waited, said)
            }
            WorkerOrigin::Cold(why) => (worker.steps(), why.clone()),
            WorkerOrigin::Forked(why) => (worker.steps(), format!("{FROM_ZYGOTE}: {why}")),
        };
        steps.image_us = lease.terms.image.map(us);
        let phases = StartPhases {
            pooled: warm.into(),
            started: (!warm).into(),
            grant_us: us(lease.granting),
            start_us,
            steps,
            configure_us: us(ready.elapsed()),
            cold,
        };
        tracing::debug!(lease = %lease.id, pid = worker.pid(), ?phases, "worker up");
        *self.phases.lock().unwrap_or_else(PoisonError::into_inner) = phases;
        let _ = self.up.set(Instant::now());
    }

    /// Records whether the kernel enforces the limit on its worker's memory.
    pub fn record_memory(&self, by_kernel: bool) {
        // Relaxed, here and below: the flag orders nothing. If several workers were tried, the last value stays.
        self.memory_by_kernel.store(by_kernel, Ordering::Relaxed);
    }

    /// Whether the kernel enforces the limit on its worker's memory. Otherwise the agent checks it at intervals.
    pub fn has_kernel_limit(&self) -> bool {
        self.memory_by_kernel.load(Ordering::Relaxed)
    }

    /// Whether its worker has ever served.
    pub fn was_up(&self) -> bool {
        self.up.get().is_some()
    }

    /// Records that a client has connected to it.
    pub fn record_connection(&self) {
        if let Some(up) = self.up.get() {
            // Only the first connection's time is recorded.
            let _ = self.connect.set(up.elapsed());
        }
    }

    /// Time from its readiness to its first client, if any has connected.
    pub fn connected_after(&self) -> Option<Duration> {
        self.connect.get().copied()
    }

    /// Durations of the steps of its start.
    pub fn phases(&self) -> StartPhases {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

pub(super) fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
