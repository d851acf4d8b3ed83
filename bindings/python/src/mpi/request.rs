//! Requests: operations that run while the program does something else (`MPI.Request`).

mod work;

use super::buffer_spec::BufferPart;
use super::member::Member;
use super::memory::BufferBytes;
use super::operation::{RunningOperation, SIGNAL_INTERVAL};
use super::pinned_buffer::BufferAccess;
use super::requests::{self, Requests, Statuses};
use super::status::{ANY_SOURCE, Status};
use hotlease_comm::{MessageStatus as Known, ReceiveRequest, Watch};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use work::{RequestEnd, RequestOperation};

/// Bytes of a message, as a Python buffer.
#[pyclass(frozen, module = "hotlease._core")]
pub struct Bytes(Vec<u8>);

impl Bytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

#[pymethods]
impl Bytes {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: a view to fill; the bytes stay in place as long as the object, which the view keeps alive.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Copies the bytes to the beginning of a buffer; if they do not fit, returns the size of the buffer.
    fn _copy_to(&self, buf: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let part = BufferPart::of(buf, BufferAccess::Write, "the receive buffer")?;
        let room = part.bytes();
        if self.0.len() > room {
            return Ok(Some(room));
        }
        let mut loan = part.lend_mut(self.0.len());
        loan.memory().with(|into| into.copy_from_slice(&self.0));
        loan.unpack();
        Ok(None)
    }
}

/// An operation that was started. Its memory is kept until the operation has ended, even if the program does not wait
/// for the end.
#[pyclass(frozen, subclass, module = "hotlease.MPI")]
pub struct Request {
    /// `None`: the operation has ended, and its end was reported.
    task: Mutex<Option<RequestOperation>>,
    /// Member whose operation this is. Empty as long as all operations of the request had ended when the request got
    /// them.
    member: OnceLock<Arc<Member>>,
}

/// Result of a wait: the received object, if there is one; otherwise Python's `None`.
pub type WaitResult<'py> = Bound<'py, PyAny>;
/// Indices and objects of requests that have ended; `None` if all requests had ended before.
type EndedLists<'py> = (Option<Vec<i64>>, Option<Vec<WaitResult<'py>>>);

impl Request {
    fn of(member: &Arc<Member>, task: RequestOperation) -> Self {
        Self {
            task: Mutex::new(Some(task)),
            member: OnceLock::from(Arc::clone(member)),
        }
    }

    pub fn of_work(member: &Arc<Member>, last: RunningOperation) -> Self {
        Self::of(member, RequestOperation::Works { first: None, last })
    }

    pub fn of_both(member: &Arc<Member>, first: RunningOperation, last: RunningOperation) -> Self {
        let first = Some(first);
        Self::of(member, RequestOperation::Works { first, last })
    }

    pub fn of_object(member: &Arc<Member>, receiving: ReceiveRequest, loads: Py<PyAny>) -> Self {
        let loads = Some(loads);
        Self::of(member, RequestOperation::Object { receiving, loads })
    }

    pub fn of_nothing(member: &Arc<Member>, source: i64) -> Self {
        Self::of(member, RequestOperation::Empty { source })
    }

    /// Whether the operation has not ended, or its end was not reported yet.
    pub fn is_active(&self, py: Python<'_>) -> bool {
        self.task(py).is_some()
    }

    /// Watch on the end of the operation; `None` once it has ended.
    pub fn watch(&self, py: Python<'_>) -> Option<Watch> {
        self.task(py).as_ref()?.watch()
    }

