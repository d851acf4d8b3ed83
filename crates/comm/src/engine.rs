//! Engine of a member: passes what a link receives to the protocol, and the protocol's orders to the link.
//!
//! A thread that waits for a request drives the engine, for all threads. It polls under the lock: first for a short
//! while without sleeping, then once after each sleep. Only one thread sleeps on the link. Other waiting threads wait
//! for the sleeping thread; when it returns to its caller, one of them drives the engine. The driving thread does
//! reductions without the lock.
//!
//! A second thread, the keeper ([`keeper`]), polls a few times in each failure bound, even while the program computes.

mod direct;
pub(crate) mod keeper;
mod patience;
mod pulse;

pub(crate) use direct::SmallCollective;
pub(crate) use patience::EnginePatience;

use crate::arena::Key;
use crate::error::{Activity, Error};
use crate::link::{Body, CopyBody, FinalCounts, Link, ObjectHead, Sink, Sleeper};
use crate::memory::Piece;
use crate::protocol::{Action, CollectiveStart, MessageStatus, Protocol};
use hotlease_collectives::Rank;
use hotlease_fabric::contention;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageAddress};
use patience::{IdleAction, IdlePolls, ProcessorRecord};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// Protocol and link of a member, and the threads that wait for them.
pub(crate) struct Engine {
    state: Mutex<EngineState>,
    /// Number of threads that wait for the state. A thread that drives without a pause releases the state for them.
    queued: AtomicU32,
    /// Held by a thread while it waits for the state. A thread that has just released the state queues here behind
    /// other threads; with the mutex of the state alone, it would often get the state again before them.
    queue: Mutex<()>,
    /// Wakes threads that wait for the thread that sleeps on the link.
    turn: Condvar,
    sleeper: Arc<dyn Sleeper>,
    patience: EnginePatience,
}

pub(crate) struct EngineState {
    pub(crate) protocol: Protocol,
    pub(crate) link: Box<dyn Link>,
    /// Whether a thread sleeps on the link, for all threads that wait.
    is_asleep: bool,
    /// Number of threads that wait for the thread that sleeps.
    waiting: usize,
    /// Number of threads that wait in a send.
    sending: usize,
    /// Value of [`Protocol::news`] when threads were woken last.
    woken_at: u64,
    /// Whether a thread waits for events that [`Protocol::news`] does not count: that the link has sent everything, or
    /// that finished members have closed. If so, every event wakes the waiting threads.
    is_parting: bool,
    /// Durations of recent yields, by which a thread decides whether to yield.
    processor: ProcessorRecord,
    /// Scratch memory of small collectives.
    scratch: Vec<u8>,
    /// Number of receives that began with a poll that found nothing, since something arrived last.
    vain_polls: u32,
}

impl Sink for Protocol {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        Protocol::frame(self, from, frame)
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        Protocol::body(self, from, bytes);
    }

    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: CopyBody<'_>) -> Result<(), Loss> {
        Protocol::whole(self, from, frame, copy)
    }

    fn object(&mut self, get: Key, head: ObjectHead, first: Vec<u8>) {
        Protocol::object(self, get, head, first);
    }

    fn rest_read(&mut self, get: Key, is_written: bool) {
        Protocol::end_rest(self, get, is_written);
    }

    fn member_finished(&mut self, from: Rank, parting: FinalCounts) {
        Protocol::member_finished(self, from, parting);
    }

    fn member_left(&mut self, from: Rank, context: u64, sent: u64, done: u32) {
        Protocol::member_left(self, from, context, sent, done);
    }
}

impl EngineState {
    /// Carries out the orders of the protocol until there are none.
    pub(crate) fn flush(&mut self) {
        loop {
            self.protocol.settle();
            let mut any = false;
            while let Some(action) = self.protocol.next_action() {
                any = true;
                self.act(action);
            }
            while let Some(send) = self.link.take_sent() {
                any = true;
                self.protocol.handle_sent(send);
            }
            while let Some(send) = self.link.take_unsendable() {
                any = true;
                self.protocol.fail_send(send);
            }
            while let Some((rank, loss)) = self.link.take_lost() {
                any = true;
                self.protocol.handle_loss(rank, loss);
            }
            if let Some(why) = self.link.take_severance() {
                any = true;
                self.protocol.sever(why);
            }
            if !any {
                return self.link.begin_requests();
            }
        }
    }

