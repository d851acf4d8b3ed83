//! Wait for a reply: spin unless other threads want the core, then sleep on the doorbell or the port.

use crate::channel::Channel;
use crate::options::Completion;
use hotlease_fabric::contention::PollingWait;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::Port;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long after an invocation's deadline the worker and the agent may still report how it ended, before the
/// client gives up on them. The cancel flag is set at the deadline and the worker killed 50 ms later.
pub(crate) const GRACE: Duration = Duration::from_millis(400);

/// Polls, with a pause after each, between two looks at the clock and the channel's state: a few microseconds.
const POLLS: u32 = 64;
/// Waiting time after which a thread that spins and never sleeps yields its core: it may share the core with the
/// worker.
const YIELD_AFTER: Duration = Duration::from_micros(20);
/// Waiting time after which a spinning thread yields if the worker is reached over a fabric. The worker is usually on
/// another host, and this thread must keep sending the large inputs that the worker reads.
const FABRIC_YIELD_AFTER: Duration = Duration::from_millis(1);
/// How long `Completion::Adaptive` spins if the last wait was shorter than this.
const SPIN_BRIEF: Duration = Duration::from_micros(100);
/// How long `Completion::Adaptive` spins if the last wait was longer. A wake-up costs 10 to 50 us, so spinning adds
/// little.
const SPIN_LONG: Duration = Duration::from_micros(10);
/// The longest sleep between two looks at the channel's state, in case a worker misuses the doorbell.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The longest sleep on a port, which does not signal that a channel was closed.
const FABRIC_SLEEP_MAX: Duration = Duration::from_millis(20);
/// The longest sleep on ports for several invocations: a port does not signal that an invocation was added, or that
/// [`crate::Invoker::wake`] was called.
const PORT_SLEEP_MAX: Duration = Duration::from_millis(2);
/// Pause between two looks at several ports.
const NAP: Duration = Duration::from_micros(50);

/// The time until which the client waits for an invocation that began at `since`.
pub(crate) fn give_up_at(since: Instant, timeout: Option<Duration>) -> Option<Instant> {
    since.checked_add(timeout?.checked_add(GRACE)?)
}

/// Reason why a wait ended without a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The channel was closed.
    Closed,
    /// The time is over.
    TimedOut,
}

impl Channel {
    /// Polls until there is a value, the channel is closed, or the end that `until` computes from the start of the call
    /// is reached. A value that arrived before a close or a timeout is still returned.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait<T>(
        &self,
        until: impl FnOnce(Instant) -> Option<Instant>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitEnd> {
        let start = Instant::now();
        let until = until(start);
        let spin = match self.completion {
            Completion::Spin => Duration::MAX,
            Completion::Sleep => Duration::ZERO,
            Completion::Adaptive if self.brief.load(Ordering::Relaxed) => SPIN_BRIEF,
            Completion::Adaptive => SPIN_LONG,
        };
        let yield_after = if self.port().is_some() {
            FABRIC_YIELD_AFTER
        } else {
            YIELD_AFTER
        };
        let mut polling = PollingWait::begin(start);
        loop {
            if self.is_closed() {
                return poll().ok_or(WaitEnd::Closed);
            }
            let now = Instant::now();
            let is_contended = self.completion == Completion::Adaptive && polling.note_look(now);
            if until.is_some_and(|until| now >= until) {
                return poll().ok_or(WaitEnd::TimedOut);
            }
            self.check_link();
            let waited = now - start;
            let mut value = None;
            if waited >= spin || is_contended {
                let left = |longest: Duration| until.map_or(longest, |until| longest.min(until - now));
                let ready = || {
                    if value.is_none() {
                        value = poll();
                    }
                    value.is_some() || self.is_closed()
                };
                match self.port() {
                    Some(port) => port.sleep(left(FABRIC_SLEEP_MAX), ready),
                    None => self.doorbell.sleep_unless(ready, Some(left(SLEEP_MAX))),
                };
                // A worker on another host does not compete for this core.
                polling.note_sleep(value.is_some() && self.port().is_none());
            } else {
                if waited >= yield_after && self.completion == Completion::Spin {
                    std::thread::yield_now();
                }
                for _ in 0..POLLS {
                    value = poll();
                    if value.is_some() {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
            if value.is_some() {
                if self.completion == Completion::Adaptive {
                    let now = Instant::now();
                    polling.note_answer(now);
                    self.brief.store(now - start < SPIN_BRIEF, Ordering::Relaxed);
                }
                return value.ok_or(WaitEnd::Closed);
            }
        }
    }
}

/// The ports through which the workers of these channels are reached, each once. Closes channels whose fabric is
/// broken.
pub(crate) fn ports_of<'a>(channels: impl Iterator<Item = &'a Arc<Channel>>) -> Vec<Arc<Port>> {
    let mut ports: Vec<Arc<Port>> = Vec::new();
    for channel in channels {
        channel.check_link();
        if let Some(port) = channel.port()
            && !ports.iter().any(|known| Arc::ptr_eq(known, port))
        {
            ports.push(port.clone());
        }
    }
    ports
}

/// Sleeps on these ports, or on the doorbell if there are none, until `ready` returns true or the limit has passed. It
/// may return earlier.
pub(crate) fn sleep(doorbell: &Doorbell, ports: &[Arc<Port>], limit: Duration, mut ready: impl FnMut() -> bool) {
    match ports {
        [] => {
            doorbell.sleep_unless(ready, Some(limit));
        }
        [port] => {
            port.sleep(limit.min(PORT_SLEEP_MAX), ready);
        }
        // One thread cannot sleep on several ports that other threads use, too.
        ports => {
            let until = Instant::now() + limit.min(PORT_SLEEP_MAX);
            while !ready() && Instant::now() < until {
                std::thread::sleep(NAP);
                ports.iter().for_each(|port| port.progress());
            }
        }
    }
}
