//! Tests of a sleeping thread, and of events that another thread handles meanwhile.

use super::*;
use crate::protocol::Bounds;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Link with unsent data, which a poll sends once `may_send` is set.
#[derive(Default)]
struct Clogged {
    may_send: Arc<AtomicBool>,
    has_sent: bool,
    lost: VecDeque<(Rank, Loss)>,
    bed: Arc<Bed>,
}

/// Sleeper that sleeps until it is woken, and wakes for no other reason.
#[derive(Default)]
struct Bed {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Sleeper for Bed {
    fn sleep(&self, at_most: Option<Duration>) {
        let is_woken = self.is_woken.lock().unwrap();
        let at_most = at_most.unwrap_or(LIMIT);
        let waited = self
            .changed
            .wait_timeout_while(is_woken, at_most, |is_woken| !*is_woken);
        *waited.unwrap().0 = false;
    }

    fn wake(&self) {
        *self.is_woken.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Link for Clogged {
    fn send(&mut self, _: Rank, _: &MemberFrame, _: Body<'_>) {}

    fn poll(&mut self, _: &mut dyn Sink) -> bool {
        let goes = self.may_send.load(Ordering::SeqCst) && !self.has_sent;
        self.has_sent |= goes;
        goes
    }

    fn take_sent(&mut self) -> Option<Key> {
        None
    }

    fn take_unsendable(&mut self) -> Option<Key> {
        None
    }

    fn take_lost(&mut self) -> Option<(Rank, Loss)> {
        self.lost.pop_front()
    }

    fn close(&mut self, _: Rank) {}

    fn is_sending(&self) -> bool {
        !self.has_sent
    }

    fn take_activity(&mut self, _: Rank) -> (bool, bool) {
        (true, true)
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        Arc::clone(&self.bed) as Arc<dyn Sleeper>
    }
}

/// The keeper may be the thread that sends the last frame, or sees that a finished member has closed.
#[test]
fn a_member_that_parts_is_woken_when_another_thread_has_sent_the_rest() {
    let link = Clogged::default();
    let may_send = Arc::clone(&link.may_send);
    let bounds = Bounds {
        small_bytes: 64,
        eager_bytes: 1024,
        early_bytes: 1024,
    };
    let engine = Engine::new(
        Protocol::new(0, 2, bounds),
        Box::new(link),
        EnginePatience::of(Duration::ZERO, 1, None),
    );
    std::thread::scope(|scope| {
        let parting = scope.spawn(|| {
            engine.begin_to_part();
            let deadline = Some(Instant::now() + LIMIT);
            let began = Instant::now();
            let sent = engine.drive_until(true, deadline, |state| (!state.link.is_sending()).then_some(()));
            (sent, began.elapsed())
        });
        while !engine.lock().is_asleep {
            std::thread::yield_now();
        }
        may_send.store(true, Ordering::SeqCst);
        let mut state = engine.lock();
        assert!(state.poll_all());
        engine.wake_waiting(&mut state);
        drop(state);
        let (sent, took) = parting.join().expect("no panic");
        assert!(sent.is_some());
        assert!(took < LIMIT, "it slept to the end");
    });
}
