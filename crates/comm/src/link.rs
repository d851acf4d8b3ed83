//! How frames get to other members.
//!
//! A link moves frames and bodies and knows nothing of messages. It is polled under the engine's lock, by whichever thread waits; its
//! [`Sleeper`] is what that thread sleeps on without the lock.

pub(crate) mod cipher;
pub(crate) mod mesh;
pub(crate) mod ofi;
pub(crate) mod port;
pub(crate) mod shm;
pub(crate) mod store;
pub(crate) mod tcp;

use crate::memory::Piece;
use crate::protocol::Parting;
use crate::schedule::Rank;
use crate::slots::Key;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::Frame;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Head, Order};

/// What follows a frame.
pub(crate) enum Body<'a> {
    /// Nothing, or bytes that are the caller's again when the call returns.
    Now(&'a [u8]),
    /// Memory that stays until [`Link::sent`] names this number, or [`Link::cannot_send`] does.
    Later { piece: Piece, send: Key },
}

/// Of what only a link through a store does.
const NO_STORE: &str = "this link goes through no store";

/// Takes in what comes over a link.
pub(crate) trait Sink {
    /// A frame; where its body is to go, if anywhere. An error if it must not have been sent.
    fn frame(&mut self, from: Rank, frame: Frame) -> Result<Option<Piece>, Loss>;
    /// Whether a frame, of whose body not all is here, is to stay where it is until the next poll: somebody is about to say where the
    /// body goes.
    fn holds(&mut self, _from: Rank, _frame: &Frame) -> bool {
        false
    }
    /// The body of the last frame of this member has come.
    fn body(&mut self, from: Rank, bytes: u64);
    /// Both at once: `copy` gives the body to memory of its length, if it is called.
    fn whole(&mut self, from: Rank, frame: Frame, copy: &mut dyn FnMut(&mut [u8])) -> Result<(), Loss> {
        let into = self.frame(from, frame)?;
        // Memory that was taken back takes nothing.
        into.map(|into| into.write(copy));
        self.body(from, frame.body_bytes());
        Ok(())
    }
    /// An object that was asked for ([`Order::Get`]), with as much of its body as goes with its head.
    fn object(&mut self, _get: Key, _head: Head, _first: Vec<u8>) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// The rest of an object ([`Order::Rest`]) is where it was to go, unless that memory was taken back.
    fn rested(&mut self, _get: Key, _is_written: bool) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// A member has finished, having done so much.
    fn parted(&mut self, _from: Rank, _parting: Parting) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// A member has left a communicator, in which it has sent so many messages to this one and done so many collectives.
    fn quit(&mut self, _from: Rank, _context: u64, _sent: u64, _done: u32) {
        debug_assert!(false, "{NO_STORE}");
    }
}

/// See the module.
pub(crate) trait Link: Send {
    /// Sends a frame, or as much of it as goes now. Between two members frames keep their order.
    fn send(&mut self, to: Rank, frame: &Frame, body: Body<'_>);
    /// Takes in what has come and sends what can go; whether there was anything.
    fn poll(&mut self, sink: &mut dyn Sink) -> bool;
    /// The same, and looks also where it is looked seldom while somebody polls again and again.
    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        self.poll(sink)
    }
    /// A thread is about to sleep: what comes from now on wakes it, what has come before is to be polled once more.
    fn doze(&mut self) {}
    /// It sleeps no more.
    fn awake(&mut self) {}
    /// A body that is gone.
    fn sent(&mut self) -> Option<Key>;
    /// A body whose memory was taken back before it was gone: its member cannot be talked to any more.
    fn cannot_send(&mut self) -> Option<Key>;
    /// A member that cannot be reached any more.
    fn lost(&mut self) -> Option<(Rank, Loss)>;
    /// Closes the connection with a member.
    fn close(&mut self, rank: Rank);
    /// Whether something waits to be sent.
    fn is_sending(&self) -> bool;
    /// Whether anything has come of a member since this was asked last, and whether anything was sent to it.
    fn pulse(&mut self, rank: Rank) -> (bool, bool);
    /// Through a store: what is to be done there.
    fn store(&mut self, _order: Order) {
        debug_assert!(false, "{NO_STORE}");
    }
    /// All that was to be done for now has been said: begins what has only been noted.
    fn go(&mut self) {}
    /// Once: why nobody can be reached over this link any more.
    fn severed(&mut self) -> Option<Arc<str>> {
        None
    }
    /// Everything is over: gives back what is kept anywhere, until then.
    fn end(&mut self, _deadline: Instant) {}
    /// A member that cannot be talked to yet, though there is a connection with it.
    fn apart(&self) -> Option<Rank> {
        None
    }
    /// What to sleep on.
    fn sleeper(&self) -> Arc<dyn Sleeper>;
}

/// Sleeps until something happens on a link.
pub(crate) trait Sleeper: Send + Sync {
    /// Until something may have come, something may be sent again, [`wake`](Self::wake) is called, or so much time is over.
    fn sleep(&self, at_most: Option<Duration>);
    /// Ends a sleep, that of now or else the next.
    fn wake(&self);
}
