//! Requests and answers, in turn, over a socket that keeps message boundaries.

use crate::Error;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_wire::Rejection;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// An answer and the descriptors that arrived with it.
pub(crate) type AnswerMessage<R> = (R, Vec<ForeignDescriptor>);

/// One end of a socket on which every request gets one answer, in order; events may arrive between answers.
///
/// One task reads ([`RequestSocket::next`]) and passes each answer to its requester ([`RequestSocket::answer`]); any
/// number of tasks ask. Used on the control thread only.
pub(crate) struct RequestSocket<R> {
    socket: AsyncFd<Socket>,
    /// Held while a request is sent, so that requests leave in the order in which answers are awaited.
    sending: tokio::sync::Mutex<()>,
    asking: Mutex<PendingRequests<R>>,
}

struct PendingRequests<R> {
    waiting: VecDeque<oneshot::Sender<AnswerMessage<R>>>,
    closed: bool,
}

impl<R: DeserializeOwned> RequestSocket<R> {
    /// Wraps a socket; must be called on the control thread.
    pub(crate) fn new(socket: Socket) -> Result<Self, Error> {
        let what = "watch a socket";
        // Closed aside, because the worker is not trusted: it may run the code of another tenant, which has lent its
        // slots.
        let socket = socket.closed_aside();
        socket.set_nonblocking(true).map_err(Error::local(what))?;
        // `register` is unsafe because a type could change its descriptor under the runtime. A Socket owns
        // one descriptor for life, and this crate has no unsafe code.
        #[allow(deprecated)]
        let socket = AsyncFd::new(socket).map_err(Error::local(what))?;
        Ok(Self {
            socket,
            sending: tokio::sync::Mutex::new(()),
            asking: Mutex::new(PendingRequests {
                waiting: VecDeque::new(),
                closed: false,
            }),
        })
    }

    fn asking(&self) -> MutexGuard<'_, PendingRequests<R>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer. `peer` names the peer in errors.
    pub(crate) async fn ask<Q: Serialize>(
        &self,
        request: &Q,
        fds: &[BorrowedFd<'_>],
        peer: &str,
        limit: Duration,
    ) -> Result<AnswerMessage<R>, Error> {
        let gone = || {
            Error::Refused(Rejection::Unavailable {
                what: format!("{peer} closed the connection"),
            })
        };
        let mut unsent = false;
        let answer = async {
            let receiver = {
                let _turn = self.sending.lock().await;
                let (sender, receiver) = oneshot::channel();
                {
                    let mut asking = self.asking();
                    if asking.closed {
                        return Err(gone());
                    }
                    asking.waiting.push_back(sender);
                }
                unsent = true;
                let sent = self
                    .socket
                    .async_io(Interest::WRITABLE, |socket| socket.send(request, fds))
                    .await;
                if sent.is_err() {
                    // Nothing was sent, so no answer will arrive: the entry in the queue is removed.
                    self.asking().waiting.pop_back();
                    return Err(gone());
                }
                unsent = false;
                receiver
            };
            receiver.await.map_err(|_| gone())
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(result) => result,
            Err(_) => {
                if unsent {
                    // The peer has not even read for all this time, and the entry in the queue stands for a request
                    // that was never sent: no answer could be matched any more.
                    self.close();
                }
                Err(Error::no_answer(peer, limit))
            }
        }
    }

    /// The next message; `None` when the peer has closed or sent an invalid message.
    pub(crate) async fn next(&self) -> Option<AnswerMessage<R>> {
        let received = self
            .socket
            .async_io(Interest::READABLE, |socket| match socket.receive_foreign::<R>() {
                Err(SocketError::Io(error)) => Err(error),
                Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                Ok(message) => Ok(message),
            })
            .await;
        match received {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%error, "closing a control connection");
                None
            }
        }
    }

    /// Passes an answer to the request that has waited longest; an answer without a request is dropped.
    pub(crate) fn answer(&self, reply: R, fds: Vec<ForeignDescriptor>) {
        let waiting = self.asking().waiting.pop_front();
        if let Some(waiting) = waiting {
            // A requester that has given up leaves its entry in the queue, so that the order is kept.
            let _ = waiting.send((reply, fds));
        }
    }

    /// Fails all requests that wait, and all later requests.
    pub(crate) fn close(&self) {
        let mut asking = self.asking();
        asking.closed = true;
        asking.waiting.clear();
    }
}
