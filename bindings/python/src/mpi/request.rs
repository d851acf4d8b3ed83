//! Operations that go on while the program does something else: `MPI.Request`.

use super::member::Member;
use super::pinned::Access;
use super::several::{self, Many, Statuses};
use super::spec::Part;
use super::status::{ANY_SOURCE, Status};
use super::work::{Failed, LOOK, Work};
use hotlease_comm::{Error, Received, Receiving, Status as Known, Watch};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a message, for whoever reads memory.
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
        // SAFETY: a view to fill; the bytes stay where they are as long as the object, which the view keeps.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                start,
                bytes.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Copies them to the beginning of a buffer; if they do not fit, how many would.
    fn _copy_to(&self, buf: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let part = Part::of(buf, Access::Write, "the receive buffer")?;
        let room = part.bytes();
        if self.0.len() > room {
            return Ok(Some(room));
        }
        let loan = part.lend_mut(self.0.len());
        loan.write().with(|into| into.copy_from_slice(&self.0));
        Ok(None)
    }
}

/// What a request is of.
enum Task {
    /// A send, a receive, a collective; or a send and then what its status is of.
    Works { first: Option<Work>, last: Work },
    /// An object that is received, and what makes it of bytes.
    Object {
        receiving: Receiving,
        loads: Option<Py<PyAny>>,
    },
    /// One that has ended, which nobody was told yet.
    Ended(Option<Result<End, Failed>>),
    /// A message from nobody, or to nobody, which ends at once.
    Nothing { source: i64 },
}

/// How it ended.
enum End {
    Known(Known),
    Received(Received, Option<Py<PyAny>>),
    Nothing { source: i64 },
    Cancelled,
}

impl Task {
    /// Its end, once, if it comes in this time.
    fn poll(&mut self, at_most: Duration) -> Option<Result<End, Failed>> {
        let result = match self {
            Self::Works { first, last } => {
                if let Some(work) = first {
                    let sent = work.poll(at_most)?;
                    *first = None;
                    if let Err(failed) = sent {
                        return Some(Err(failed));
                    }
                }
                last.poll(at_most)?.map(End::Known)
            }
            Self::Object { receiving, loads } => match receiving.wait_for(at_most)? {
                Ok(received) => Ok(End::Received(received, loads.take())),
                Err(error) => Err(error.into()),
            },
            Self::Ended(result) => return result.take(),
            Self::Nothing { source } => Ok(End::Nothing { source: *source }),
        };
        match result {
            Err(failed) if matches!(failed.error, Error::Cancelled { .. }) => Some(Ok(End::Cancelled)),
            result => Some(result),
        }
    }

    /// What its end hangs on; none: it has ended.
    fn watch(&self) -> Option<Watch> {
        match self {
            Self::Works { first, last } => Some(first.as_ref().unwrap_or(last).watch()),
            Self::Object { receiving, .. } => Some(receiving.watch()),
            Self::Ended(_) | Self::Nothing { .. } => None,
        }
    }

    fn cancel(&mut self) {
        match self {
            Self::Works { first, last } => {
                last.cancel();
                first.as_mut().map(Work::cancel);
            }
            Self::Object { receiving, .. } => {
                receiving.cancel();
            }
            Self::Ended(_) | Self::Nothing { .. } => {}
        }
    }

    /// Nobody waits for it any more.
    fn abandon(self, py: Python<'_>, member: &Member) {
        if let Self::Works { first, last } = self {
            first
                .into_iter()
                .chain([last])
                .for_each(|work| work.abandon(py, member));
        }
    }
}

/// An operation that has begun. Its memory is kept until it has ended, also if nobody waits for it.
#[pyclass(frozen, subclass, module = "hotlease.MPI")]
pub struct Request {
    /// None: it has ended, and that was told.
    task: Mutex<Option<Task>>,
    member: Option<Arc<Member>>,
}

/// What waiting gives: an object, if one was received.
pub type Got<'py> = Bound<'py, PyAny>;

impl Request {
    fn of(member: &Arc<Member>, task: Task) -> Self {
        Self {
            task: Mutex::new(Some(task)),
            member: Some(Arc::clone(member)),
        }
    }

    pub fn of_work(member: &Arc<Member>, last: Work) -> Self {
        Self::of(member, Task::Works { first: None, last })
    }

    pub fn of_both(member: &Arc<Member>, first: Work, last: Work) -> Self {
        let first = Some(first);
        Self::of(member, Task::Works { first, last })
    }

    pub fn of_object(member: &Arc<Member>, receiving: Receiving, loads: Py<PyAny>) -> Self {
        let loads = Some(loads);
        Self::of(member, Task::Object { receiving, loads })
    }

    pub fn of_nothing(member: &Arc<Member>, source: i64) -> Self {
        Self::of(member, Task::Nothing { source })
    }

    /// Whether it has not ended, or its end was not told yet.
    pub fn is_active(&self, py: Python<'_>) -> bool {
        self.task(py).is_some()
    }

    /// What its end hangs on, while it has not come.
    pub fn watch(&self, py: Python<'_>) -> Option<Watch> {
        self.task(py).as_ref()?.watch()
    }

    fn task(&self, py: Python<'_>) -> MutexGuard<'_, Option<Task>> {
        self.task
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the end in, if it comes in this time. None: it has not come.
    pub fn take<'py>(
        &self,
        py: Python<'py>,
        at_most: Duration,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<Option<Got<'py>>> {
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
            End::Received(received, loads) => {
                fill(status, |status| status.fill(&received.status));
                let bytes = Bound::new(py, Bytes(received.bytes))?;
                if let Some(loads) = loads {
                    return loads.bind(py).call1((bytes,)).map(Some);
                }
            }
            End::Known(known) => fill(status, |status| status.fill(&known)),
            End::Nothing { source } => fill(status, |status| status.fill_empty(source)),
            End::Cancelled => fill(status, Status::fill_cancelled),
        }
        Ok(Some(py.None().into_bound(py)))
    }

