//! Watch of several invocations at once: which of them has a result.

use super::Pipeline;
use crate::Error;
use crate::channel::Channel;
use std::fmt;
use std::sync::Arc;

/// An invocation in flight, for a caller that does not hold its pipeline or future. `Send + Sync`. Keeps the channel's
/// memory alive, but neither the lease nor the worker.
#[derive(Clone)]
pub struct AwaitedCall {
    pub(crate) channel: Arc<Channel>,
    seq: u64,
}

impl AwaitedCall {
    pub(crate) fn new(channel: Arc<Channel>, seq: u64) -> Self {
        Self { channel, seq }
    }

    /// Whether [`Pipeline::try_pop`] has a result for this invocation: an output, or the error of a worker that is
    /// gone. (If a future submits its call again after that, the future waits for another invocation.)
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.channel.is_answered(self.seq) || self.channel.is_closed()
    }

    /// Whether the invocation's worker is a process of this node.
    pub fn is_near(&self) -> bool {
        self.channel.port().is_none()
    }
}

impl fmt::Debug for AwaitedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("ready", &self.is_ready()).finish()
    }
}

impl Pipeline {
    /// The oldest invocation in flight, to be watched without this pipeline.
    pub fn oldest(&self) -> Option<AwaitedCall> {
        let seq = *self.in_flight.front()?;
        Some(AwaitedCall::new(self.channel.clone(), seq))
    }

    /// Whether the worker uses buffers of this process in place, because it is reached through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.channel.port().is_none()
    }

    /// Whether the worker is gone. Each invocation in flight must still be popped, and yields its error; then
    /// [`Pipeline::repair`], or the next push, gets another worker.
    pub fn is_closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// Replaces a worker that is gone. Waits for the new worker, also beyond the timeout of the pipeline's invocations.
    /// No invocation may be in flight. Does nothing while the worker lives.
    ///
    /// # Errors
    /// Errors of taking a new lease, and the error of the oldest invocation in flight, if there is one.
    pub fn repair(&mut self) -> Result<(), Error> {
        if self.channel.is_closed() {
            self.reopen(None)?;
        }
        Ok(())
    }
}
