//! A meddler on a host's cable that delays, reorders, repeats and loses packets of all kinds: a replacement for netem,
//! which the tests' kernels lack.
//!
//! The cable ends in two descriptors of TAP devices, one for each direction. Unlike a proxy of connections the meddler
//! works below TCP, which must repair the damage, and on datagrams, which only their users can repair.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Delay of a packet that other packets are to overtake.
const OVERTAKEN: Duration = Duration::from_millis(4);
/// Size of the frame buffer; frames of a cable without segmentation offload are much shorter.
const FRAME_BYTES: usize = 64 << 10;
/// Packets under way; packets beyond that are lost, as on any network.
const QUEUE_MAX: usize = 4096;

/// Treatment of packets, in both directions. The default changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meddling {
    /// Delay of every packet.
    pub delay: Duration,
    /// One of this many packets is overtaken by packets behind it; 0: none.
    pub reorder_one_of: u32,
    /// One of this many packets is delivered twice; 0: none.
    pub repeat_one_of: u32,
    /// One of this many packets is lost; 0: none.
    pub lose_one_of: u32,
}

/// Counts of what the meddler has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeddlerDone {
    /// Packets that were delivered.
    pub passed: u64,
    /// Delivered packets that were overtaken by a packet sent later.
    pub overtaken: u64,
    /// Delivered packets that were repetitions.
    pub repeated: u64,
    /// Packets that were lost.
    pub lost: u64,
}

struct Orders {
    meddling: Meddling,
    done: MeddlerDone,
}

/// A thread that meddles until the object is dropped.
pub(super) struct Meddler {
    orders: Arc<Mutex<Orders>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meddler {
    /// A meddler on the cable between two TAP devices.
    pub fn between(ends: [File; 2]) -> Self {
        for end in &ends {
            let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
            nix::fcntl::fcntl(end.as_fd(), flags).expect("a descriptor that does not block");
        }
        let orders = Arc::new(Mutex::new(Orders {
            meddling: Meddling::default(),
            done: MeddlerDone::default(),
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (orders, stop) = (Arc::clone(&orders), Arc::clone(&stop));
            std::thread::spawn(move || pass(&ends, &orders, &stop))
        };
        Self {
            orders,
            stop,
            thread: Some(thread),
        }
    }

    pub fn set(&self, meddling: Meddling) -> MeddlerDone {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.meddling = meddling;
        orders.done
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the meddler panicked");
        }
    }
}

/// One direction: packets by the time when they are due, then by their order of arrival.
#[derive(Default)]
struct Direction {
    queue: BinaryHeap<Reverse<(Instant, u64, Vec<u8>)>>,
    came: u64,
    /// Latest packet that has left.
    latest: u64,
}

impl Direction {
    fn take(&mut self, frame: &[u8], meddling: &Meddling, done: &mut MeddlerDone) {
        self.came += 1;
        let is_one_of = |each: u32| each > 0 && self.came.is_multiple_of(each.into());
        if is_one_of(meddling.lose_one_of) || self.queue.len() >= QUEUE_MAX {
            done.lost += 1;
            return;
        }
        let late = match is_one_of(meddling.reorder_one_of) {
            true => OVERTAKEN,
            false => Duration::ZERO,
        };
        let repeated = is_one_of(meddling.repeat_one_of);
        let due = Instant::now() + meddling.delay + late;
        if repeated {
            done.repeated += 1;
            let again = due + OVERTAKEN / 2;
            self.queue.push(Reverse((again, self.came, frame.to_vec())));
        }
        self.queue.push(Reverse((due, self.came, frame.to_vec())));
    }

    fn give(&mut self, to: &File, done: &mut MeddlerDone) {
        while let Some(Reverse((due, _, _))) = self.queue.peek()
            && *due <= Instant::now()
            && let Some(Reverse((_, number, frame))) = self.queue.pop()
        {
            // Fails while the interface is down: then the packet is lost, as it should be.
            match (&mut &*to).write(&frame) {
                Ok(_) => done.passed += 1,
                Err(_) => done.lost += 1,
            }
            if number < self.latest {
                done.overtaken += 1;
            }
            self.latest = self.latest.max(number);
        }
    }

    fn wait(&self) -> Option<Duration> {
        let Reverse((due, _, _)) = self.queue.peek()?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

fn pass(ends: &[File; 2], orders: &Mutex<Orders>, stop: &AtomicBool) {
    let mut directions = [Direction::default(), Direction::default()];
    let mut frame = vec![0; FRAME_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let waits = directions.iter().filter_map(Direction::wait);
        let wait = waits.min().unwrap_or(Duration::from_millis(50));
        let wait = wait.as_millis().clamp(0, 50) as u16;
        let mut fds = ends.each_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        // If poll is interrupted, the loop polls again.
        let _ = poll(&mut fds, PollTimeout::from(wait));
        let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
        let Orders { meddling, done } = &mut *orders;
        for (from, direction) in directions.iter_mut().enumerate() {
            // Reads at most 64 packets, so that due packets do not wait.
            for _ in 0..64 {
                // Nothing to read, or the interface is down.
                let Ok(length) = (&ends[from]).read(&mut frame) else {
                    break;
                };
                direction.take(&frame[..length], meddling, done);
            }
            direction.give(&ends[1 - from], done);
        }
    }
}
