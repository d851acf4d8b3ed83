//! Waiting on several pipelines at once: which has a result, and sleeping until one has.

use super::Pipeline;
use crate::channel::Channel;
use crate::invocation::{BufferInvocation, Invocation};
use crate::{Error, Invoker};
use hotlease_fabric::ofi::Port;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pause between two looks at channels that cannot be slept on together.
const NAP: Duration = Duration::from_micros(50);
/// The longest sleep on a port, which [`Invoker::rouse`] does not end.
const PORT_SLEEP_MAX: Duration = Duration::from_millis(2);

/// An invocation in flight, for a caller that does not hold its pipeline or future. `Send + Sync`; keeps the memory
/// of the channel, but neither lease nor worker.
#[derive(Clone)]
pub struct AwaitedCall {
    channel: Arc<Channel>,
    seq: u64,
}

impl AwaitedCall {
    /// Whether [`Pipeline::try_pop`] has a result for it: an output, or the error of a worker that is gone. (If its
    /// future is submitted again after that, the future is another invocation.)
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.channel.is_answered(self.seq) || self.channel.is_closed()
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
        self.in_flight.front().map(|&seq| AwaitedCall {
            channel: self.channel.clone(),
            seq,
        })
    }

    /// Whether the worker uses buffers of this process in place: it is reached through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.channel.port().is_none()
    }

    /// Whether the worker is gone. Each invocation in flight is still to be popped, with its error; then
    /// [`Pipeline::repair`], or the next push, gets another worker.
    pub fn is_closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// Replaces a worker that is gone. Waits for the new worker, also beyond the timeout of the pipeline's
    /// invocations; none may be in flight. Does nothing while the worker lives.
    ///
    /// # Errors
    /// Those of taking a new lease, and the error of the oldest invocation in flight, if there is one.
    pub fn repair(&mut self) -> Result<(), Error> {
        if self.channel.is_closed() {
            self.reopen(None)?;
        }
        Ok(())
    }
}

impl Invocation {
    /// The invocation that the future waits for now.
    pub fn awaited(&self) -> AwaitedCall {
        let (channel, seq) = self.place();
        AwaitedCall { channel, seq }
    }
}

impl BufferInvocation {
    /// The invocation that the future waits for now.
    pub fn awaited(&self) -> AwaitedCall {
        let (channel, seq) = self.place();
        AwaitedCall { channel, seq }
    }
}

impl Invoker {
    /// Sleeps until one of these is ready, `ready` returns true, [`Invoker::rouse`] is called, or the limit has
    /// passed. It may return earlier. Only one thread of an invoker may call this at a time.
    pub fn sleep(&self, all: &[AwaitedCall], limit: Duration, mut ready: impl FnMut() -> bool) {
        // The doorbell alone ends no sleep: a sleeper looks whether there was a reason, and sleeps again.
        let before = self.inner().roused.load(Ordering::Acquire);
        let roused = || self.inner().roused.load(Ordering::Acquire) != before;
        let mut ready = || ready() || roused() || all.iter().any(AwaitedCall::is_ready);
        let mut ports: Vec<&Arc<Port>> = Vec::new();
        for awaited in all {
            awaited.channel.check_link();
            if let Some(port) = awaited.channel.port()
                && !ports.iter().any(|known| Arc::ptr_eq(known, port))
            {
                ports.push(port);
            }
        }
        match ports[..] {
            [] => {
                self.inner().plan.doorbell.sleep_unless(ready, Some(limit));
            }
            [port] => {
                port.sleep(limit.min(PORT_SLEEP_MAX), ready);
            }
            // One thread cannot sleep on several ports that other threads use, too.
            _ => {
                let until = Instant::now() + limit.min(PORT_SLEEP_MAX);
                while !ready() && Instant::now() < until {
                    std::thread::sleep(NAP);
                    ports.iter().for_each(|port| port.progress());
                }
            }
        }
    }

    /// Ends the [`Invoker::sleep`] of another thread, if it has begun.
    pub fn rouse(&self) {
        self.inner().roused.fetch_add(1, Ordering::AcqRel);
        self.inner().plan.doorbell.ring();
    }
}
