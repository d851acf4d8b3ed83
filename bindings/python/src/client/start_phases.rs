//! Phases of an executor's start.

use crate::client::executor::Client;
use pyo3::prelude::*;
use std::time::Duration;

/// Seconds of the steps grant, image, sandbox, boot, interpreter, imports and connect, and of all steps together
/// (`None`: there was no such step); number of workers from the pool; number of workers that had to be started; reason
/// why they had to be started.
type StartPhases = ([Option<f64>; 8], u32, u32, String);

/// See `Executor.cold_start`.
#[pyfunction]
pub fn _cold_start(client: PyRef<'_, Client>) -> PyResult<StartPhases> {
    let phases = client.opened()?.core.invoker.phases();
    let (total, loading, start) = (phases.total(), phases.load + phases.open, phases.start);
    let us = |us: u64| us as f64 / 1e6;
    let steps = start.steps;
    let seconds = [
        Some(us(start.grant_us + start.configure_us)),
        steps.image_us.map(us),
        steps.sandbox_us.map(us),
        steps.boot_us.map(us),
        steps.interpreter_us.map(us),
        steps.imports_us.map(us),
        Some(loading.saturating_sub(phases.worker_load).as_secs_f64()),
        (total > Duration::ZERO).then_some(total.as_secs_f64()),
    ];
    Ok((seconds, start.pooled, start.started, start.cold))
}

/// Whether results of the executor's tasks may come from sandboxes.
#[pyfunction]
pub fn _is_confined(client: PyRef<'_, Client>) -> PyResult<bool> {
    Ok(client.opened()?.core.invoker.is_confined())
}

/// Whether the executor's workers have a network, according to their lease.
#[pyfunction]
pub fn _has_network(client: PyRef<'_, Client>) -> PyResult<bool> {
    Ok(client.opened()?.core.invoker.phases().reach.network)
}

/// Folders of the import path that the executor's workers do not see.
#[pyfunction]
pub fn _hidden(client: PyRef<'_, Client>) -> PyResult<Vec<String>> {
    Ok(client.opened()?.core.invoker.phases().hidden)
}
