//! Operations on pinned memory: waits that Ctrl-C interrupts, and operations that the program has abandoned.

use super::buffer_spec::Loan;
use super::failure;
use super::member::Member;
use super::operator::RaisedError;
use hotlease_comm::{Error, LentBytes, LentBytesMut, MessageStatus, Request, Watch};
use pyo3::prelude::*;
use std::time::Duration;

/// Interval at which a waiting thread checks for Ctrl-C.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// An operation that was started, with the memory that it uses.
pub struct RunningOperation {
    request: Request,
    memory: OperationMemory,
    /// Store for the exception of a program's operator, if there is one.
    raised: Option<RaisedError>,
}

/// Memory of an operation.
pub struct OperationMemory {
    /// Memory that is read; the loan is only kept alive here.
    _read: Option<Loan<LentBytes>>,
    written: Option<Loan<LentBytesMut>>,
}

impl From<Loan<LentBytes>> for OperationMemory {
    fn from(read: Loan<LentBytes>) -> Self {
        let (_read, written) = (Some(read), None);
        Self { _read, written }
    }
}

impl From<Loan<LentBytesMut>> for OperationMemory {
    fn from(written: Loan<LentBytesMut>) -> Self {
        let (_read, written) = (None, Some(written));
        Self { _read, written }
    }
}

impl From<(Loan<LentBytes>, Loan<LentBytesMut>)> for OperationMemory {
    fn from((read, written): (Loan<LentBytes>, Loan<LentBytesMut>)) -> Self {
        let (_read, written) = (Some(read), Some(written));
        Self { _read, written }
    }
}

/// Failure of an operation.
pub struct OperationError {
    pub error: Error,
    raised: Option<RaisedError>,
}

impl From<Error> for OperationError {
    fn from(error: Error) -> Self {
        Self { error, raised: None }
    }
}

impl OperationError {
    /// Makes the exception; an exception of the program's operator becomes its cause.
    pub fn exception(&self, py: Python<'_>) -> PyErr {
        let exception = failure::of(py, &self.error);
        if let Some(cause) = self.raised.as_ref().and_then(RaisedError::take) {
            exception.set_cause(py, Some(cause));
        }
        exception
    }
}

impl RunningOperation {
    /// Starts the operation.
    pub fn begin<M: Into<OperationMemory> + Sync>(
        py: Python<'_>,
        member: &Member,
        memory: M,
        raised: Option<RaisedError>,
        begin: impl FnOnce(&M) -> Result<Request, Error> + Send,
    ) -> PyResult<Self> {
        member.sweep(py);
        let request = py.detach(|| begin(&memory)).map_err(|error| failure::of(py, &error))?;
        Ok(Self {
            request,
            memory: memory.into(),
            raised,
        })
    }

    /// Starts the operation, and waits for its end.
    pub fn run<M: Into<OperationMemory> + Sync>(
        py: Python<'_>,
        member: &Member,
        memory: M,
        raised: Option<RaisedError>,
        begin: impl FnOnce(&M) -> Result<Request, Error> + Send,
    ) -> PyResult<MessageStatus> {
        let mut ended = None;
        let begin = |memory: &M| {
            let mut request = begin(memory)?;
            ended = request.wait_for(SIGNAL_INTERVAL);
            Ok(request)
        };
        let mut work = Self::begin(py, member, memory, raised, begin)?;
        match ended {
            Some(Ok(status)) => {
                work.unpack();
                Ok(status)
            }
            Some(Err(error)) => Err(work.failed(error).exception(py)),
            None => work.wait(py, member),
        }
    }

    /// Waits for the end. After Ctrl-C, the operation continues by itself if it cannot be cancelled.
    pub fn wait(mut self, py: Python<'_>, member: &Member) -> PyResult<MessageStatus> {
        loop {
            if let Err(interrupt) = py.check_signals() {
                self.abandon(py, member);
                return Err(interrupt);
            }
            if let Some(result) = py.detach(|| self.poll(SIGNAL_INTERVAL)) {
                return result.map_err(|failed| failed.exception(py));
            }
        }
    }

    /// Returns the result if the operation ends within `at_most`. The result is returned only once.
    pub fn poll(&mut self, at_most: Duration) -> Option<Result<MessageStatus, OperationError>> {
        let result = self.request.wait_for(at_most)?;
        if result.is_ok() {
            self.unpack();
        }
        Some(result.map_err(|error| self.failed(error)))
    }

    /// Writes received elements to the places where they belong, if they were received into a copy.
    fn unpack(&mut self) {
        if let Some(written) = &mut self.memory.written {
            written.unpack();
        }
    }

    /// Watch on the end of the operation.
    pub fn watch(&self) -> Watch {
        self.request.watch()
    }

    fn failed(&self, error: Error) -> OperationError {
        let raised = self.raised.clone();
        OperationError { error, raised }
    }

    /// Cancels the operation; returns whether that was possible.
    pub fn cancel(&mut self) -> bool {
        self.request.cancel()
    }

    /// Abandons the operation: the program does not wait for it any more.
    pub fn abandon(mut self, py: Python<'_>, member: &Member) {
        let has_ended = py.detach(|| {
            self.cancel();
            self.poll(Duration::ZERO).is_some()
        });
        if !has_ended {
            member.keep_until_end(self);
        }
    }
}

/// Waits for an operation that needs no memory of the program.
pub fn wait<T: Send>(py: Python<'_>, mut poll: impl FnMut(Duration) -> Option<Result<T, Error>> + Send) -> PyResult<T> {
    loop {
        if let Some(result) = py.detach(|| poll(SIGNAL_INTERVAL)) {
            return result.map_err(|error| failure::of(py, &error));
        }
        py.check_signals()?;
    }
}
