//! Driving of the requests to the store: a waiting thread of the member drives, so that nothing is handed from one
//! thread to another (which takes as long as a small message). While the program does something else, the courier's own
//! thread drives.
//!
//! ```text
//!   a member's thread      begins  computes ...           waits: drives ────┐ computes ...
//!   the courier's thread   looks . takes over: drives ────┘ rests ........... looks . takes over: drives
//! ```
//!
//! The courier's thread takes over if no thread has driven for [`GRACE`], and stops as soon as a member's thread waits.
//! If it were woken whenever a member's thread stops driving, each message would cost a wake-up. So the courier's
//! thread looks once in each [`GRACE`] whether a thread has driven. A thread that itself runs tasks of tokio cannot
//! drive this runtime, and leaves that to the courier's thread.

use crate::lock::lock;
use crate::request::{CourierEvent, CourierRequest};
use hotlease_comm::link::Sleeper;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};

/// Time without a driving thread after which the courier's thread drives.
const GRACE: Duration = Duration::from_millis(2);

/// Receiver of requests, which begins them within the runtime.
pub(crate) trait RequestReceiver: Send + Sync {
    fn begin(self: Arc<Self>, requests: VecDeque<CourierRequest>);
}

/// State that the link and the courier share.
#[derive(Default)]
pub(crate) struct Shared {
    events: Mutex<Events>,
    requests: Mutex<VecDeque<CourierRequest>>,
    something: Condvar,
    /// Number of bytes that were copied and are not written yet.
    pub(crate) under_way: AtomicUsize,
    /// Number of messages and words that are not written yet.
    unwritten: AtomicUsize,
    /// Whether a thread waits until all is written.
    is_awaited: AtomicBool,
    pub(crate) is_severed: AtomicBool,
}

