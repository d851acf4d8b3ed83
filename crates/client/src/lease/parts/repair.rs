//! Repair of slots: a worker that died is connected to again, a lost lease is replaced, and workers that were missing
//! are taken later. Each repair ends when the invoker is deallocated or dropped.

use super::{LeasePart, LeasedSlots, PartState, ended_error};
use crate::Error;
use crate::channel::Channel;
use crate::lease::acquire;
use crate::lease::{Lease, locked};
use crate::options::{LeaseOptions, Spread};
use crate::session::SessionEnd;
use crate::session::connection::NEWS_LIMIT;
use hotlease_wire::{EndReason, Rejection};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

impl LeasedSlots {
    /// Opens a slot's channel again, on a new incarnation of its worker or on a new lease; returns the channel. Waits
    /// for another task that repairs the same part.
    ///
    /// The repair ends with an error as soon as the invoker is deallocated. While it waits, it does not keep the slots
    /// alive: otherwise an invoker that is dropped meanwhile would still get a lease.
    pub(crate) async fn repair(self: Arc<Self>, slot: usize) -> Result<Arc<Channel>, Error> {
        let slots = usize::from(self.plan.options.slots);
        let worker = (slot / slots) as u16;
        let mut closing = self.parts.closing.subscribe();
        let mut inner = self;
        loop {
            let part = inner.parts.of(worker).ok_or_else(|| Error::NoSuchSlot {
                index: slot,
                slots: inner.slots(),
            })?;
            let (mut holding, this) = inner.wait_open(&mut closing, part.holding.lock()).await?;
            inner = this;
            if let Some(channel) = inner.open_channel(slot) {
                return Ok(channel);
            }
            if let PartState::Lease(lease) = &mut *holding {
                let over = match lease.end() {
                    Some(end) => end,
                    None => {
                        let repairing = async {
                            match reconnect(lease, worker - part.first).await {
                                Ok(channels) => Ok(Ok(channels)),
                                Err(error) => end_by_refusal(&error, lease).await.ok_or(error).map(Err),
                            }
                        };
                        let (repaired, this) = inner.wait_open(&mut closing, repairing).await?;
                        inner = this;
                        match repaired? {
                            Ok(channels) => return inner.put_all(worker, channels, slot),
                            Err(end) => end,
                        }
                    }
                };
                let reason = match over {
                    SessionEnd::Lease { reason, .. } => reason,
                    // The agent is gone, and the lease with it: an agent that starts again has another boot id.
                    SessionEnd::Lost => EndReason::AgentStopping,
                };
                if let PartState::Lease(lease) = std::mem::replace(&mut *holding, PartState::Ended(reason)) {
                    lease.abandon();
                }
            }
            let reason = match &*holding {
                PartState::Replaced => continue,
                PartState::Deallocated => return Err(ended_error(EndReason::Released)),
                PartState::Ended(reason) if !inner.plan.options.is_replaced() => {
                    return Err(ended_error(*reason));
                }
                PartState::Ended(reason) => *reason,
                PartState::Lease(_) => EndReason::AgentStopping,
            };
            let lost = (&*part, &mut *holding, reason);
            let (replaced, this) = inner.replace_part(lost, slot, &mut closing).await?;
            inner = this;
            if let Some(channel) = replaced {
                return Ok(channel);
            }
        }
    }

    /// Waits for a step of a repair; fails at once when the invoker is deallocated or dropped. The slots are not kept
    /// alive meanwhile.
    async fn wait_open<T>(
        self: Arc<Self>,
        closing: &mut watch::Receiver<bool>,
        step: impl Future<Output = T>,
    ) -> Result<(T, Arc<Self>), Error> {
        let slots = Arc::downgrade(&self);
        drop(self);
        let done = tokio::select! {
            biased;
            // Ends the wait also when there is no sender any more.
            _ = closing.wait_for(|closing| *closing) => return Err(ended_error(EndReason::Released)),
            done = step => done,
        };
        let slots = slots.upgrade().ok_or_else(|| ended_error(EndReason::Released))?;
        Ok((done, slots))
    }

