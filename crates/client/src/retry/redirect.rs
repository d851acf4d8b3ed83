//! Redirects of invocations on shared cores: one slot refuses, another is tried.
//!
//! A refusal ([`Error::NoCore`]) says that the function did not run. This module answers it with the next worker of
//! the lease, and then with a pause. A program that holds several leases can turn to another lease instead
//! ([`LeaseOptions::wait_for_core`](crate::LeaseOptions::wait_for_core) off).

use crate::Error;
use crate::channel::Channel;
use crate::lease::slots::LeasedSlots;
use crate::options::{LeaseOptions, Sharing};
use hotlease_lease::client::{Redirect, Redirects};
use hotlease_wire::RunCertainty;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A seed that differs from call to call and from process to process.
fn seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    (u64::from(std::process::id()) << 32 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The redirects of one invocation: made at its first refusal.
#[derive(Debug, Default)]
pub(crate) struct LazyRedirects(Option<Redirects>);

impl LazyRedirects {
    /// Counts a slot's refusal. Returns how long to pause before another slot is tried, or the error if the caller does
    /// not want to wait. `slot`: the only slot that the caller accepts, if it names a slot.
    pub(crate) fn by_a_slot(&mut self, slot: Option<usize>, options: &LeaseOptions) -> Result<Duration, Error> {
        let workers = match slot {
            Some(_) => 1,
            None => usize::from(options.workers),
        };
        let redirects = self.0.get_or_insert_with(|| Redirects::new(seed()));
        match redirects.count_refusal(workers) {
            Redirect::ToAnother => Ok(Duration::ZERO),
            Redirect::After(_) if !options.wait_for_core => Err(Error::NoCore),
            Redirect::After(pause) => Ok(pause),
        }
    }
}

/// Pauses before an invocation that began at `since` is tried again.
///
/// # Errors
/// [`Error::Deadline`] if the pause would last beyond the timeout.
pub(crate) fn pause(pause: Duration, since: Instant, timeout: Option<Duration>) -> Result<(), Error> {
    if timeout.is_some_and(|timeout| since.elapsed() + pause >= timeout) {
        return Err(Error::deadline(timeout, RunCertainty::No));
    }
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
    Ok(())
}

impl LeasedSlots {
    /// Whether slots may refuse invocations because their cores are shared.
    #[inline]
    pub(crate) fn shares_cores(&self) -> bool {
        self.plan.options.sharing == Sharing::Shared
    }

    /// The slot whose open channel this is.
    pub(crate) fn slot_of(&self, channel: &Arc<Channel>) -> Option<usize> {
        (0..self.slots()).find(|slot| {
            let open = self.open_channel(*slot);
            open.is_some_and(|open| Arc::ptr_eq(&open, channel))
        })
    }

    /// Picks a channel after a slot has refused: the first idle slot from the next worker on, else the first open slot.
    /// The slots of one worker share its core.
    pub(crate) fn pick_beside(
        self: &Arc<Self>,
        slot: usize,
        limit: Option<Duration>,
    ) -> Result<(usize, Arc<Channel>), Error> {
        let (count, each) = (self.slots(), usize::from(self.plan.options.slots));
        let next = (slot / each + 1) * each;
        let order = || (next..next + count).map(|slot| slot % count);
        let open = |slot| Some((slot, self.open_channel(slot)?));
        let idle = order().filter_map(open).find(|(_, channel)| channel.load(1) == 0);
        match idle.or_else(|| order().find_map(open)) {
            Some(found) => Ok(found),
            None => self.pick(None, limit),
        }
    }
}