#[derive(Default)]
struct Events {
    queue: VecDeque<CourierEvent>,
    /// Whether the waiting thread is to wake up, even without an event.
    is_woken: bool,
    /// Waker of the member's thread, which drives until an event occurs.
    member: Option<Waker>,
    /// Waker of the courier's thread, which drives until a member's thread drives.
    courier: Option<Waker>,
    /// Number of threads that wait without driving.
    waiting: usize,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Events)) {
        let mut events = lock(&self.events);
        change(&mut events);
        // The waker is used once: the woken thread checks all state and sets the waker again.
        let waker = events.member.take();
        let is_waited_for = events.waiting > 0;
        drop(events);
        if let Some(waker) = waker {
            waker.wake();
        }
        if is_waited_for {
            self.something.notify_all();
        }
    }

    pub(crate) fn tell(&self, event: CourierEvent) {
        self.change(|events| events.queue.push_back(event));
    }

    /// Ends the current sleep, or else the next one.
    pub(crate) fn wake(&self) {
        self.change(|events| events.is_woken = true);
    }

    pub(crate) fn take_events(&self) -> VecDeque<CourierEvent> {
        std::mem::take(&mut lock(&self.events).queue)
    }

    pub(crate) fn request(&self, request: CourierRequest) {
        lock(&self.requests).push_back(request);
    }

    /// Returns whether there are requests to begin, and whether they must begin at once because other members wait for
    /// a write.
    fn look_for_requests(&self) -> (bool, bool) {
        let requests = lock(&self.requests);
        (!requests.is_empty(), requests.iter().any(CourierRequest::is_write))
    }

    /// Wakes the driving threads, so that they check for requests.
    fn wake_drivers(&self) {
        let mut events = lock(&self.events);
        let wakers = [events.member.take(), events.courier.take()];
        drop(events);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    pub(crate) fn note_unwritten(&self) {
        self.unwritten.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that `count` messages and words are written, or will never be written.
    pub(crate) fn note_written(&self, count: usize) {
        let left = self.unwritten.fetch_sub(count, Ordering::SeqCst) - count;
        // Either this thread sees that another thread waits, or the other thread sees that all is written.
        if left == 0 && self.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Returns whether something is not written yet. If so, the last write wakes the waiting thread.
    pub(crate) fn check_writing(&self) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        let is_writing = self.unwritten.load(Ordering::SeqCst) > 0;
        is_writing && !self.is_severed.load(Ordering::Acquire)
    }

    /// Waits without driving.
    fn wait(&self, at_most: Option<Duration>) {
        let mut events = lock(&self.events);
        events.waiting += 1;
        let is_idle = |events: &mut Events| events.queue.is_empty() && !events.is_woken;
        let mut events = match at_most {
            None => {
                let woken = self.something.wait_while(events, is_idle);
                woken.unwrap_or_else(PoisonError::into_inner)
            }
            Some(at_most) => {
                let woken = self.something.wait_timeout_while(events, at_most, is_idle);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        events.waiting -= 1;
        events.is_woken = false;
    }
}

/// Driver of the courier's runtime.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    turn: Mutex<DriverState>,
    changed: Condvar,
    /// Held while requests are begun: several threads may be in the runtime, and the order of requests must be kept.
    beginning: Mutex<()>,
}

/// State of driving: which threads drive.
#[derive(Default)]
struct DriverState {
    /// `None` before the store is open, and after the end.
    works: Option<DriverHandle>,
    /// Number of the member's threads that drive now.
    driving: usize,
    /// Number of times that a thread of the member has driven.
    drives: u64,
    /// Number of threads that wait and cannot drive.
    waiting_only: usize,
    courier: CourierState,
    /// Set if the courier is to end: the deadline of the end.
    end: Option<Instant>,
}

impl DriverState {
    fn is_driven(&self) -> bool {
        self.driving > 0 || self.courier == CourierState::Driving
    }
}

/// Runtime, and receiver of requests, for a driving thread. A driving thread may be the one that drops the runtime; a
/// thread that runs tasks of tokio must not drop it.
#[derive(Clone)]
struct DriverHandle {
    runtime: Arc<Runtime>,
    takes: Arc<dyn RequestReceiver>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum CourierState {
    #[default]
    Watching,
    /// A member's thread drives for a long time, and notifies the courier's thread when it stops driving.
    Resting,
    Driving,
}

impl Driver {
    /// Lets threads of the member drive from now on.
    pub(crate) fn open(&self, runtime: Arc<Runtime>, takes: Arc<dyn RequestReceiver>) {
        lock(&self.turn).works = Some(DriverHandle { runtime, takes });
    }

    /// Ends driving.
    pub(crate) fn close(&self) {
        let works = lock(&self.turn).works.take();
        drop(works);
    }

    /// Ends [`run_courier_thread`](Self::run_courier_thread).
    pub(crate) fn end(&self, until: Instant) {
        lock(&self.turn).end = Some(until);
        self.changed.notify_one();
        self.shared.wake_drivers();
    }

    /// Begins the requests that wait, in the order in which they were made.
    pub(crate) fn begin(&self, takes: &Arc<dyn RequestReceiver>) {
        let _in_order = lock(&self.beginning);
        let requests = std::mem::take(&mut *lock(&self.shared.requests));
        if !requests.is_empty() {
            Arc::clone(takes).begin(requests);
        }
    }

    /// Runs on the courier's thread: drives while no other thread does, until the end is requested. Returns the
    /// deadline of the end.
    pub(crate) fn run_courier_thread(&self) -> Instant {
        let mut turn = lock(&self.turn);
        loop {
            let seen = turn.drives;
            turn.courier = CourierState::Watching;
            if turn.waiting_only == 0 && turn.end.is_none() {
                let waited = self.changed.wait_timeout(turn, GRACE);
                turn = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if let Some(until) = turn.end {
                return until;
            }
            if turn.drives != seen && turn.waiting_only == 0 {
                continue;
            }
            if turn.driving > 0 {
                turn.courier = CourierState::Resting;
                turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(works) = turn.works.clone() else {
                return Instant::now();
            };
            turn.courier = CourierState::Driving;
            drop(turn);
            works.runtime.block_on(std::future::poll_fn(|context| {
                lock(&self.shared.events).courier = Some(context.waker().clone());
                self.begin(&works.takes);
                let turn = lock(&self.turn);
                let is_over = turn.driving > 0 || turn.end.is_some();
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            }));
            turn = lock(&self.turn);
        }
    }

    /// Registers a member's thread as driving. Returns `None` while other threads drive, unless this thread has to
    /// wait, and also if this thread cannot drive.
    fn enter(&self, is_waiting: bool) -> Option<DriverHandle> {
        let mut turn = lock(&self.turn);
        let (courier_drives, is_driven) = (turn.courier == CourierState::Driving, turn.is_driven());
        let works = turn.works.clone();
        let enters = works.is_some() && (is_waiting || !is_driven) && Handle::try_current().is_err();
        turn.driving += usize::from(enters);
        drop(turn);
        if courier_drives || (is_driven && !enters) {
            self.shared.wake_drivers();
        }
        works.filter(|_| enters)
    }

    fn leave(&self) {
        let mut turn = lock(&self.turn);
        turn.driving -= 1;
        turn.drives += 1;
        let rests = turn.courier == CourierState::Resting && turn.driving == 0;
        drop(turn);
        if rests {
            self.changed.notify_one();
        }
    }

    /// Does what can be done now, unless another thread is driving.
    pub(crate) fn advance(&self) {
        while let Some(works) = self.enter(false) {
            works.runtime.block_on(async {
                self.begin(&works.takes);
                // Every task that has begun runs once before this task continues.
                tokio::task::yield_now().await;
            });
            self.leave();
            if !self.shared.look_for_requests().1 {
                break;
            }
        }
    }

    /// Begins requests that must begin at once.
    pub(crate) fn begin_urgent(&self) {
        match self.shared.look_for_requests() {
            (_, true) => self.advance(),
            (true, false) if lock(&self.turn).is_driven() => self.shared.wake_drivers(),
            _ => {}
        }
    }

    fn take_wake(&self, context: &Context<'_>) -> bool {
        let mut events = lock(&self.shared.events);
        let is_awake = events.is_woken || !events.queue.is_empty();
        events.is_woken &= !is_awake;
        events.member = (!is_awake).then(|| context.waker().clone());
        is_awake
    }

    fn wait_without_driving(&self, at_most: Option<Duration>) {
        lock(&self.turn).waiting_only += 1;
        self.changed.notify_one();
        self.shared.wait(at_most);
        lock(&self.turn).waiting_only -= 1;
    }
}

impl Sleeper for Driver {
    fn sleep(&self, at_most: Option<Duration>) {
        let Some(works) = self.enter(true) else {
            return self.wait_without_driving(at_most);
        };
        works.runtime.block_on(async {
            let something = std::future::poll_fn(|context| {
                let is_awake = self.take_wake(context);
                self.begin(&works.takes);
                if is_awake { Poll::Ready(()) } else { Poll::Pending }
            });
            match at_most {
                None => something.await,
                Some(at_most) => drop(tokio::time::timeout(at_most, something).await),
            }
        });
        self.leave();
        self.begin_urgent();
    }

    fn wake(&self) {
        self.shared.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_comm::link::StoreOrder;

    /// Time in which a second thread would overtake the first thread.
    const OVERTAKING: Duration = Duration::from_millis(200);

    /// Notes the numbers of collectives in the order in which their requests are begun. The first batch takes long.
    #[derive(Default)]
    struct Recorder {
        batches: AtomicUsize,
        begun: Mutex<Vec<u32>>,
    }

    impl RequestReceiver for Recorder {
        fn begin(self: Arc<Self>, requests: VecDeque<CourierRequest>) {
            if self.batches.fetch_add(1, Ordering::SeqCst) == 0 {
                let since = Instant::now();
                while lock(&self.begun).is_empty() && since.elapsed() < OVERTAKING {
                    std::thread::yield_now();
                }
            }
            let numbers = requests.iter().filter_map(|request| match request {
                CourierRequest::Order(StoreOrder::Done { collective, .. }) => Some(*collective),
                _ => None,
            });
            lock(&self.begun).extend(numbers);
        }
    }

    #[test]
    fn a_second_thread_does_not_begin_requests_before_those_of_the_first() {
        let (driver, recorder) = (Driver::default(), Arc::new(Recorder::default()));
        let takes: Arc<dyn RequestReceiver> = Arc::clone(&recorder) as Arc<dyn RequestReceiver>;
        let request = |collective| {
            let done = StoreOrder::Done { context: 0, collective };
            driver.shared.request(CourierRequest::Order(done));
        };
        request(0);
        std::thread::scope(|scope| {
            scope.spawn(|| driver.begin(&takes));
            while recorder.batches.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            request(1);
            scope.spawn(|| driver.begin(&takes));
        });
        assert_eq!(*lock(&recorder.begun), [0, 1]);
    }
}
