//! How frames get to other members.
//!
//! A link moves frames and bodies and knows nothing of messages. It is polled under the engine's lock, by whichever thread waits; its
//! [`Sleeper`] is what that thread sleeps on without the lock.

pub(crate) mod cipher;
pub(crate) mod mesh;
pub(crate) mod port;
pub(crate) mod shm;
pub(crate) mod tcp;

use crate::memory::Piece;
use crate::schedule::Rank;
use crate::slots::Key;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::Frame;
use std::sync::Arc;
use std::time::Duration;

/// What follows a frame.
pub(crate) enum Body<'a> {
    /// Nothing, or bytes that are the caller's again when the call returns.
    Now(&'a [u8]),
    /// Memory that stays until [`Link::sent`] names this number, or [`Link::cannot_send`] does.
    Later { piece: Piece, send: Key },
}

/// Takes in what comes over a link.
pub(crate) trait Sink {
    /// A frame; where its body is to go, if anywhere. An error if it must not have been sent.
    fn frame(&mut self, from: Rank, frame: Frame) -> Result<Option<Piece>, Loss>;
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
