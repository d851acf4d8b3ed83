//! What tasks print, from their replies to the program: kept here until somebody with Python's lock shows it.
//!
//! Whoever takes in a reply leaves here what its task has printed, before the task has its outcome: so whoever sees it done finds
//! that here or shown. It is shown by a thread that waits for a result, before it returns; by the keeper, before it calls callbacks;
//! and where nobody comes soon by a thread of its own, so that the keeper, who sends what waits, need not wait for Python's lock. One
//! thread shows at a time, in the order in which it came. That runs code of Python's (a stream, a handler of log records, a callable),
//! which may submit tasks, wait for them, or for a lock that another waiting thread has: so no lock is held meanwhile, and nobody
//! waits without a limit for the thread that shows.

use super::core::Core;
use super::job::{Job, Target};
use crate::plain::Reader;
use crate::printed::{self, Pieces};
use hotlease_wire::task::reply;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Thread, ThreadId};
use std::time::{Duration, Instant};

/// Bytes that wait to be shown; beyond, what came first is left out.
const BYTES_MAX: usize = 16 << 20;
/// Bytes that what one task printed counts for beside its own.
const ENTRY_BYTES: usize = 128;
/// How long it waits for somebody who waits for its task, before a thread of its own shows it.
const DELAY: Duration = Duration::from_millis(5);
/// How long to wait for another thread that shows what came before, and does not go on.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same before nothing is shown any more, whoever has waited in vain before.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// What one task printed.
struct Entry {
    target: Arc<Target>,
    worker: usize,
    pieces: Box<[u8]>,
}

#[derive(Default)]
struct Waiting {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes that were left out before the first entry.
    left_out: u64,
    /// Entries that have come, and those that were shown or left out.
    arrived: u64,
    over: u64,
    /// The thread that shows.
    by: Option<ThreadId>,
    /// Somebody has waited for it in vain since it went on last.
    is_stuck: bool,
    /// The thread that shows what nobody waits for has nothing to do.
    is_asleep: bool,
    has_ended: bool,
}

/// See the module.
pub struct Showing {
    /// Called with the function's name, the worker, and pieces; `None`: nobody wants it, or the lease is over. The garbage collector does not
    /// know of it: it is needed as long as tasks run, whoever else has it.
    show: Mutex<Option<Py<PyAny>>>,
    waiting: Mutex<Waiting>,
    moved: Condvar,
    /// Something is not over.
    is_any: AtomicBool,
    /// Shows what nobody waits for; `None`: the system gave none.
    thread: OnceLock<Option<Thread>>,
    /// The program was told that showing fails.
    told: AtomicBool,
}

/// The right to show, until it is dropped.
struct Turn<'a>(&'a Showing);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.waiting().by = None;
        self.0.moved.notify_all();
    }
}

