//! End of an executor before its tasks have ended.

use crate::client::executor::{Client, close};
use crate::client::futures::decode;
use crate::client::futures::future::finish_others;
use hotlease_client::Error;
use pyo3::prelude::*;

/// Cancels the tasks that were not sent, and ends the lease: its workers are killed, and the tasks that they run fail.
#[pyfunction]
pub fn _kill(py: Python<'_>, client: PyRef<'_, Client>) -> PyResult<()> {
    let core = client.opened()?.core.clone();
    drop(client);
    if core.is_foreign() {
        return Ok(());
    }
    let released = py.detach(|| {
        close(&core, true);
        core.invoker.clone().deallocate()
    });
    core.keeper.wake(&core.invoker);
    finish_others(py, &core);
    match released {
        Ok(_) | Err(Error::LeaseEnded { .. }) => Ok(()),
        Err(error) => Err(decode::exception(py, &error)),
    }
}
