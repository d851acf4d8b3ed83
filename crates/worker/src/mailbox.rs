//! How the main thread hands things to a slot: a queue behind a lock, and a flag that the slot reads for
//! one load per turn, so that the lock is never touched on the hot path.

use crate::context::Context;
use crate::invoke::{Region, Regions, SlotChannel};
use crate::library::FunctionTable;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::Port;
use hotlease_wire::comm::seat::Seat;
use hotlease_wire::ids::RegionId;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which client of the worker; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Says whether an invocation may follow.
pub type Job = Box<dyn FnOnce(&mut Context) -> bool + Send>;

/// What a slot is told.
pub enum Letter {
    /// Serve this channel, whose spans may name these regions.
    Channel(ConnectionId, Box<SlotChannel>, Regions),
    /// The client is gone: drop its channels and memory.
    Closed(ConnectionId),
    /// Spans of this connection may name this region.
    Region(ConnectionId, RegionId, Region),
    /// No longer.
    Forget(ConnectionId, RegionId),
    /// The functions there are, now.
    Functions(Arc<FunctionTable>),
    /// Functions run in this gang.
    Seat(Box<Seat>),
    /// Drive this port: it is the slot's alone.
    Port(Arc<Port>),
    /// Do this between two invocations, in what they are given; it says whether any may follow.
    Job(Job),
    /// End the process with this status.
    Leave(i32),
}

impl Letter {
    /// Whether this letter makes an earlier, unread one pointless. Changes one that it makes so in part.
    fn takes_back(&self, earlier: &mut Letter) -> bool {
        match (self, earlier) {
            (
                Self::Closed(closed),
                Self::Channel(of, ..) | Self::Region(of, ..) | Self::Forget(of, _) | Self::Closed(of),
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

/// One slot's.
pub struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    has_mail: AtomicBool,
    /// Rung by clients and by the main thread.
    pub doorbell: Doorbell,
    /// Readable when there is mail, for a slot that sleeps on the descriptors of a fabric.
    pub wake: EventFd,
}

impl Mailbox {
    /// Empty.
    pub fn new() -> Result<Self, String> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Self {
            letters: Mutex::default(),
            has_mail: AtomicBool::new(false),
            doorbell: Doorbell::create().map_err(|error| error.to_string())?,
            wake: wake.map_err(|error| format!("eventfd: {error}"))?,
        })
    }

    /// Main thread: delivers and wakes the slot. What a letter takes back is taken out of the queue too, so
    /// that a slot that is busy for long does not keep the memory of clients that come and go meanwhile.
    pub fn put(&self, letter: Letter) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.retain_mut(|queued| !letter.takes_back(queued));
        letters.push(letter);
        drop(letters);
        // Pairs with the acquire in `has_mail`: who sees the flag finds the letter.
        self.has_mail.store(true, Ordering::Release);
        self.doorbell.ring_always();
        // Fails only if the counter is full, and then it is readable.
        let _ = self.wake.write(1);
    }

    /// Slot: whether there is something.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.has_mail.load(Ordering::Acquire)
    }

    /// Slot: takes everything.
    pub fn take(&self) -> Vec<Letter> {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that a letter put after this sets the flag again.
        self.has_mail.store(false, Ordering::Relaxed);
        std::mem::take(&mut letters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::memory::Memory;

    /// A slot may be busy for hours while clients register and forget.
    #[test]
    fn memory_of_unread_letters_is_given_back_with_its_region() {
        let mailbox = Mailbox::new().unwrap();
        let (client, region) = (ConnectionId(1), RegionId(7));
        for _ in 0..1000 {
            let memory = Arc::new(Memory::create("test", 4096).unwrap());
            let kept = Arc::downgrade(&memory);
            mailbox.put(Letter::Region(client, region, Region::Shared(memory)));
            mailbox.put(Letter::Forget(client, region));
            assert!(
                kept.upgrade().is_none(),
                "an unread letter keeps forgotten memory"
            );
        }
        mailbox.put(Letter::Region(
            ConnectionId(2),
            region,
            Region::Shared(Arc::new(Memory::create("test", 1).unwrap())),
        ));
        mailbox.put(Letter::Closed(client));
        let letters = mailbox.take();
        assert!(matches!(
            letters[..],
            [
                Letter::Region(ConnectionId(2), ..),
                Letter::Closed(ConnectionId(1))
            ]
        ));
    }
}