    fn task(&self, py: Python<'_>) -> MutexGuard<'_, Option<RequestOperation>> {
        self.task.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the end if the operation ends within `at_most`; otherwise returns `None`.
    pub fn take<'py>(
        &self,
        py: Python<'py>,
        at_most: Duration,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<Option<WaitResult<'py>>> {
        let mut place = self.task(py);
        let Some(task) = &mut *place else {
            fill(status, |status| status.fill_empty(ANY_SOURCE));
            return Ok(Some(py.None().into_bound(py)));
        };
        let Some(result) = py.detach(|| task.poll(at_most)) else {
            return Ok(None);
        };
        *place = None;
        drop(place);
        match result.map_err(|failed| failed.exception(py))? {
            RequestEnd::Received(received, loads) => {
                fill(status, |status| status.fill(&received.status));
                let bytes = Bound::new(py, Bytes(received.bytes))?;
                if let Some(loads) = loads {
                    return loads.bind(py).call1((bytes,)).map(Some);
                }
            }
            end => fill(status, |status| end.tell(status)),
        }
        Ok(Some(py.None().into_bound(py)))
    }

    /// Whether the operation has ended; its end is reported later.
    pub fn has_ended(&self, py: Python<'_>) -> bool {
        let mut place = self.task(py);
        let Some(task) = &mut *place else {
            return true;
        };
        let result = py.detach(|| task.poll(Duration::ZERO));
        let has_ended = result.is_some();
        if has_ended {
            *place = Some(RequestOperation::Ended(result));
        }
        has_ended
    }

    /// Waits for the end.
    pub fn await_end<'py>(&self, py: Python<'py>, status: Option<&Bound<'py, Status>>) -> PyResult<WaitResult<'py>> {
        loop {
            if let Some(got) = self.take(py, SIGNAL_INTERVAL, status)? {
                return Ok(got);
            }
            py.check_signals()?;
        }
    }
}

fn fill(status: Option<&Bound<'_, Status>>, with: impl FnOnce(&mut Status)) {
    if let Some(status) = status {
        with(&mut status.borrow_mut());
    }
}

#[pymethods]
impl Request {
    /// An empty request, such as `MPI.REQUEST_NULL`.
    #[new]
    fn new() -> Self {
        Self {
            task: Mutex::new(None),
            member: OnceLock::new(),
        }
    }

    /// A request that has ended, with a message of `bytes` bytes.
    #[staticmethod]
    fn _ended(bytes: u64) -> Self {
        let (source, tag, member) = (0, 0, OnceLock::new());
        let end = RequestEnd::Known(Known { source, tag, bytes });
        let task = Mutex::new(Some(RequestOperation::Ended(Some(Ok(end)))));
        Self { task, member }
    }

    /// Joins requests: the new request ends when the operations of all requests have ended, and then unpacks the
    /// blocks. The given requests lose their operations, as if the operations had ended.
    #[staticmethod]
    fn _joined(py: Python<'_>, requests: Requests<'_>, blocks: Vec<Py<BufferBytes>>) -> Self {
        let (rest, failed) = (
            requests
                .iter()
                .filter_map(|request| request.get().task(py).take())
                .collect(),
            None,
        );
        let member = requests.iter().find_map(|request| request.get().member.get());
        Self {
            task: Mutex::new(Some(RequestOperation::Several { rest, failed, blocks })),
            member: member.map_or_else(OnceLock::new, |member| OnceLock::from(Arc::clone(member))),
        }
    }

    /// Takes over the operation of the request `by`, which from then on behaves as if it had ended. This request must
    /// have ended before.
    fn _renew(&self, py: Python<'_>, by: &Bound<'_, Self>) {
        let by = by.get();
        if let Some(member) = by.member.get() {
            self.member.get_or_init(|| Arc::clone(member));
        }
        let task = by.task(py).take();
        *self.task(py) = task;
    }

    /// Waits for the end.
    #[pyo3(signature = (status=None))]
    fn Wait(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        self.await_end(py, status).map(|_| true)
    }

    /// Whether the operation has ended; makes progress.
    #[pyo3(signature = (status=None))]
    fn Test(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        Ok(self.take(py, Duration::ZERO, status)?.is_some())
    }

    /// Whether the operation has ended. Later calls report its end again.
    #[pyo3(signature = (status=None))]
    fn Get_status(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        if !self.has_ended(py) {
            return Ok(false);
        }
        match &*self.task(py) {
            Some(RequestOperation::Ended(Some(Ok(end)))) => fill(status, |status| end.tell(status)),
            Some(RequestOperation::Ended(Some(Err(failed)))) => return Err(failed.exception(py)),
            _ => fill(status, |status| status.fill_empty(ANY_SOURCE)),
        }
        Ok(true)
    }

    /// Waits for the end; returns the received object, if there is one.
    #[pyo3(signature = (status=None))]
    fn wait<'py>(&self, py: Python<'py>, status: Option<&Bound<'py, Status>>) -> PyResult<WaitResult<'py>> {
        self.await_end(py, status)
    }

