//! Keeper: a thread that polls a few times in each failure bound, also while the program computes. It tells the other
//! members that this member is alive, detects members that have failed, and handles what has arrived. So no other
//! member has to wait for this member's next call.

use super::Engine;
use super::pulse::{BEATS, Pulse};
use crate::link::Body;
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Thread of the keeper; ends when this is dropped.
pub(crate) struct Keeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. Until `joined_by` other members may still be connecting, and may be silent.
    pub(crate) fn start(
        engine: Arc<Engine>,
        me: Rank,
        size: Rank,
        bound: Duration,
        joined_by: Instant,
    ) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("comm-keeper".into());
        let thread = thread.spawn(move || keep(&engine, (me, size), bound / BEATS, joined_by, &theirs))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(engine: &Engine, (me, size): (Rank, Rank), beat: Duration, joined_by: Instant, stop: &(Mutex<bool>, Condvar)) {
    let others = || (0..size).filter(|rank| *rank != me);
    let mut pulse = Pulse::new(size as usize);
    // Tells the other members that this member is connected and alive.
    let mut state = engine.lock();
    for rank in others() {
        state.link.send(rank, &MemberFrame::Alive, Body::Borrowed(&[]));
    }
    drop(state);
    let mut next = Instant::now() + beat;
    loop {
        let is_over = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = next.saturating_duration_since(Instant::now());
        let waited = stop.1.wait_timeout_while(is_over, until, |is_over| !*is_over);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let now = Instant::now();
        let mut state = engine.lock();
        // Reads what has arrived from each member before deciding whether the member was silent.
        state.poll_all();
        if now > next + beat {
            pulse.reset();
        }
        for rank in others() {
            if !state.protocol.is_here(rank) {
                continue;
            }
            let (was_heard, was_told) = state.link.take_activity(rank);
            if pulse.count_beat(rank as usize, was_heard, now < joined_by) {
                state.protocol.handle_loss(rank, Loss::Silent);
            } else if !was_told {
                state.link.send(rank, &MemberFrame::Alive, Body::Borrowed(&[]));
            }
        }
        state.flush();
        engine.wake_waiting(&mut state);
        drop(state);
        next = now + beat;
    }
}
