//! Outbox of a session: messages that its client has not read yet.
//!
//! Sending never waits: a message is sent at once if the socket accepts it. Otherwise it is put into a short queue,
//! which the session's task empties. A client that does not read until the queue is full loses its session; no other
//! client is affected.

use crate::socket::AsyncSocket;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_wire::session::SessionReply;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Largest number of messages that wait for a client to read.
const WAITING_MAX: usize = 32;
/// Time for which an ending session waits until the socket has taken the last messages. The client may never read them.
const LINGER: Duration = Duration::from_secs(2);

/// Shortest time between two hints, which are messages that may be lost.
const HINT_EVERY: Duration = Duration::from_millis(100);

type Message = (SessionReply, Vec<ForeignDescriptor>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Message>,
    /// Whether the last message is in the queue or has been sent.
    closing: bool,
    /// Whether sending has failed, so that no message can be sent any more.
    broken: bool,
    /// Time of the last hint.
    hinted: Option<Instant>,
}

/// The sending end of a session.
pub(crate) struct Outbox {
    socket: Arc<AsyncSocket>,
    queue: Mutex<Queue>,
    changed: Notify,
}

impl Outbox {
    pub fn new(socket: Arc<AsyncSocket>) -> Self {
        Self {
            socket,
            queue: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message with descriptors, or queues it.
    pub fn tell(&self, reply: SessionReply, fds: Vec<ForeignDescriptor>) {
        self.put(reply, fds, false);
    }

    /// Sends a hint, which is a message that may be lost. It is dropped while other messages wait for the client to
    /// read, and for [`HINT_EVERY`] after the last hint.
    pub fn hint(&self, reply: SessionReply) {
        self.hint_at(Instant::now(), reply);
    }

    fn hint_at(&self, now: Instant, reply: SessionReply) {
        let mut queue = self.queue();
        let is_due = queue.hinted.is_none_or(|last| now >= last + HINT_EVERY);
        if is_due && !queue.closing && !queue.broken && queue.waiting.is_empty() {
            queue.hinted = Some(now);
            // Fails if the socket is full because the client does not read, or if the client is gone. The hint is then
            // lost, but the next hint is still sent no earlier than after `HINT_EVERY`.
            let _ = self.send(&(reply, Vec::new()));
        }
    }

    /// Sends the last message; the session ends when it is sent.
    pub fn close(&self, reply: SessionReply) {
        self.put(reply, Vec::new(), true);
    }

    fn put(&self, reply: SessionReply, fds: Vec<ForeignDescriptor>, last: bool) {
        let mut queue = self.queue();
        if queue.closing || queue.broken {
            return;
        }
        queue.closing = last;
        let message = (reply, fds);
        if queue.waiting.is_empty() {
            match self.send(&message) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => queue.waiting.push_back(message),
                Err(_) => queue.broken = true,
            }
        } else if queue.waiting.len() < WAITING_MAX {
            queue.waiting.push_back(message);
        } else {
            queue.broken = true;
        }
        if queue.closing || queue.broken || !queue.waiting.is_empty() {
            self.changed.notify_one();
        }
    }

    fn send(&self, (reply, fds): &Message) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.socket.send(reply, &fds)
    }

    /// Sends queued messages until the session ends: the message of [`close`](Self::close) is sent or cannot be sent
    /// within [`LINGER`], or sending fails, or the queue is full because the client does not read. If the future is
    /// dropped before that, no message is lost.
    pub async fn run(&self) {
        loop {
            let closing = {
                let queue = self.queue();
                if queue.broken || (queue.closing && queue.waiting.is_empty()) {
                    return;
                }
                queue.closing
            };
            if closing {
                // The session ends in both cases.
                let _ = timeout(LINGER, self.flush()).await;
                return;
            }
            tokio::select! {
                () = self.flush(), if !self.queue().waiting.is_empty() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    async fn flush(&self) {
        let flushed = self.socket.when_writable(|| {
            let mut queue = self.queue();
            while let Some(message) = queue.waiting.front() {
                self.send(message)?;
                queue.waiting.pop_front();
            }
            Ok(())
        });
        if flushed.await.is_err() {
            self.queue().broken = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::socket::Socket;
    use hotlease_wire::session::UsageTotals;
    use hotlease_wire::{EndReason, Rejection};

    fn pair() -> (Outbox, Socket) {
        let (ours, theirs) = Socket::pair().expect("a pair");
        let socket = AsyncSocket::new(ours).expect("registered");
        (Outbox::new(Arc::new(socket)), theirs)
    }

    fn long() -> SessionReply {
        SessionReply::Refused(Rejection::BadRequest {
            what: "x".repeat(30_000),
        })
    }

    fn ended() -> SessionReply {
        SessionReply::LeaseEnded {
            reason: EndReason::Released,
            usage: UsageTotals::default(),
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_late_gets_everything_in_order() {
        let (outbox, client) = pair();
        for _ in 0..20 {
            outbox.tell(long(), Vec::new());
        }
        outbox.close(ended());
        assert!(
            !outbox.queue().waiting.is_empty(),
            "the socket's buffer took it all: nothing is tested"
        );
        let reader = std::thread::spawn(move || {
            let mut replies = Vec::new();
            while let Some((reply, _)) = client.receive::<SessionReply>().expect("readable") {
                replies.push(reply);
            }
            replies
        });
        outbox.run().await;
        drop(outbox);
        let replies = reader.join().expect("read");
        assert_eq!(replies.len(), 21);
        assert!(replies[..20].iter().all(|reply| *reply == long()));
        assert_eq!(replies[20], ended());
    }

    #[tokio::test]
    async fn a_client_that_never_reads_loses_its_session_and_memory_stays_bounded() {
        let (outbox, _client) = pair();
        for _ in 0..1000 {
            outbox.tell(long(), Vec::new());
        }
        assert!(outbox.queue().waiting.len() <= WAITING_MAX);
        timeout(5 * LINGER, outbox.run())
            .await
            .expect("the session is over at once");
    }

    #[tokio::test]
    async fn hints_are_rare_however_often_there_is_a_cause() {
        let (outbox, client) = pair();
        let start = Instant::now();
        for now in [
            start,
            start,
            start + HINT_EVERY / 2,
            start + HINT_EVERY,
            start + HINT_EVERY,
        ] {
            outbox.hint_at(now, SessionReply::RoomWanted);
        }
        outbox.close(ended());
        let mut replies = Vec::new();
        while replies.last() != Some(&ended()) {
            let (reply, _) = client.receive().expect("readable").expect("not over");
            replies.push(reply);
        }
        assert_eq!(replies, [SessionReply::RoomWanted, SessionReply::RoomWanted, ended()]);
    }

    #[tokio::test]
    async fn last_words_that_the_client_does_not_read_are_dropped() {
        let (outbox, _client) = pair();
        while outbox.queue().waiting.is_empty() {
            outbox.tell(long(), Vec::new());
        }
        outbox.close(ended());
        timeout(LINGER * 2, outbox.run()).await.expect("given up on");
    }
}