    /// Waits up to `within` until some of the workers that were requested and not granted are available, and takes
    /// leases for as many as there is room for.
    pub(crate) async fn complete(self: Arc<Self>, within: Duration) -> Result<(), Error> {
        let _alone = self.completing.lock().await;
        let missing = (self.missing() / usize::from(self.plan.options.slots)) as u16;
        if missing == 0 {
            return Ok(());
        }
        let mut options = LeaseOptions::clone(&self.plan.options);
        (options.workers, options.spread) = (missing, Spread::AtLeast(1));
        let plan = self.plan.with_options(options);
        let mut closing = self.parts.closing.subscribe();
        let taken = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return Err(ended_error(EndReason::Released)),
            taken = acquire::take(&plan, missing, within) => taken?,
        };
        let mut late = None;
        for (lease, channels, _) in taken {
            if let Some(lease) = self.parts.add(lease, || self.append(channels)) {
                late = Some(lease.release().await.err().unwrap_or(ended_error(EndReason::Released)));
            }
        }
        late.map_or(Ok(()), Err)
    }

    /// Replaces a lost part by other leases: by a single lease if one agent has room for all workers of the part. If
    /// the options accept fewer workers than the part had, as many of its workers are replaced as there is room for.
    /// Returns no channel if the slot's worker is not replaced.
    async fn replace_part(
        self: Arc<Self>,
        (part, holding, reason): (&LeasePart, &mut PartState, EndReason),
        slot: usize,
        closing: &mut watch::Receiver<bool>,
    ) -> Result<(Option<Arc<Channel>>, Arc<Self>), Error> {
        let mut options = LeaseOptions::clone(&self.plan.options);
        options.workers = part.workers;
        let mut least = part.workers;
        if let Spread::AtLeast(workers) = options.spread {
            least = workers.min(part.workers);
            options.spread = Spread::AtLeast(least);
        }
        let plan = self.plan.with_options(options);
        let taking = acquire::take(&plan, part.workers, plan.options.move_within);
        let (taken, inner) = self.wait_open(closing, taking).await?;
        let taken = taken?;
        let workers: u32 = taken.iter().map(|(lease, ..)| u32::from(lease.workers())).sum();
        if !(u32::from(least)..=u32::from(part.workers)).contains(&workers) {
            for (lease, ..) in taken {
                if let Err(error) = lease.release().await {
                    tracing::debug!(%error, "a lease of the wrong size was not released");
                }
            }
            return Err(Error::protocol(
                "the manager granted another number of workers than was asked for",
            ));
        }
        let mut news = Vec::with_capacity(taken.len());
        let mut first = part.first;
        for (lease, channels, phases) in taken {
            *locked(&inner.parts.phases) = phases;
            let next = LeasePart::new(first, lease);
            inner.put_all(first, channels, slot).ok();
            first += next.workers;
            news.push(next);
        }
        let end = part.first + part.workers;
        if first < end {
            // The slots keep their numbers. Slots without a worker form a part that is still lost.
            news.push(LeasePart::lost(first, end - first, part, reason));
        }
        match <[LeasePart; 1]>::try_from(news) {
            Ok(
                [
                    LeasePart {
                        lease, holding: new, ..
                    },
                ],
            ) => {
                *locked(&part.lease) = *locked(&lease);
                *holding = new.into_inner();
            }
            Err(news) => {
                let mut parts = locked(&inner.parts.parts);
                if let Some(at) = parts.iter().position(|old| old.first == part.first) {
                    parts.splice(at..=at, news.into_iter().map(Arc::new));
                }
                *holding = PartState::Replaced;
            }
        }
        if slot / usize::from(inner.plan.options.slots) >= usize::from(first) {
            return Ok((None, inner));
        }
        match inner.open_channel(slot) {
            Some(channel) => Ok((Some(channel), inner)),
            None => Err(Error::OutcomeUnknown {
                why: "the new lease was lost at once".into(),
            }),
        }
    }

    /// Stores the channels of the workers from `worker` on; returns the channel of `slot`.
    fn put_all(&self, worker: u16, channels: Vec<Arc<Channel>>, slot: usize) -> Result<Arc<Channel>, Error> {
        let first = usize::from(worker) * usize::from(self.plan.options.slots);
        let wanted = slot.checked_sub(first).and_then(|at| channels.get(at).cloned());
        for (at, channel) in (first..self.slots()).zip(channels) {
            self.put(at, channel);
        }
        wanted.ok_or_else(|| Error::protocol("a worker without the slot that was asked for"))
    }
}

/// Connects to a worker again. Tries once more if the worker closed the connection: it may have died meanwhile, and the
/// second attempt reaches its replacement.
async fn reconnect(lease: &mut Lease, worker: u16) -> Result<Vec<Arc<Channel>>, Error> {
    match lease.reconnect(worker).await {
        Err(Error::Refused(Rejection::Unavailable { .. })) if lease.end().is_none() => lease.reconnect(worker).await,
        done => done,
    }
}

/// End of the session, if the failure to reconnect implies that it has ended; the event that reports the end may arrive
/// later.
async fn end_by_refusal(error: &Error, lease: &Lease) -> Option<SessionEnd> {
    match error {
        Error::Refused(Rejection::LeaseEnded(_) | Rejection::UnknownLease) => {
            Some(lease.end().unwrap_or(SessionEnd::Lost))
        }
        // Either the whole agent is unavailable, or only this worker. In the second case the lease and its other
        // workers may live.
        Error::Refused(Rejection::Unavailable { .. }) => lease.end_within(NEWS_LIMIT).await,
        _ => None,
    }
}
