//! A lease without the client library, and a bystander.

use crate::channel::RawChannel;
use crate::connection::RawConnection;
use crate::library::library;
use crate::platform::{LIMIT, Platform, SOON};
use crate::session::{Loaded, RawSession};
use crate::wait::until_true;
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::Epoch;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(600);

/// A lease of one worker with one slot, a library loaded, a channel open.
pub struct RawLease {
    /// The grant of the lease.
    pub grant: Grant,
    /// A session that is attached to the lease.
    pub session: RawSession,
    /// A connection to worker 0.
    pub connection: RawConnection,
    /// A channel to slot 0 of worker 0.
    pub channel: RawChannel,
    /// Epoch of worker 0.
    pub epoch: Epoch,
    /// The functions that are loaded.
    pub functions: Loaded,
}

impl RawLease {
    /// Takes a lease with `fixtures/echo.c` loaded.
    ///
    /// # Panics
    /// If anything is refused.
    pub fn take(platform: &Platform) -> Self {
        Self::with(platform, &library("echo"))
    }

    /// Takes a lease with `library` loaded.
    ///
    /// # Panics
    /// If anything is refused.
    pub fn with(platform: &Platform, library: &Path) -> Self {
        let grant = platform
            .manager()
            .lease(1, LONG)
            .unwrap_or_else(|refusal| panic!("no lease: {refusal}"));
        Self::of(grant, library)
    }

    /// Attaches to a grant, and loads a library.
    ///
    /// # Panics
    /// If anything is refused.
    pub fn of(grant: Grant, library: &Path) -> Self {
        let mut session = RawSession::attached(&grant);
        let functions = session.load_file(library);
        let (connection, epoch) = session
            .worker(0)
            .unwrap_or_else(|refusal| panic!("no worker: {refusal}"));
        let channel = connection.channel(0);
        Self {
            grant,
            session,
            connection,
            channel,
            epoch,
            functions,
        }
    }

    /// Invokes the library's echo.
    ///
    /// # Panics
    /// If the answer is wrong.
    pub fn echo(&mut self) {
        let echo = self.functions.index("echo");
        self.channel.echo(self.epoch, echo, b"are you there?");
    }

    /// Connects again after the worker died.
    ///
    /// # Panics
    /// If the worker is not replaced.
    pub fn reconnect(&mut self) {
        let (connection, epoch) = self
            .session
            .worker(0)
            .unwrap_or_else(|refusal| panic!("no worker: {refusal}"));
        assert!(epoch > self.epoch, "a new worker has a later epoch");
        self.channel = connection.channel(0);
        self.connection = connection;
        self.epoch = epoch;
    }
}

/// Another client with a separate worker, whose calls must continue during any fault.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    called: Arc<AtomicU64>,
    calls: JoinHandle<Duration>,
}

impl Bystander {
    /// Takes a lease, and calls until [`Bystander::finish`].
    ///
    /// # Panics
    /// If no lease is granted.
    pub fn start(platform: &Platform) -> Self {
        let mut lease = RawLease::take(platform);
        let stop = Arc::new(AtomicBool::new(false));
        let called = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (stop.clone(), called.clone());
        let calls = std::thread::spawn(move || {
            let mut slowest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                lease.echo();
                slowest = slowest.max(start.elapsed());
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
            lease.session.release();
            slowest
        });
        Self { stop, called, calls }
    }

    /// Makes some more calls, then ends.
    ///
    /// # Panics
    /// If a call failed, or did not end soon.
    pub fn finish(self) {
        let before = self.called.load(Ordering::Relaxed);
        until_true("the bystander goes on", LIMIT, || {
            self.calls.is_finished() || self.called.load(Ordering::Relaxed) > before + 10
        });
        self.stop.store(true, Ordering::Relaxed);
        let slowest = self.calls.join().expect("all calls of the bystander succeed");
        assert!(slowest < SOON, "a bystander's call took {slowest:?}");
    }
}