    fn act(&mut self, action: Action) {
        let link = &mut self.link;
        match action {
            Action::Frame { to, frame } => link.send(to, &frame, Body::Borrowed(&[])),
            Action::Eager { to, frame, body } => {
                let sent = body.read(|bytes| link.send(to, &frame, Body::Borrowed(bytes)));
                // The memory is still valid: the call that lent it has not returned.
                debug_assert!(sent.is_some(), "an eager message has its memory");
            }
            Action::Data { to, frame, body, send } => link.send(to, &frame, Body::Lent { piece: body, send }),
            Action::Store(order) => link.store(order),
            Action::Close { rank } => link.close(rank),
        }
    }

    /// Accepts messages that no receive has asked for, if a thread waits in a send: their senders may be waiting for
    /// this member in turn. Called before a thread sleeps; returns whether there is news.
    fn relieve(&mut self) -> bool {
        let news = self.protocol.news();
        if self.sending > 0 {
            self.protocol.accept_early();
            self.flush();
        }
        self.protocol.news() != news
    }

    /// Handles what has arrived on the link, and its consequences; returns whether anything had arrived.
    pub(crate) fn poll(&mut self) -> bool {
        let any = self.link.poll(&mut self.protocol);
        if any {
            self.vain_polls = 0;
            self.flush();
        }
        any
    }

    /// Handles what has arrived from all sources of the link, and its consequences; returns whether anything had
    /// arrived.
    pub(crate) fn poll_all(&mut self) -> bool {
        let any = self.link.poll_all(&mut self.protocol);
        self.flush();
        any
    }
}

