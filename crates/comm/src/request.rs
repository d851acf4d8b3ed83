//! Requests: operations that continue while the program does something else.

use crate::arena::Key;
use crate::communicator::group::MemberGroup;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::TransferMemory;
use crate::protocol::{MessageStatus, Protocol};
use hotlease_collectives::Element;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time that [`wait_any`] waits for one of several engines before it asks the next engine.
const TURN: Duration = Duration::from_millis(1);

/// Operation that has begun: a send, a receive into lent memory, or a collective.
///
/// The operation makes progress in the calls of any thread, and also a few times a second without calls. If the request
/// is dropped before its end, a receive for which no message has arrived is cancelled; any other operation continues.
#[must_use = "an operation may not have ended; wait for it"]
pub struct Request {
    group: Arc<MemberGroup>,
    /// `None` once the result was taken.
    key: Option<Key>,
    is_send: bool,
}

impl Request {
    pub(crate) fn new(group: &Arc<MemberGroup>, key: Key, is_send: bool) -> Self {
        Self {
            group: Arc::clone(group),
            key: Some(key),
            is_send,
        }
    }

    /// Waits for the end of the operation.
    ///
    /// # Errors
    /// Errors of the operation.
    pub fn wait(mut self) -> Result<MessageStatus, Error> {
        match self.key.take() {
            Some(key) => self.inner(self.group.engine.wait(key, self.is_send)),
            None => Err(Error::Finished),
        }
    }

    /// Translates ranks of a result into ranks of the communicator.
    fn inner(&self, result: Result<MessageStatus, Error>) -> Result<MessageStatus, Error> {
        match result {
            Ok(status) => Ok(self.group.status(status)),
            Err(error) => Err(self.group.error(error)),
        }
    }

    /// Returns the result if the operation has ended, otherwise `None`: then call this again. Makes progress.
    pub fn test(&mut self) -> Option<Result<MessageStatus, Error>> {
        let result = self.group.engine.test(self.key?)?;
        self.key = None;
        Some(self.inner(result))
    }

    /// Waits for the end of the operation, at most for `at_most`. Returns `None` if it has not ended: then call this
    /// again.
    pub fn wait_for(&mut self, at_most: Duration) -> Option<Result<MessageStatus, Error>> {
        let engine = &self.group.engine;
        let result = engine.wait_until(self.key?, self.is_send, Instant::now() + at_most)?;
        self.key = None;
        Some(self.inner(result))
    }

    /// Handle for [`wait_any`].
    pub fn watch(&self) -> Watch {
        Watch {
            group: Arc::clone(&self.group),
            key: self.key,
            is_send: self.is_send,
        }
    }

    /// Cancels the operation if that is possible: a receive for which no message has arrived, or a send that has not
    /// begun. Returns whether it was cancelled; [`wait`](Self::wait) then returns [`Error::Cancelled`].
    pub fn cancel(&mut self) -> bool {
        self.key
            .is_some_and(|key| self.group.engine.change(|protocol| protocol.cancel(key)))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.group.engine.change(|protocol| protocol.forget(key));
        }
    }
}

/// Waits for all of these requests; returns the first error, after all have ended.
///
/// # Errors
/// Errors of the operations.
pub fn wait_all(requests: impl IntoIterator<Item = Request>) -> Result<Vec<MessageStatus>, Error> {
    let results: Vec<_> = requests.into_iter().map(Request::wait).collect();
    results.into_iter().collect()
}

/// Operation to wait for in [`wait_any`]. A watch has no effect on the operation, which is forgotten when its request
/// is dropped. Any thread may use a watch.
#[derive(Clone)]
pub struct Watch {
    group: Arc<MemberGroup>,
    key: Option<Key>,
    is_send: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.key)
    }
}

impl Watch {
    fn has_ended(&self, protocol: &Protocol) -> bool {
        self.key.is_none_or(|key| protocol.has_ended(key))
    }
}

