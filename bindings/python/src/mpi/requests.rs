//! Operations on several requests at a time.

use super::operation::SIGNAL_INTERVAL;
use super::request::{Request, WaitResult};
use super::status::{Status, UNDEFINED};
use hotlease_comm::Watch;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::time::Duration;

pub type Requests<'py> = Vec<Bound<'py, Request>>;
/// Statuses to fill, one for each request, or for each request that has ended. If they are a list, missing statuses are
/// appended.
pub type Statuses<'a, 'py> = Option<&'a Bound<'py, PyAny>>;
/// Indices of the requests that have ended, and their objects; `None` if all requests had ended before.
pub type EndedRequests<'py> = Option<(Vec<i64>, Vec<WaitResult<'py>>)>;

fn status_of<'py>(py: Python<'py>, statuses: Statuses<'_, 'py>, index: usize) -> PyResult<Option<Bound<'py, Status>>> {
    let Some(statuses) = statuses else {
        return Ok(None);
    };
    if let Ok(list) = statuses.cast::<PyList>() {
        while list.len() <= index {
            list.append(Bound::new(py, Status::new())?)?;
        }
    } else if statuses.len()? <= index {
        let has = statuses.len()?;
        return Err(PyValueError::new_err(format!(
            "{has} statuses for more requests: give a list, which gets longer"
        )));
    }
    Ok(Some(statuses.get_item(index)?.cast_into::<Status>()?))
}

pub fn wait_all<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    statuses: Statuses<'_, 'py>,
) -> PyResult<Vec<WaitResult<'py>>> {
    let mut got = Vec::with_capacity(requests.len());
    let mut failed = None;
    for (index, request) in requests.iter().enumerate() {
        let status = status_of(py, statuses, index)?;
        match request.get().await_end(py, status.as_ref()) {
            Ok(object) => got.push(object),
            // Ctrl-C, or another error that is not the end of an operation, ends the wait.
            Err(error) if request.get().is_active(py) => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(got), Err)
}

/// Reports the ends of at most `most` requests, each in the next status.
fn report<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    most: usize,
    status: impl Fn(usize) -> PyResult<Option<Bound<'py, Status>>>,
) -> PyResult<EndedRequests<'py>> {
    let (mut indices, mut objects) = (Vec::new(), Vec::new());
    let mut is_any = false;
    for (index, request) in requests.iter().enumerate() {
        let request = request.get();
        if !request.is_active(py) {
            continue;
        }
        is_any = true;
        if !request.has_ended(py) {
            continue;
        }
        let status = status(indices.len())?;
        if let Some(got) = request.take(py, Duration::ZERO, status.as_ref())? {
            indices.push(index as i64);
            objects.push(got);
            if indices.len() == most {
                break;
            }
        }
    }
    Ok(is_any.then_some((indices, objects)))
}

pub fn test_any<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    status: Option<&Bound<'py, Status>>,
) -> PyResult<(i64, bool, Option<WaitResult<'py>>)> {
    Ok(match report(py, requests, 1, |_| Ok(status.cloned()))? {
        None => (UNDEFINED, true, None),
        Some((indices, mut objects)) => match indices.first() {
            Some(index) => (*index, true, objects.pop()),
            None => (UNDEFINED, false, None),
        },
    })
}

pub fn test_some<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    statuses: Statuses<'_, 'py>,
) -> PyResult<EndedRequests<'py>> {
    report(py, requests, usize::MAX, |index| status_of(py, statuses, index))
}

/// Waits until an active request may have ended, or it is time to check for Ctrl-C.
fn await_news(py: Python<'_>, requests: &Requests<'_>) -> PyResult<()> {
    py.check_signals()?;
    let active = requests.iter().filter_map(|request| request.get().watch(py));
    let watches: Vec<Watch> = active.collect();
    py.detach(|| hotlease_comm::wait_any(&watches, SIGNAL_INTERVAL));
    Ok(())
}

pub fn wait_any<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    status: Option<&Bound<'py, Status>>,
) -> PyResult<(i64, Option<WaitResult<'py>>)> {
    loop {
        let (index, has_ended, got) = test_any(py, requests, status)?;
        if has_ended {
            return Ok((index, got));
        }
        await_news(py, requests)?;
    }
}

pub fn wait_some<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    statuses: Statuses<'_, 'py>,
) -> PyResult<EndedRequests<'py>> {
    loop {
        let ended = test_some(py, requests, statuses)?;
        if ended.as_ref().is_none_or(|(indices, _)| !indices.is_empty()) {
            return Ok(ended);
        }
        await_news(py, requests)?;
    }
}

pub fn test_all<'py>(
    py: Python<'py>,
    requests: &Requests<'py>,
    statuses: Statuses<'_, 'py>,
) -> PyResult<Option<Vec<WaitResult<'py>>>> {
    for request in requests {
        if !request.get().has_ended(py) {
            return Ok(None);
        }
    }
    wait_all(py, requests, statuses).map(Some)
}
