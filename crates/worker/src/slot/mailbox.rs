//! Messages from the main thread to a slot: a queue behind a lock, and a flag that costs the slot one load per turn, so
//! that the hot path never touches the lock.

use crate::function::arguments::{ClientRegion, Regions, SlotChannel};
use crate::function::context::Context;
use crate::function::library::FunctionTable;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::Port;
use hotlease_wire::comm::seat::Seat;
use hotlease_wire::ids::RegionId;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of a client's connection to the worker; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Work for a slot; returns whether invocations may follow.
pub type SlotJob = Box<dyn FnOnce(&mut Context) -> bool + Send>;

/// A message to a slot.
pub enum SlotMessage {
    /// Serve this channel, whose spans may name these regions.
    Channel(ConnectionId, Box<SlotChannel>, Regions),
    /// The client is gone: drop its channels and memory.
    Disconnected(ConnectionId),
    /// Spans of this connection may name this region.
    Region(ConnectionId, RegionId, ClientRegion),
    /// Spans of this connection must not name this region any more.
    Forget(ConnectionId, RegionId),
    /// The functions of the worker, from now on.
    Functions(Arc<FunctionTable>),
    /// The seat in a gang that functions get.
    Seat(Box<Seat>),
    /// Drive this port, which belongs to the slot alone.
    Port(Arc<Port>),
    /// Do this between two invocations, with the context that functions get.
    Job(SlotJob),
    /// End the process with this status.
    Leave(i32),
}

impl SlotMessage {
    /// Returns whether this message cancels the whole earlier, unread message. If the message cancels a part of the
    /// earlier one, removes this part from it and returns `false`.
    fn cancels(&self, earlier: &mut SlotMessage) -> bool {
        match (self, earlier) {
            (
                Self::Disconnected(closed),
                Self::Channel(of, ..) | Self::Region(of, ..) | Self::Forget(of, _) | Self::Disconnected(of),
            ) => closed == of,
            (Self::Forget(from, forgotten), Self::Region(of, region, _) | Self::Forget(of, region)) => {
                (from, forgotten) == (of, region)
            }
            (Self::Forget(from, forgotten), Self::Channel(of, _, regions)) if from == of => {
                regions.remove(forgotten);
                false
            }
            (Self::Functions(_), Self::Functions(_)) | (Self::Seat(_), Self::Seat(_)) => true,
            _ => false,
        }
    }
}

/// Mailbox of one slot.
pub struct Mailbox {
    messages: Mutex<Vec<SlotMessage>>,
    has_mail: AtomicBool,
    /// Rung by clients and by the main thread.
    pub doorbell: Doorbell,
    /// Readable when there is mail, for a slot that sleeps on the descriptors of a fabric.
    pub wake: EventFd,
}

impl Mailbox {
    /// Makes an empty mailbox.
    pub fn new() -> Result<Self, String> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Self {
            messages: Mutex::default(),
            has_mail: AtomicBool::new(false),
            doorbell: Doorbell::create().map_err(|error| error.to_string())?,
            wake: wake.map_err(|error| format!("eventfd: {error}"))?,
        })
    }

    /// Main thread: delivers a message and wakes the slot. Removes the queued messages that it cancels: a slot that is
    /// busy for long must not retain the memory of clients that have left.
    pub fn put(&self, message: SlotMessage) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.retain_mut(|queued| !message.cancels(queued));
        messages.push(message);
        drop(messages);
        // Pairs with the acquire in `has_mail`: a slot that sees the flag finds the message.
        self.has_mail.store(true, Ordering::Release);
        self.doorbell.ring_always();
        // Fails only if the counter is full, and then the eventfd is readable.
        let _ = self.wake.write(1);
    }

    /// Slot: whether there is mail.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Slot: takes all messages.
    pub fn take(&self) -> Vec<SlotMessage> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // Cleared under the lock, so that a message put after this sets the flag again.
        self.has_mail.store(false, Ordering::Relaxed);
        std::mem::take(&mut messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::memory::Memory;

    /// A slot may be busy for hours while clients register and forget.
    #[test]
    fn memory_of_unread_messages_is_given_back_with_its_region() {
        let mailbox = Mailbox::new().unwrap();
        let (client, region) = (ConnectionId(1), RegionId(7));
        for _ in 0..1000 {
            let memory = Arc::new(Memory::create("test", 4096).unwrap());
            let kept = Arc::downgrade(&memory);
            mailbox.put(SlotMessage::Region(client, region, ClientRegion::Shared(memory)));
            mailbox.put(SlotMessage::Forget(client, region));
            assert!(kept.upgrade().is_none(), "an unread message keeps forgotten memory");
        }
        mailbox.put(SlotMessage::Region(
            ConnectionId(2),
            region,
            ClientRegion::Shared(Arc::new(Memory::create("test", 1).unwrap())),
        ));
        mailbox.put(SlotMessage::Disconnected(client));
        let messages = mailbox.take();
        assert!(matches!(
            messages[..],
            [
                SlotMessage::Region(ConnectionId(2), ..),
                SlotMessage::Disconnected(ConnectionId(1))
            ]
        ));
    }
}
