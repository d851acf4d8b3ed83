//! Links: how frames get to other members. The names here are for crates that provide links ([`StoreOpener`]); they
//! change with the protocol.
//!
//! A link moves frames and bodies and knows nothing of messages. The waiting thread polls it under the engine's lock;
//! without the lock it sleeps on the link's [`Sleeper`].

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
    /// Memory that stays until [`Link::take_sent`] or [`Link::take_unsendable`] returns this number.
    Lent {
        /// The memory.
        piece: Piece,
        /// Number of the send.
        send: Key,
    },
}

/// Message of the assertion in methods that only a link through a store implements.
const NO_STORE: &str = "this link goes through no store";

/// Receiver of the frames and objects that arrive over a link.
pub trait Sink {
    /// Takes a frame; returns where its body goes, if anywhere. Fails if the member must not have sent this frame.
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss>;
    /// Decides whether the link holds a frame back until the next poll, because a thread is about to say where its body
    /// goes. Called for frames whose body has not come completely.
    fn hold(&mut self, _from: Rank, _frame: &MemberFrame) -> bool {
        false
    }
    /// Notes that the body of this member's last frame has come.
    fn body(&mut self, from: Rank, bytes: u64);
    /// Takes a frame with its body. `copy` copies the body to memory of its length, if the sink calls it.
    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: &mut dyn FnMut(&mut [u8])) -> Result<(), Loss> {
        let into = self.frame(from, frame)?;
        // No effect if the memory was taken back.
        into.map(|into| into.write(copy));
        self.body(from, frame.body_bytes());
        Ok(())
    }
    /// Whether the thread that polls has what it waits for: then the link leaves what follows for the next poll.
    fn is_satisfied(&self) -> bool {
        false
    }
    /// Takes an object that was asked for ([`StoreOrder::Get`]), with the part of its body that travels with its head.
    fn object(&mut self, _get: Key, _head: ObjectHead, _first: Vec<u8>) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that the rest of an object ([`StoreOrder::Rest`]) was read; it was not written if its memory was taken back.
    fn rest_read(&mut self, _get: Key, _is_written: bool) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that a member has finished, and what it had done until then.
    fn member_finished(&mut self, _from: Rank, _parting: FinalCounts) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Notes that a member has left a communicator, how many messages it has sent there to this one, and how many
    /// collectives it has done there.
    fn member_left(&mut self, _from: Rank, _context: u64, _sent: u64, _done: u32) {
        debug_assert!(false, "{NO_STORE}");
    }
}

/// Connections of a member with all others, over one means of transport.
pub trait Link: Send {
    /// Sends a frame, or as much of it as can be sent now. Frames between two members keep their order.
    fn send(&mut self, to: Rank, frame: &MemberFrame, body: Body<'_>);
    /// Takes in what has come and sends what can be sent. Returns whether there was anything.
    fn poll(&mut self, sink: &mut dyn Sink) -> bool;
    /// Polls also the sources that [`poll`](Self::poll) checks only now and then.
    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        self.poll(sink)
    }
    /// Prepares for the sleep of a thread: what comes from now on wakes it. What came before must be polled once more.
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
    /// Whether anything has come from a member, and whether anything was sent to it, since the last call.
    fn take_activity(&mut self, rank: Rank) -> (bool, bool);
    /// Gives an order to a link through a store.
    fn store(&mut self, _order: StoreOrder) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// Begins what earlier calls have only noted; called when all orders for now are given.
    fn begin_requests(&mut self) {}
    /// Returns once why no member can be reached over this link any more.
    fn take_severance(&mut self) -> Option<Arc<str>> {
        None
    }
    /// Ends the link: removes what it keeps anywhere, until the deadline.
    fn end(&mut self, _deadline: Instant) {}
    /// A member that is connected but cannot be sent messages yet.
    fn unopened_member(&self) -> Option<Rank> {
        None
    }
    /// Sleeper for a thread that waits for this link.
    fn sleeper(&self) -> Arc<dyn Sleeper>;
}

/// Sleeps until something happens on a link.
pub trait Sleeper: Send + Sync {
    /// Sleeps until something may have come, something may be sent again, [`wake`](Self::wake) is called, or this much
    /// time has passed.
    fn sleep(&self, at_most: Option<Duration>);
    /// Ends the current sleep, or else the next one.
    fn wake(&self);
}
