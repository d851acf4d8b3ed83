//! Cache of the channel that each thread used last. The thread finds it again without a lock or a reference count.
//!
//! The cached reference keeps the rings of at most one channel per thread alive, until the thread uses
//! another invoker or ends.

use crate::channel::Channel;
use hotlease_fabric::forks::ProcessMark;
use std::cell::Cell;
use std::sync::Arc;

/// A slot of an invoker and its channel.
pub(crate) struct CachedChannel {
    invoker: u64,
    made_by: ProcessMark,
    pub(crate) slot: usize,
    pub(crate) channel: Arc<Channel>,
}

thread_local! {
    static LAST: Cell<Option<CachedChannel>> = const { Cell::new(None) };
}

/// Takes the channel that this thread used last, if it is an open channel of this invoker (and of this slot, if a slot
/// is given). The caller gives it back with [`put_back`].
#[inline]
pub(crate) fn take(invoker: u64, slot: Option<usize>) -> Option<CachedChannel> {
    let last = LAST.try_with(Cell::take).ok().flatten()?;
    if last.made_by.is_foreign() {
        // The parent uses the channel's entries, and dropping it could end the parent's connection.
        std::mem::forget(last);
        return None;
    }
    if last.invoker != invoker {
        put_back(last);
        return None;
    }
    if last.channel.is_closed() {
        return None;
    }
    if slot.is_some_and(|slot| slot != last.slot) {
        put_back(last);
        return None;
    }
    Some(last)
}

/// Puts a taken channel back into the cache, or stores a channel for the first time.
#[inline]
pub(crate) fn put_back(last: CachedChannel) {
    // While a thread ends, its cache may be destroyed already; then the channel is just dropped.
    let _ = LAST.try_with(|place| place.set(Some(last)));
}

/// Remembers a channel.
pub(crate) fn remember(invoker: u64, slot: usize, channel: &Arc<Channel>) {
    put_back(CachedChannel {
        invoker,
        made_by: ProcessMark::here(),
        slot,
        channel: channel.clone(),
    });
}

/// The slot of this invoker that this thread used last.
pub(crate) fn slot(invoker: u64) -> Option<usize> {
    let last = LAST.try_with(Cell::take).ok().flatten()?;
    let slot = (last.invoker == invoker).then_some(last.slot);
    put_back(last);
    slot
}

/// Forgets this thread's channel if it belongs to this invoker.
pub(crate) fn forget(invoker: u64) {
    let last = LAST.try_with(Cell::take).ok().flatten();
    if let Some(last) = last.filter(|last| last.invoker != invoker) {
        put_back(last);
    }
}