/// Waits until at least one of these operations has ended, at most for `at_most`. Returns the index of the first ended
/// operation; its request then returns the result at once. Returns `None` if no operation has ended, or if `watches` is
/// empty. An operation whose result was taken counts as ended.
///
/// Operations of communicators that were joined separately are asked in turn, a millisecond each.
///
/// ```no_run
/// # fn example(all: &hotlease_comm::Communicator) -> Result<(), hotlease_comm::Error> {
/// use hotlease_comm::{Pattern, wait_any};
/// use std::time::Duration;
/// let mut receives = vec![all.irecv(64, Pattern::of(1, 0))?, all.irecv(64, Pattern::of(2, 0))?];
/// while !receives.is_empty() {
///     let watches: Vec<_> = receives.iter().map(|receive| receive.watch()).collect();
///     if let Some(first) = wait_any(&watches, Duration::from_secs(1)) {
///         println!("{:?}", receives.remove(first).wait()?);
///     }
/// }
/// # Ok(()) }
/// ```
pub fn wait_any(watches: &[Watch], at_most: Duration) -> Option<usize> {
    let engine = &watches.first()?.group.engine;
    let deadline = Instant::now() + at_most;
    let is_one = |watch: &&Watch| Arc::ptr_eq(&watch.group.engine, engine);
    if watches.iter().all(|watch| is_one(&watch)) {
        return ended_by(watches.iter().enumerate(), engine, deadline);
    }
    let mut engines: Vec<&Arc<Engine>> = Vec::new();
    for watch in watches {
        if !engines.iter().any(|engine| Arc::ptr_eq(engine, &watch.group.engine)) {
            engines.push(&watch.group.engine);
        }
    }
    loop {
        let now = Instant::now();
        for engine in &engines {
            let turn = deadline.min(Instant::now() + TURN);
            let of_it = |(_, watch): &(usize, &Watch)| Arc::ptr_eq(&watch.group.engine, engine);
            if let Some(first) = ended_by(watches.iter().enumerate().filter(of_it), engine, turn) {
                return Some(first);
            }
        }
        if now >= deadline {
            return None;
        }
    }
}

/// First operation of one engine that has ended.
fn ended_by<'a>(
    watches: impl Iterator<Item = (usize, &'a Watch)> + Clone,
    engine: &Engine,
    deadline: Instant,
) -> Option<usize> {
    let is_send = watches.clone().any(|(_, watch)| watch.is_send);
    engine.drive_until(is_send, Some(deadline), |state| {
        let mut all = watches.clone();
        all.find(|(_, watch)| watch.has_ended(&state.protocol))
            .map(|(index, _)| index)
    })
}

/// Receive into memory of its own.
#[must_use = "a message may not have come; wait for it"]
pub struct ReceiveRequest {
    request: Request,
    memory: TransferMemory,
}

/// Message that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Rank of the sender, tag and length.
    pub status: MessageStatus,
    /// Exactly the bytes of the message.
    pub bytes: Vec<u8>,
}

impl ReceiveRequest {
    pub(crate) fn new(request: Request, memory: TransferMemory) -> Self {
        Self { request, memory }
    }

    /// Waits for the message.
    ///
    /// # Errors
    /// Errors of the operation.
    pub fn wait(self) -> Result<ReceivedMessage, Error> {
        let status = self.request.wait()?;
        Ok(received(status, self.memory))
    }

    /// Returns the message if it has arrived, otherwise `None`: then call this again. Makes progress.
    pub fn test(&mut self) -> Option<Result<ReceivedMessage, Error>> {
        self.wait_for(Duration::ZERO)
    }

    /// Returns the message if it arrives within `at_most`, otherwise `None`: then call this again.
    pub fn wait_for(&mut self, at_most: Duration) -> Option<Result<ReceivedMessage, Error>> {
        let result = self.request.wait_for(at_most)?;
        let memory = std::mem::replace(&mut self.memory, TransferMemory::of(Vec::new()));
        Some(result.map(|status| received(status, memory)))
    }

    /// Handle for [`wait_any`].
    pub fn watch(&self) -> Watch {
        self.request.watch()
    }

    /// Cancels the receive if no message has arrived; returns whether it was cancelled.
    pub fn cancel(&mut self) -> bool {
        self.request.cancel()
    }
}

/// Collective on vectors of its own.
#[must_use = "a collective may not have ended; wait for it"]
pub struct CollectiveRequest<T: Element> {
    request: Request,
    elements: Arc<Mutex<Vec<T::Bits>>>,
}

impl<T: Element> CollectiveRequest<T> {
    pub(crate) fn new(request: Request, elements: Arc<Mutex<Vec<T::Bits>>>) -> Self {
        Self { request, elements }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Errors of the collective.
    pub fn wait(self) -> Result<Vec<T>, Error> {
        self.request.wait()?;
        Ok(T::of_bits(take(&self.elements)))
    }

    /// Handle for [`wait_any`].
    pub fn watch(&self) -> Watch {
        self.request.watch()
    }

    /// Returns the result if the collective has ended, otherwise `None`: then call this again. Makes progress.
    pub fn test(&mut self) -> Option<Result<Vec<T>, Error>> {
        let result = self.request.test()?;
        Some(result.map(|_| T::of_bits(take(&self.elements))))
    }
}

fn take<B>(elements: &Mutex<Vec<B>>) -> Vec<B> {
    std::mem::take(&mut *elements.lock().unwrap_or_else(PoisonError::into_inner))
}

fn received(status: MessageStatus, memory: TransferMemory) -> ReceivedMessage {
    let mut bytes = memory.into_bytes();
    bytes.truncate(status.bytes as usize);
    ReceivedMessage { status, bytes }
}