impl Engine {
    pub(crate) fn new(protocol: Protocol, link: Box<dyn Link>, patience: EnginePatience) -> Self {
        Self {
            sleeper: link.sleeper(),
            state: Mutex::new(EngineState {
                protocol,
                link,
                is_asleep: false,
                waiting: 0,
                sending: 0,
                woken_at: 0,
                is_parting: false,
                processor: ProcessorRecord::default(),
                scratch: Vec::new(),
                vain_polls: 0,
            }),
            queued: AtomicU32::new(0),
            queue: Mutex::new(()),
            turn: Condvar::new(),
            patience,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EngineState> {
        match self.state.try_lock() {
            Ok(state) => state,
            // No code of a user runs under the lock. A panic there is a defect; the next call reports it or works.
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_in_turn(),
        }
    }

    #[cold]
    fn lock_in_turn(&self) -> MutexGuard<'_, EngineState> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(queue);
        self.queued.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Whether a thread waits for the state.
    fn is_wanted(&self) -> bool {
        // Relaxed, as it orders nothing: a thread that is not seen now is seen at the next poll.
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Releases the state to the threads that wait for it, if there are any, and then locks it again.
    fn let_in<'a>(&'a self, state: MutexGuard<'a, EngineState>) -> MutexGuard<'a, EngineState> {
        if !self.is_wanted() {
            return state;
        }
        drop(state);
        self.lock_in_turn()
    }

    /// Releases the state, yields the processor to other members of this node, and locks the state again.
    fn give_way<'a>(&'a self, state: MutexGuard<'a, EngineState>) -> MutexGuard<'a, EngineState> {
        drop(state);
        std::thread::yield_now();
        self.lock()
    }

    /// Wakes waiting threads if something is new.
    pub(crate) fn wake_waiting(&self, state: &mut EngineState) {
        let news = state.protocol.news();
        if news == state.woken_at && !state.is_parting {
            return;
        }
        state.woken_at = news;
        if state.is_asleep {
            self.sleeper.wake();
        }
        if state.waiting > 0 {
            self.turn.notify_all();
        }
    }

    /// Makes every event wake the waiting threads from now on: see [`EngineState::is_parting`].
    pub(crate) fn begin_to_part(&self) {
        self.lock().is_parting = true;
    }

    /// Changes the protocol, carries out its orders, and wakes waiting threads if there is news.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Protocol) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.protocol);
        state.flush();
        self.wake_waiting(&mut state);
        result
    }

    /// Sends a small message at once, without a request. Returns `false`, and sends nothing, if the message has to wait
    /// for credit or for its receiver.
    pub(crate) fn send_now(&self, to: Rank, address: MessageAddress, bytes: &[u8]) -> Result<bool, Error> {
        let mut state = self.lock();
        let length = bytes.len() as u64;
        if !state.protocol.admit(to, &address, length)? {
            return Ok(false);
        }
        let frame = MemberFrame::Eager { to: address, length };
        state.link.send(to, &frame, Body::Borrowed(bytes));
        state.flush();
        self.wake_waiting(&mut state);
        Ok(true)
    }

    /// Begins an operation, with a request for it.
    pub(crate) fn begin(&self, during: Activity, begin: impl FnOnce(&mut Protocol, Key)) -> Result<Key, Error> {
        self.change(|protocol| {
            let key = protocol.request(during)?;
            begin(protocol, key);
            Ok(key)
        })
    }

    /// Begins a collective.
    pub(crate) fn collective(&self, context: u64, start: CollectiveStart) -> Result<Key, Error> {
        self.change(|protocol| protocol.collective(context, start))
    }

    /// Waits for a request. If `is_send`, the request is a send: while it waits, messages are accepted before a receive
    /// asks for them.
    pub(crate) fn wait(&self, key: Key, is_send: bool) -> Result<MessageStatus, Error> {
        let result = self.drive_until(is_send, None, |state| state.protocol.take_result(key));
        // Without a deadline, `drive_until` returns only with a result.
        result.unwrap_or(Err(Error::Finished))
    }

    /// Waits for a request until the deadline, at most.
    pub(crate) fn wait_until(
        &self,
        key: Key,
        is_send: bool,
        deadline: Instant,
    ) -> Option<Result<MessageStatus, Error>> {
        self.drive_until(is_send, Some(deadline), |state| state.protocol.take_result(key))
    }

    /// Takes the result of a request if it has ended.
    pub(crate) fn test(&self, key: Key) -> Option<Result<MessageStatus, Error>> {
        self.drive_until(false, Some(Instant::now()), |state| state.protocol.take_result(key))
    }

    /// Drives until `is_so` returns something, or the deadline is over; polls at least once before it gives up.
    pub(crate) fn drive_until<T>(
        &self,
        is_send: bool,
        deadline: Option<Instant>,
        is_so: impl FnMut(&mut EngineState) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        state.sending += usize::from(is_send);
        let (mut state, found) = self.drive(state, deadline, is_so);
        state.sending -= usize::from(is_send);
        if state.waiting > 0 && !state.is_asleep {
            // One of the waiting threads drives the engine from now on.
            self.turn.notify_one();
        }
        found
    }

    fn drive<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, EngineState>,
        deadline: Option<Instant>,
        mut is_so: impl FnMut(&mut EngineState) -> Option<T>,
    ) -> (MutexGuard<'a, EngineState>, Option<T>) {
        let mut idle = IdlePolls::default();
        let mut has_polled = false;
        loop {
            if let Some(found) = is_so(&mut state) {
                return (state, Some(found));
            }
            if let Some(job) = state.protocol.next_job() {
                drop(state);
                let done = job.run();
                state = self.lock();
                state.protocol.end_job(done);
                state.flush();
                self.wake_waiting(&mut state);
                continue;
            }
            let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if is_late && has_polled {
                return (state, None);
            }
            if state.is_asleep && !is_late {
                if state.relieve() {
                    self.wake_waiting(&mut state);
                } else {
                    state = self.wait_for_turn(state, deadline);
                }
                continue;
            }
            has_polled = true;
            let any = if is_late { state.poll_all() } else { state.poll() };
            if any {
                self.wake_waiting(&mut state);
                idle.end(&mut state.processor);
                state = self.let_in(state);
                continue;
            }
            if is_late {
                continue;
            }
            match idle.next(&self.patience, &mut state.processor) {
                IdleAction::Look => state = self.let_in(state),
                IdleAction::GiveWay => state = self.give_way(state),
                IdleAction::Sleep if state.relieve() => self.wake_waiting(&mut state),
                IdleAction::Sleep => state = self.sleep(state, deadline),
            }
        }
    }

    /// Waits until the thread that sleeps on the link has returned or has news, or the deadline is over.
    fn wait_for_turn<'a>(
        &self,
        mut state: MutexGuard<'a, EngineState>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, EngineState> {
        state.waiting += 1;
        let mut state = match deadline {
            None => self.turn.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let at_most = deadline.saturating_duration_since(Instant::now());
                let waited = self.turn.wait_timeout(state, at_most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiting -= 1;
        state
    }

    /// Sleeps on the link until something arrives, another thread wakes it, or the deadline is over.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, EngineState>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, EngineState> {
        state.link.prepare_sleep();
        // Handles what arrived before other members could see that this thread sleeps.
        if state.poll_all() {
            state.link.end_sleep();
            self.wake_waiting(&mut state);
            return state;
        }
        state.is_asleep = true;
        drop(state);
        let at_most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        self.sleeper.sleep(at_most);
        let slept = began.elapsed();
        contention::note_sleep();
        let mut state = self.lock();
        state.processor.note_sleep(slept, &self.patience);
        state.is_asleep = false;
        state.link.end_sleep();
        state
    }
}

#[cfg(test)]
mod tests;
