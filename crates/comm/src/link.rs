//! Links: how frames get to other members. The public items here are for crates that provide links ([`StoreOpener`]);
//! these items change with the protocol.
//!
//! A link moves frames and bodies; messages are the protocol's concern. The waiting thread polls the link under the
//! engine's lock, and sleeps on the link's [`Sleeper`] without the lock.

pub(crate) mod cipher;
pub(crate) mod mesh;
pub(crate) mod ofi;
pub(crate) mod port;
pub(crate) mod shm;
mod store;
pub(crate) mod strangers;
pub(crate) mod tcp;

pub use crate::arena::Key;
pub use crate::memory::Piece;
pub use store::{FinalCounts, ObjectHead, ObjectName, StoreJoin, StoreOpener, StoreOrder};

use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Body that follows a frame.
pub enum Body<'a> {
    /// Nothing, or bytes that the caller may reuse when the call returns.
    Borrowed(&'a [u8]),
    /// Memory that stays valid until [`Link::take_sent`] or [`Link::take_unsendable`] returns the number `send`.
    Lent {
        /// The memory.
        piece: Piece,
        /// Number of the send.
        send: Key,
    },
}

/// Message of the assertion in methods that only a link through a store implements.
const NO_STORE: &str = "this link goes through no store";

/// Copies a body to memory of its length; fails if the member that sent the body has taken it back.
pub type CopyBody<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), Loss>;

/// Receiver of the frames and objects that arrive over a link.
pub trait Sink {
    /// Takes a frame; returns the memory for its body, or `None` if there is no body or it is discarded. Fails if the
    /// member was not allowed to send this frame.
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss>;
    /// Returns whether the link holds a frame back until the next poll, because a thread is about to provide memory for
    /// its body. Called for frames whose body has not arrived completely.
    fn hold(&mut self, _from: Rank, _frame: &MemberFrame) -> bool {
        false
    }
    /// Notes that the body of this member's last frame has arrived.
    fn body(&mut self, from: Rank, bytes: u64);
    /// Takes a frame with its body. `copy` copies the body to memory of its length, if the sink calls it. Fails if the
    /// member was not allowed to send this frame, or if `copy` fails; the member is lost then.
    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: CopyBody<'_>) -> Result<(), Loss> {
        let into = self.frame(from, frame)?;
        // No effect if the memory was taken back.
        into.and_then(|into| into.write(copy)).transpose()?;
        self.body(from, frame.body_bytes());
        Ok(())
    }
    /// Whether the polling thread has received what it waits for. If so, the link leaves later frames for the next
    /// poll.
    fn is_satisfied(&self) -> bool {
        false
    }
    /// Takes an object that was asked for ([`StoreOrder::Get`]), with the part of its body that is stored with its
    /// head.
    fn object(&mut self, _get: Key, _head: ObjectHead, _first: Vec<u8>) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that the rest of an object ([`StoreOrder::Rest`]) was read. `is_written` is `false` if the rest was not
    /// written to its memory, because the memory was taken back.
    fn rest_read(&mut self, _get: Key, _is_written: bool) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that a member has finished, with its final counts.
    fn member_finished(&mut self, _from: Rank, _parting: FinalCounts) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that a member has left a communicator, with the number of messages that it has sent there to this member,
    /// and the number of collectives that it has done there.
    fn member_left(&mut self, _from: Rank, _context: u64, _sent: u64, _done: u32) {
        debug_assert!(false, "{NO_STORE}");
    }
}

/// Connections of a member with all others, over one means of transport.
pub trait Link: Send {
    /// Sends a frame, or as much of it as can be sent now. Frames between two members keep their order.
    fn send(&mut self, to: Rank, frame: &MemberFrame, body: Body<'_>);
    /// Handles what has arrived, and sends what can be sent. Returns whether anything was handled or sent.
    fn poll(&mut self, sink: &mut dyn Sink) -> bool;
    /// Polls also the sources that [`poll`](Self::poll) checks only now and then.
    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        self.poll(sink)
    }
    /// Prepares for the sleep of a thread: from now on, arrivals wake it. The caller must poll once more for what has
    /// arrived before.
    fn prepare_sleep(&mut self) {}
    /// Ends the state that [`prepare_sleep`](Self::prepare_sleep) began.
    fn end_sleep(&mut self) {}
    /// Takes the number of a body that was sent completely.
    fn take_sent(&mut self) -> Option<Key>;
    /// Takes the number of a body whose memory was taken back before it was sent; nothing more can be sent to its
    /// receiver.
    fn take_unsendable(&mut self) -> Option<Key>;
    /// Takes a member that cannot be reached any more, with the reason.
    fn take_lost(&mut self) -> Option<(Rank, Loss)>;
    /// Closes the connection with a member.
    fn close(&mut self, rank: Rank);
    /// Whether anything waits to be sent.
    fn is_sending(&self) -> bool;
    /// Returns whether anything has arrived from a member, and whether anything was sent to this member, since the last
    /// call.
    fn take_activity(&mut self, rank: Rank) -> (bool, bool);
    /// Passes an order to a link through a store.
    fn store(&mut self, _order: StoreOrder) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Begins the requests that earlier calls have only noted; called after the last of several orders.
    fn begin_requests(&mut self) {}
    /// Returns, once, the reason why no member can be reached over this link any more.
    fn take_severance(&mut self) -> Option<Arc<str>> {
        None
    }
    /// Ends the link: removes what it has stored outside this process. Stops at the deadline.
    fn end(&mut self, _deadline: Instant) {}
    /// Returns a member that is connected, but with which messages cannot be exchanged yet.
    fn unopened_member(&self) -> Option<Rank> {
        None
    }
    /// Sleeper for a thread that waits for this link.
    fn sleeper(&self) -> Arc<dyn Sleeper>;
}

/// Sleeps until something happens on a link.
pub trait Sleeper: Send + Sync {
    /// Sleeps until something may have arrived, something may be sent again, [`wake`](Self::wake) is called, or the
    /// time `at_most` has passed.
    fn sleep(&self, at_most: Option<Duration>);
    /// Ends the current sleep, or else the next one.
    fn wake(&self);
}
