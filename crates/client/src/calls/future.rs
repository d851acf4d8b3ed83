//! Futures of submitted invocations.

use crate::Error;
use crate::channel::completions::CompletionAction;
use crate::invocation::pipeline::AwaitedCall;
use crate::invocation::submitted_call::ResultDestination;
use crate::retry::in_flight::{CallProgress, InFlight};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// An invocation in flight whose output is returned as bytes. It always resolves: to the output, or to an error that
/// says whether the function ran. In a fork of the process that submitted it, it resolves to an error at once.
///
/// Wait for it with [`Invocation::wait`] and its variants, or `.await` it in any executor. Dropping it discards the
/// result; the function runs nevertheless. `Send + Sync`.
#[must_use = "dropping an invocation discards its result"]
pub struct Invocation(CallFuture);

impl Invocation {
    pub(crate) fn new(in_flight: InFlight) -> Self {
        Self(CallFuture::new(in_flight))
    }

    /// The invocation that the future waits for at present.
    pub fn awaited(&self) -> AwaitedCall {
        self.0.in_flight.awaited()
    }

    /// Waits for the output.
    pub fn wait(mut self) -> Result<Vec<u8>, Error> {
        let mut output = Vec::new();
        self.0.wait(&mut output).map(|_| output)
    }

    /// Waits for the output and copies it to `output`; returns its length.
    ///
    /// # Errors
    /// Errors of the invocation; [`Error::OutputTooLarge`] if the output does not fit.
    pub fn wait_into(mut self, mut output: &mut [u8]) -> Result<usize, Error> {
        self.0.wait(&mut output)
    }

    /// Waits for at most `timeout`. Returns `None` if the invocation is still in flight then.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Vec<u8>, Error>> {
        let mut output = Vec::new();
        let result = self.0.wait_timeout(&mut output, timeout)?;
        Some(result.map(|_| output))
    }

    /// Whether the invocation has resolved, so that a wait returns at once.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Withdraws the invocation: its function does not run, and the invocation uses no memory any more. Returns the
    /// invocation if its slot has begun the function, or if the invocation cannot be withdrawn: over a fabric, or
    /// without [`Function::withdrawable`](crate::Function::withdrawable).
    #[allow(clippy::result_large_err, reason = "it is the invocation itself, which goes on")]
    pub fn withdraw(mut self) -> Result<(), Self> {
        if self.0.in_flight.withdraw() { Ok(()) } else { Err(self) }
    }

    /// The result, if it has arrived. (The result can be taken once.)
    pub fn try_take(&mut self) -> Option<Result<Vec<u8>, Error>> {
        let mut output = Vec::new();
        let result = self.0.try_take(&mut output)?;
        Some(result.map(|_| output))
    }
}

impl Future for Invocation {
    type Output = Result<Vec<u8>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut output = Vec::new();
        self.0.poll(&mut output, context).map(|result| result.map(|_| output))
    }
}

/// An invocation in flight whose output is written in place. Resolves to the output's length in bytes.
///
/// Otherwise it behaves like [`Invocation`]. While it is in flight, its parts of buffers belong to the worker.
#[must_use = "dropping an invocation discards its result"]
pub struct BufferInvocation(CallFuture);

impl BufferInvocation {
    pub(crate) fn new(in_flight: InFlight) -> Self {
        Self(CallFuture::new(in_flight))
    }

    /// The invocation that the future waits for at present.
    pub fn awaited(&self) -> AwaitedCall {
        self.0.in_flight.awaited()
    }

    /// Waits until the output is written.
    pub fn wait(mut self) -> Result<usize, Error> {
        self.0.wait(&mut Vec::new())
    }

    /// Waits for at most `timeout`. Returns `None` if the invocation is still in flight then.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<usize, Error>> {
        self.0.wait_timeout(&mut Vec::new(), timeout)
    }

    /// Whether the invocation has resolved.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Withdraws the invocation as [`Invocation::withdraw`] does; afterwards no worker writes to its output.
    #[allow(clippy::result_large_err, reason = "it is the invocation itself, which goes on")]
    pub fn withdraw(mut self) -> Result<(), Self> {
        if self.0.in_flight.withdraw() { Ok(()) } else { Err(self) }
    }

    /// The result, if it has arrived. (The result can be taken once.)
    pub fn try_take(&mut self) -> Option<Result<usize, Error>> {
        self.0.try_take(&mut Vec::new())
    }
}

impl Future for BufferInvocation {
    type Output = Result<usize, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(&mut Vec::new(), context)
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("Invocation", f)
    }
}

impl fmt::Debug for BufferInvocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe("BufferInvocation", f)
    }
}

/// Common part of both futures.
struct CallFuture {
    in_flight: InFlight,
    /// Whether the completion thread was asked to get a worker for the next submission.
    prepared: bool,
}

impl CallFuture {
    fn new(in_flight: InFlight) -> Self {
        Self {
            in_flight,
            prepared: false,
        }
    }

    fn wait(&mut self, take: &mut impl ResultDestination) -> Result<usize, Error> {
        // A wait without a limit ends with a result.
        self.in_flight
            .wait(take, None)
            .unwrap_or_else(|| Err(Error::protocol("a wait without a limit ended without a result")))
    }

    fn wait_timeout(&mut self, take: &mut impl ResultDestination, timeout: Duration) -> Option<Result<usize, Error>> {
        self.in_flight.wait(take, Instant::now().checked_add(timeout))
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_done()
    }

    fn try_take(&mut self, take: &mut impl ResultDestination) -> Option<Result<usize, Error>> {
        match self.in_flight.step(take) {
            CallProgress::Done(result) => Some(result),
            CallProgress::Waiting => None,
        }
    }

    fn poll(&mut self, take: &mut impl ResultDestination, context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        let completions = self.in_flight.function().inner.completions.clone();
        let waker = context.waker().clone();
        if self.in_flight.needs_a_worker() && !self.prepared {
            // The call must be submitted again, which needs a worker. An executor's thread must not wait for the
            // worker, so the completion thread does. If no worker is available, the next poll reports why.
            self.prepared = true;
            let (function, limit) = (self.in_flight.function().clone(), self.in_flight.time_left());
            let prepare = move || {
                let _ = function.inner.pick(function.slot, limit);
                waker.wake();
            };
            return match completions.run(Box::new(prepare)) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        }
        self.prepared = false;
        if let Some(result) = self.try_take(take) {
            return Poll::Ready(result);
        }
        let watched = match self.in_flight.parked_until() {
            Some(at) => completions.run_at(at, CompletionAction::Wake(waker)),
            None => {
                let (channel, seq, deadline) = self.in_flight.begin_watch();
                completions.watch(&channel, seq, deadline, CompletionAction::Wake(waker))
            }
        };
        match watched {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("function", &self.in_flight.function().name())
            .field("done", &self.is_done())
            .finish()
    }
}