    /// Whether it has ended, which is told of later.
    pub fn has_ended(&self, py: Python<'_>) -> bool {
        let mut place = self.task(py);
        let Some(task) = &mut *place else {
            return true;
        };
        let result = py.detach(|| task.poll(Duration::ZERO));
        let has_ended = result.is_some();
        if has_ended {
            *place = Some(Task::Ended(result));
        }
        has_ended
    }

    /// Waits for the end.
    pub fn await_end<'py>(&self, py: Python<'py>, status: Option<&Bound<'py, Status>>) -> PyResult<Got<'py>> {
        loop {
            if let Some(got) = self.take(py, LOOK, status)? {
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
    /// None, as `MPI.REQUEST_NULL`.
    #[new]
    fn new() -> Self {
        Self {
            task: Mutex::new(None),
            member: None,
        }
    }

    /// Waits for its end.
    #[pyo3(signature = (status=None))]
    fn Wait(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        self.await_end(py, status).map(|_| true)
    }

    /// Whether it has ended; makes progress.
    #[pyo3(signature = (status=None))]
    fn Test(&self, py: Python<'_>, status: Option<&Bound<'_, Status>>) -> PyResult<bool> {
        Ok(self.take(py, Duration::ZERO, status)?.is_some())
    }

    /// Waits for its end; the object, if one is received.
    #[pyo3(signature = (status=None))]
    fn wait<'py>(&self, py: Python<'py>, status: Option<&Bound<'py, Status>>) -> PyResult<Got<'py>> {
        self.await_end(py, status)
    }

    /// Whether it has ended, and the object, if one was received.
    #[pyo3(signature = (status=None))]
    fn test<'py>(
        &self,
        py: Python<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(bool, Option<Got<'py>>)> {
        let got = self.take(py, Duration::ZERO, status)?;
        Ok((got.is_some(), got))
    }

    /// Cancels it if that is possible: a receive that nothing has come for, or a send that has not begun. It is to be waited for
    /// anyway; the status says whether it was.
    fn Cancel(&self, py: Python<'_>) {
        if let Some(task) = &mut *self.task(py) {
            py.detach(|| task.cancel());
        }
    }

    fn cancel(&self, py: Python<'_>) {
        self.Cancel(py);
    }

    /// Nobody will wait for it. It goes on by itself, and its memory is kept so long.
    fn Free(&self, py: Python<'_>) {
        let task = self.task(py).take();
        if let (Some(task), Some(member)) = (task, &self.member) {
            task.abandon(py, member);
        }
    }

    /// Waits for all of them; raises what one of them raised first, when all have ended.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Waitall(py: Python<'_>, requests: Many<'_>, statuses: Statuses<'_, '_>) -> PyResult<bool> {
        several::wait_all(py, &requests, statuses).map(|_| true)
    }

    /// The same; their objects.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn waitall<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<Vec<Got<'py>>> {
        several::wait_all(py, &requests, statuses)
    }

    /// Waits until one of them has ended: which.
    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn Waitany<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<i64> {
        several::wait_any(py, &requests, status).map(|(index, _)| index)
    }

    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn waitany<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, Option<Got<'py>>)> {
        several::wait_any(py, &requests, status)
    }

    /// Waits until some of them have ended: which; None if all had before.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Waitsome(
        py: Python<'_>,
        requests: Many<'_>,
        statuses: Statuses<'_, '_>,
    ) -> PyResult<Option<Vec<i64>>> {
        several::wait_some(py, &requests, statuses).map(|(indices, _)| indices)
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn waitsome<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<several::Ended<'py>> {
        several::wait_some(py, &requests, statuses)
    }

    /// Whether all of them have ended. Those that have are told of once, by what asks for them.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Testall(py: Python<'_>, requests: Many<'_>, statuses: Statuses<'_, '_>) -> PyResult<bool> {
        several::test_all(py, &requests, statuses).map(|got| got.is_some())
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn testall<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<(bool, Option<Vec<Got<'py>>>)> {
        several::test_all(py, &requests, statuses).map(|got| (got.is_some(), got))
    }

    /// Which of them has ended, if any, and whether one has.
    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn Testany<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, bool)> {
        several::test_any(py, &requests, status).map(|(index, has_ended, _)| (index, has_ended))
    }

    #[staticmethod]
    #[pyo3(signature = (requests, status=None))]
    fn testany<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        status: Option<&Bound<'py, Status>>,
    ) -> PyResult<(i64, bool, Option<Got<'py>>)> {
        several::test_any(py, &requests, status)
    }

    /// Which of them have ended.
    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn Testsome(
        py: Python<'_>,
        requests: Many<'_>,
        statuses: Statuses<'_, '_>,
    ) -> PyResult<Option<Vec<i64>>> {
        several::test_some(py, &requests, statuses).map(|(indices, _)| indices)
    }

    #[staticmethod]
    #[pyo3(signature = (requests, statuses=None))]
    fn testsome<'py>(
        py: Python<'py>,
        requests: Many<'py>,
        statuses: Statuses<'_, 'py>,
    ) -> PyResult<several::Ended<'py>> {
        several::test_some(py, &requests, statuses)
    }

    fn __bool__(&self, py: Python<'_>) -> bool {
        self.is_active(py)
    }

    /// Those that have ended are all the same: `MPI.REQUEST_NULL`.
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
        if let (Some(task), Some(member)) = (task, &self.member) {
            Python::try_attach(|py| task.abandon(py, member));
        }
    }
}