impl Showing {
    /// With this callable of Python's.
    pub fn new(show: Option<Py<PyAny>>) -> Self {
        Self {
            show: Mutex::new(show),
            waiting: Mutex::default(),
            moved: Condvar::new(),
            is_any: AtomicBool::new(false),
            thread: OnceLock::new(),
            told: AtomicBool::new(false),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task of this function has printed this.
    #[cold]
    pub fn leave(self: &Arc<Self>, target: &Arc<Target>, worker: usize, pieces: &[u8]) {
        let mut waiting = self.waiting();
        waiting.entries.push_back(Entry {
            target: target.clone(),
            worker,
            pieces: pieces.into(),
        });
        waiting.bytes += ENTRY_BYTES + pieces.len();
        waiting.arrived += 1;
        while waiting.bytes > BYTES_MAX
            && let Some(entry) = waiting.pop()
        {
            waiting.left_out += entry.pieces.len() as u64;
            waiting.over += 1;
        }
        self.is_any.store(true, Ordering::Release);
        let wake = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        let thread = self.thread.get_or_init(|| self.start());
        if wake && let Some(thread) = thread {
            thread.unpark();
        }
    }

    fn start(self: &Arc<Self>) -> Option<Thread> {
        let thread = std::thread::Builder::new().name("hotlease-output".into());
        let showing = self.clone();
        let started = thread.spawn(move || while showing.show_what_is_left() {});
        started.ok().map(|started| started.thread().clone())
    }

    /// Sleeps until there is something, and some time more; shows what is there then. False: that was all.
    fn show_what_is_left(&self) -> bool {
        let mut waiting = self.waiting();
        if waiting.has_ended {
            return false;
        }
        waiting.is_asleep = waiting.over == waiting.arrived;
        let limit = if waiting.is_asleep { Duration::MAX } else { DELAY };
        drop(waiting);
        std::thread::park_timeout(limit);
        // None while the interpreter ends: there is nobody to see it then.
        limit > DELAY || Python::try_attach(|py| self.show_or_tell(py, Duration::ZERO)).is_some()
    }

    /// Where nobody can be given an error.
    fn show_or_tell(&self, py: Python<'_>, patience: Duration) {
        if self.is_any()
            && let Err(error) = self.show(py, patience)
        {
            error.write_unraisable(py, None);
        }
    }

    /// Whether something is not shown yet, or not to its end.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Shows what has come; or waits for so long until another thread has. An error is one that ends programs or calls.
    #[cold]
    fn show(&self, py: Python<'_>, patience: Duration) -> PyResult<()> {
        let Some((_turn, upto)) = py.detach(|| self.turn(patience)) else {
            return Ok(());
        };
        let mut shown = Ok(());
        while shown.is_ok()
            && let Some((entry, left_out)) = self.next(upto)
        {
            shown = self.show_one(py, &entry, left_out);
            self.went_on();
        }
        shown
    }

    /// The right to show what has come, of which there are so many in all; `None`: that is over, or another thread is at it.
    fn turn(&self, patience: Duration) -> Option<(Turn<'_>, u64)> {
        let me = std::thread::current().id();
        let mut waiting = self.waiting();
        let upto = waiting.arrived;
        let mut since = (waiting.over, Instant::now());
        while waiting.over < upto {
            if since.0 != waiting.over {
                since = (waiting.over, Instant::now());
            }
            let left = patience.saturating_sub(since.1.elapsed());
            match waiting.by {
                None => {
                    waiting.by = Some(me);
                    return Some((Turn(self), upto));
                }
                // What it shows waits for a result.
                Some(by) if by == me => return None,
                Some(_) if waiting.is_stuck && patience < LAST_PATIENCE => return None,
                Some(_) if left.is_zero() => {
                    waiting.is_stuck |= !patience.is_zero();
                    return None;
                }
                Some(_) => {
                    let woken = self.moved.wait_timeout(waiting, left);
                    waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        None
    }

    fn next(&self, upto: u64) -> Option<(Entry, u64)> {
        let mut waiting = self.waiting();
        if waiting.over >= upto {
            return None;
        }
        let entry = waiting.pop()?;
        Some((entry, std::mem::take(&mut waiting.left_out)))
    }

    /// One more is over.
    fn went_on(&self) {
        let mut waiting = self.waiting();
        waiting.over += 1;
        waiting.is_stuck = false;
        self.is_any
            .store(waiting.over < waiting.arrived, Ordering::Release);
        drop(waiting);
        self.moved.notify_all();
    }

    fn show_one(&self, py: Python<'_>, entry: &Entry, left_out: u64) -> PyResult<()> {
        let Some(show) = self.callable().as_ref().map(|show| show.clone_ref(py)) else {
            return Ok(());
        };
        let shown = entry
            .pieces(py, left_out)
            .and_then(|(name, pieces)| show.call1(py, (name, entry.worker, pieces)));
        match shown {
            Err(error) if error.is_instance_of::<PyException>(py) => {
                // Results do not depend on whether it can be seen what their tasks have printed.
                if !self.told.swap(true, Ordering::Relaxed) {
                    error.write_unraisable(py, None);
                }
                Ok(())
            }
            shown => shown.map(drop),
        }
    }

    /// Nothing is shown any more.
    pub fn end(&self) {
        self.waiting().has_ended = true;
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
        let show = self.callable().take();
        // Not under the lock: that may run code of Python's.
        Python::try_attach(|_| drop(show));
    }

    fn callable(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.show.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= ENTRY_BYTES + entry.pieces.len();
        Some(entry)
    }
}

impl Entry {
    /// The function's name, and what it printed, for `hotlease._showing`. What is damaged is left out.
    fn pieces<'py>(
        &self,
        py: Python<'py>,
        left_out: u64,
    ) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyList>)> {
        let mut name = PyString::new(py, &self.target.name);
        let pieces = PyList::empty(py);
        if left_out > 0 {
            pieces.append((printed::LEFT_OUT, left_out))?;
        }
        for (kind, bytes) in Pieces(&self.pieces) {
            match kind {
                printed::NAME => name = PyString::new(py, &String::from_utf8_lossy(bytes)),
                printed::STDOUT | printed::STDERR => pieces.append((kind, String::from_utf8_lossy(bytes)))?,
                printed::RECORD => {
                    if let Ok(record) = Reader::new(bytes).value(py) {
                        pieces.append((kind, record))?;
                    }
                }
                printed::LEFT_OUT => {
                    if let Some(number) = bytes.first_chunk() {
                        pieces.append((kind, u64::from_le_bytes(*number)))?;
                    }
                }
                _ => {}
            }
        }
        Ok((name, pieces))
    }
}

impl Core {
    /// Takes off a reply what its task printed, to be shown, and what its function took, if that was asked for. How many bytes are left.
    #[inline]
    pub fn take_off(&self, job: &Job, worker: usize, reply: &mut [u8]) -> usize {
        let mut length = reply.len();
        if let Some((end, pieces)) = printed::split(reply) {
            self.showing.leave(&job.target, worker, pieces);
            reply[0] &= !printed::FLAG;
            length = end;
        }
        if let Some(times) = &job.cell.times
            && let Some(ns) = reply::take_time(&mut reply[..length])
        {
            times.ran(ns);
        }
        length
    }

    /// Shows what tasks have printed that are over.
    #[inline]
    pub fn show(&self, py: Python<'_>) -> PyResult<()> {
        if self.showing.is_any() && !self.is_foreign() {
            return self.showing.show(py, PATIENCE);
        }
        Ok(())
    }

    /// The same where nobody can be given an error.
    pub fn show_or_tell(&self, py: Python<'_>) {
        self.showing.show_or_tell(py, PATIENCE);
    }

    /// The same at the end.
    pub fn show_the_last(&self) {
        if self.showing.is_any() {
            // None while the interpreter ends: there is nobody to see it then.
            Python::try_attach(|py| self.showing.show_or_tell(py, LAST_PATIENCE));
        }
    }
}
