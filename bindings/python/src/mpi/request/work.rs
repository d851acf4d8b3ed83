//! Operation behind a request, and its end.

use crate::mpi::member::Member;
use crate::mpi::memory::BufferBytes;
use crate::mpi::operation::{OperationError, RunningOperation};
use crate::mpi::status::{ANY_SOURCE, Status};
use hotlease_comm::{Error, MessageStatus as Known, ReceiveRequest, ReceivedMessage, Watch};
use pyo3::prelude::*;
use std::time::Duration;

/// Operation behind a request.
pub enum RequestOperation {
    /// One send, receive or collective (`last`). Or two operations, a send (`first`) and a receive (`last`), whose
    /// status is reported.
    Works {
        first: Option<RunningOperation>,
        last: RunningOperation,
    },
    /// A receive of an object, and the function that makes the object from bytes.
    Object {
        receiving: ReceiveRequest,
        loads: Option<Py<PyAny>>,
    },
    /// Operations that are reported as one operation, when all have ended.
    Several {
        /// Operations that have not ended.
        rest: Vec<RequestOperation>,
        /// First failure of the operations that have ended.
        failed: Option<OperationError>,
        /// Copies without gaps into which elements with gaps are received; they are unpacked at the end.
        blocks: Vec<Py<BufferBytes>>,
    },
    /// An operation that has ended, whose end was not reported yet.
    Ended(Option<Result<RequestEnd, OperationError>>),
    /// A message from or to `MPI.PROC_NULL`, which ends at once.
    Empty { source: i64 },
}

/// End of an operation.
pub enum RequestEnd {
    Known(Known),
    Received(ReceivedMessage, Option<Py<PyAny>>),
    Empty { source: i64 },
    Cancelled,
}

impl RequestEnd {
    /// Fills the status.
    pub fn tell(&self, status: &mut Status) {
        match self {
            Self::Known(known) => status.fill(known),
            Self::Received(received, _) => status.fill(&received.status),
            Self::Empty { source } => status.fill_empty(*source),
            Self::Cancelled => status.fill_cancelled(),
        }
    }
}

impl RequestOperation {
    /// Returns the end, once, if the operation ends within `at_most`. If there are several operations, the limit
    /// applies to each, from the end of the previous operation on.
    pub fn poll(&mut self, at_most: Duration) -> Option<Result<RequestEnd, OperationError>> {
        let result = match self {
            Self::Works { first, last } => {
                if let Some(work) = first {
                    let sent = work.poll(at_most)?;
                    *first = None;
                    if let Err(failed) = sent {
                        return Some(Err(failed));
                    }
                }
                last.poll(at_most)?.map(RequestEnd::Known)
            }
            Self::Object { receiving, loads } => match receiving.wait_for(at_most)? {
                Ok(received) => Ok(RequestEnd::Received(received, loads.take())),
                Err(error) => Err(error.into()),
            },
            Self::Several { rest, failed, blocks } => {
                while let Some(operation) = rest.last_mut() {
                    if let Err(error) = operation.poll(at_most)? {
                        failed.get_or_insert(error);
                    }
                    rest.pop();
                }
                match failed.take() {
                    Some(error) => return Some(Err(error)),
                    None => {
                        blocks.iter().for_each(|block| block.get().put_back());
                        Ok(RequestEnd::Empty { source: ANY_SOURCE })
                    }
                }
            }
            Self::Ended(result) => return result.take(),
            Self::Empty { source } => Ok(RequestEnd::Empty { source: *source }),
        };
        match result {
            Err(failed) if matches!(failed.error, Error::Cancelled { .. }) => Some(Ok(RequestEnd::Cancelled)),
            result => Some(result),
        }
    }

    /// Watch on the end of the operation; `None` if it has ended.
    pub fn watch(&self) -> Option<Watch> {
        match self {
            Self::Works { first, last } => Some(first.as_ref().unwrap_or(last).watch()),
            Self::Object { receiving, .. } => Some(receiving.watch()),
            Self::Several { rest, .. } => rest.last()?.watch(),
            Self::Ended(_) | Self::Empty { .. } => None,
        }
    }

    /// Cancels the operation, if that is possible. Several operations that are reported as one are a collective, which
    /// cannot be cancelled.
    pub fn cancel(&mut self) {
        match self {
            Self::Works { first, last } => {
                last.cancel();
                first.as_mut().map(RunningOperation::cancel);
            }
            Self::Object { receiving, .. } => {
                receiving.cancel();
            }
            Self::Several { .. } | Self::Ended(_) | Self::Empty { .. } => {}
        }
    }

    /// Abandons the operation: the program does not wait for it any more.
    pub fn abandon(self, py: Python<'_>, member: &Member) {
        match self {
            Self::Works { first, last } => {
                let works = first.into_iter().chain([last]);
                works.for_each(|work| work.abandon(py, member));
            }
            Self::Several { rest, .. } => rest.into_iter().for_each(|operation| operation.abandon(py, member)),
            Self::Object { .. } | Self::Ended(_) | Self::Empty { .. } => {}
        }
    }
}