    /// Whether the operation has ended, and the received object, if there is one.
    #[pyo3(signature = (status=None))]
    fn test<'py>(
        &self,
        py: Python<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(bool, Option<WaitResult<'py>>)> {
        let got = self.take(py, Duration::ZERO, status)?;
        Ok((got.is_some(), got))
    }

    /// Cancels the operation if that is possible: a receive without a matching message, or a send that has not started.
    /// The program still has to wait for the request; the status says whether the operation was cancelled.
    fn Cancel(&self, py: Python<'_>) {
        if let Some(task) = &mut *self.task(py) {
            py.detach(|| task.cancel());
        }
    }

    fn cancel(&self, py: Python<'_>) {
        self.Cancel(py);
    }

    /// Abandons the request. The operation continues by itself, and its memory is kept until it ends.
    fn Free(&self, py: Python<'_>) {
        let task = self.task(py).take();
        if let (Some(task), Some(member)) = (task, self.member.get()) {
            task.abandon(py, member);
        }
    }

    /// Waits for all requests. Then, if operations failed, raises the exception of the first request in the list that
    /// failed.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Waitall(py: Python<'_>, requests: Requests<'_>, statuses: Statuses<'_, '_>) -> PyResult<bool> {
        requests::wait_all(py, &requests, statuses).map(|_| true)
    }

    /// Waits for all requests; returns their objects.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn waitall<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<Vec<WaitResult<'py>>> {
        requests::wait_all(py, &requests, statuses)
    }

    /// Waits until one of the requests has ended; returns its index.
    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn Waitany<'py>(py: Python<'py>, requests: Requests<'py>, status: Option<&Bound<'py, Status>>) -> PyResult<i64> {
        requests::wait_any(py, &requests, status).map(|(index, _)| index)
    }

    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn waitany<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, Option<WaitResult<'py>>)> {
        requests::wait_any(py, &requests, status)
    }

    /// Waits until some of the requests have ended; returns their indices, or None if all requests had ended before.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Waitsome(py: Python<'_>, requests: Requests<'_>, statuses: Statuses<'_, '_>) -> PyResult<Option<Vec<i64>>> {
        Ok(requests::wait_some(py, &requests, statuses)?.map(|(indices, _)| indices))
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn waitsome<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<EndedLists<'py>> {
        requests::wait_some(py, &requests, statuses).map(Option::unzip)
    }

    /// Whether all requests have ended. The call which finds that all have ended reports their ends, each once.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Testall(py: Python<'_>, requests: Requests<'_>, statuses: Statuses<'_, '_>) -> PyResult<bool> {
        requests::test_all(py, &requests, statuses).map(|got| got.is_some())
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn testall<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<(bool, Option<Vec<WaitResult<'py>>>)> {
        requests::test_all(py, &requests, statuses).map(|got| (got.is_some(), got))
    }

    /// Index of a request that has ended, and whether there is such a request.
    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn Testany<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, bool)> {
        requests::test_any(py, &requests, status).map(|(index, has_ended, _)| (index, has_ended))
    }

    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn testany<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, bool, Option<WaitResult<'py>>)> {
        requests::test_any(py, &requests, status)
    }

    /// Indices of the requests that have ended.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Testsome(py: Python<'_>, requests: Requests<'_>, statuses: Statuses<'_, '_>) -> PyResult<Option<Vec<i64>>> {
        Ok(requests::test_some(py, &requests, statuses)?.map(|(indices, _)| indices))
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn testsome<'py>(
        py: Python<'py>,
        requests: Requests<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<EndedLists<'py>> {
        requests::test_some(py, &requests, statuses).map(Option::unzip)
    }

    fn __bool__(&self, py: Python<'_>) -> bool {
        self.is_active(py)
    }

    /// Requests that have ended are equal to each other, and to `MPI.REQUEST_NULL`.
    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> bool {
        let py = slf.py();
        let is_null = |request: &Self| request.task(py).is_none();
        slf.is(other)
            || other
                .cast::<Self>()
                .is_ok_and(|other| is_null(slf.get()) && is_null(other.get()))
    }

    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        slf.as_ptr() as isize >> 4
    }

    fn __repr__(&self, py: Python<'_>) -> &'static str {
        if self.task(py).is_some() {
            "Request(pending)"
        } else {
            "Request(null)"
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(task), Some(member)) = (task, self.member.get()) {
            Python::try_attach(|py| task.abandon(py, member));
        }
    }
}
