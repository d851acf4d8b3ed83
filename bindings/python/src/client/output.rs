//! Output of tasks on its way from their replies to the program: kept here until a thread that holds the GIL shows it.
//!
//! A thread that collects a reply puts the task's output here before it sets the outcome. So when a caller sees that a
//! task is done, the output is here or was shown. A thread that waits for a result shows the output before it returns,
//! and the keeper shows it before it calls callbacks. If neither does so, a separate thread shows it soon, so that the
//! keeper, which sends queued tasks, need not wait for the GIL. One thread shows at a time, in the order of arrival.
//! Showing runs Python code (a stream, a handler of log records, a callable), which may submit tasks, wait for tasks,
//! or wait for a lock that another waiting thread holds. So no lock is held while output is shown, and no thread waits
//! without a limit for the thread that shows.

use crate::client::tasks::target::Target;
use crate::locks::locked;
use crate::plain::ValueReader;
use crate::task_output::{self, OutputPieces};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Thread, ThreadId};
use std::time::{Duration, Instant};

/// Limit of the bytes that wait to be shown; over this limit, the oldest output is left out.
const BYTES_MAX: usize = 16 << 20;
/// Bytes that are counted for each entry in addition to its output.
const ENTRY_BYTES: usize = 128;
/// Time in which a thread that waits for an entry's task can show the entry; afterwards the separate thread shows it.
const DELAY: Duration = Duration::from_millis(5);
/// Time limit of waiting for another thread that shows earlier entries and makes no progress.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit of waiting for another thread that shows entries, at the end of the executor. It applies even if another
/// thread has waited in vain before; afterwards no output is shown any more.
pub const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Output of one task.
struct Entry {
    target: Arc<Target>,
    worker: usize,
    pieces: Box<[u8]>,
    is_untrusted: bool,
}

#[derive(Default)]
struct PendingOutput {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes that were left out before the first entry.
    left_out: u64,
    /// Number of entries that have arrived, and, in `over`, number of entries that were shown or left out.
    arrived: u64,
    over: u64,
    /// The thread that shows output.
    by: Option<ThreadId>,
    /// Whether a thread has waited in vain for the thread that shows, since that thread last made progress.
    is_stuck: bool,
    /// Whether the separate thread has nothing to do.
    is_asleep: bool,
    has_ended: bool,
}

/// Output of tasks that waits to be shown; see the module.
pub struct OutputQueue {
    /// Callable that gets the function's name, the worker, and pieces of output; `None` if no output is wanted, or the
    /// lease has ended. The garbage collector does not visit this callable: it is needed as long as tasks run, even if
    /// it is part of a cycle.
    show: Mutex<Option<Py<PyAny>>>,
    waiting: Mutex<PendingOutput>,
    moved: Condvar,
    /// Whether some entry is not completely shown yet.
    is_any: AtomicBool,
    /// The separate thread; `None`: it could not be started.
    thread: OnceLock<Option<Thread>>,
    /// Whether the program was told that showing fails.
    told: AtomicBool,
}

/// Right to show output, until the value is dropped.
struct ShowRight<'a>(&'a OutputQueue);

impl Drop for ShowRight<'_> {
    fn drop(&mut self) {
        self.0.waiting().by = None;
        self.0.moved.notify_all();
    }
}

impl OutputQueue {
    /// Makes a queue whose output is shown by this Python callable.
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

    fn waiting(&self) -> MutexGuard<'_, PendingOutput> {
        locked(&self.waiting)
    }

    /// Adds the output of a task. `is_untrusted`: it comes from a sandbox, and is shown without control characters.
    #[cold]
    pub fn leave(self: &Arc<Self>, (target, worker): (&Arc<Target>, usize), pieces: &[u8], is_untrusted: bool) {
        let mut waiting = self.waiting();
        waiting.entries.push_back(Entry {
            target: target.clone(),
            worker,
            pieces: pieces.into(),
            is_untrusted,
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

    /// If there is no output, sleeps until there is some. Otherwise sleeps for a short delay, and then shows the
    /// output. Returns `false` when no more output will be shown.
    fn show_what_is_left(&self) -> bool {
        let mut waiting = self.waiting();
        if waiting.has_ended {
            return false;
        }
        waiting.is_asleep = waiting.over == waiting.arrived;
        let limit = if waiting.is_asleep { Duration::MAX } else { DELAY };
        drop(waiting);
        std::thread::park_timeout(limit);
        // `None` while the interpreter ends: no one can see the output then.
        limit > DELAY || Python::try_attach(|py| self.show_or_tell(py, Duration::ZERO)).is_some()
    }

    /// Shows output where no caller can receive an error.
    pub fn show_or_tell(&self, py: Python<'_>, patience: Duration) {
        if self.is_any()
            && let Err(error) = self.show(py, patience)
        {
            error.write_unraisable(py, None);
        }
    }

    /// Whether some output is not completely shown yet.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Shows the output that has arrived, or waits until another thread has shown it. This wait ends when that thread
    /// has shown no further entry for the time `patience`. Fails only with exceptions that are meant to end programs or
    /// calls, such as `KeyboardInterrupt`: other exceptions are only reported.
    #[cold]
    pub fn show(&self, py: Python<'_>, patience: Duration) -> PyResult<()> {
        let Some((_turn, upto)) = py.detach(|| self.turn(patience)) else {
            return Ok(());
        };
        let mut shown = Ok(());
        while shown.is_ok()
            && let Some((entry, left_out)) = self.next(upto)
        {
            shown = self.show_one(py, &entry, left_out);
            self.count_shown();
        }
        shown
    }

    /// Takes the right to show the entries that have arrived, and also returns their number. Returns `None` if they
    /// were shown, or if another thread shows them.
    fn turn(&self, patience: Duration) -> Option<(ShowRight<'_>, u64)> {
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
                    return Some((ShowRight(self), upto));
                }
                // This thread's own output callable waits for a result.
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

    /// Counts one more entry as done.
    fn count_shown(&self) {
        let mut waiting = self.waiting();
        waiting.over += 1;
        waiting.is_stuck = false;
        self.is_any.store(waiting.over < waiting.arrived, Ordering::Release);
        drop(waiting);
        self.moved.notify_all();
    }

    fn show_one(&self, py: Python<'_>, entry: &Entry, left_out: u64) -> PyResult<()> {
        let Some(show) = self.callable().as_ref().map(|show| show.clone_ref(py)) else {
            return Ok(());
        };
        let shown = entry
            .pieces(py, left_out)
            .and_then(|(name, pieces)| show.call1(py, (name, entry.worker, pieces, entry.is_untrusted)));
        match shown {
            Err(error) if error.is_instance_of::<PyException>(py) => {
                // Results do not depend on whether the output can be shown.
                if !self.told.swap(true, Ordering::Relaxed) {
                    error.write_unraisable(py, None);
                }
                Ok(())
            }
            shown => shown.map(drop),
        }
    }

    /// Stops showing.
    pub fn end(&self) {
        self.waiting().has_ended = true;
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
        let show = self.callable().take();
        // Dropped without the lock, because dropping may run Python code.
        Python::try_attach(|_| drop(show));
    }

    fn callable(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        locked(&self.show)
    }
}

impl PendingOutput {
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= ENTRY_BYTES + entry.pieces.len();
        Some(entry)
    }
}

impl Entry {
    /// The function's name, and its output, for `hotlease._showing`. Damaged pieces are left out.
    fn pieces<'py>(&self, py: Python<'py>, left_out: u64) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyList>)> {
        let mut name = PyString::new(py, &self.target.name);
        let pieces = PyList::empty(py);
        if left_out > 0 {
            pieces.append((task_output::LEFT_OUT, left_out))?;
        }
        for (kind, bytes) in OutputPieces(&self.pieces) {
            match kind {
                task_output::NAME => name = PyString::new(py, &String::from_utf8_lossy(bytes)),
                task_output::STDOUT | task_output::STDERR => pieces.append((kind, String::from_utf8_lossy(bytes)))?,
                task_output::RECORD => {
                    if let Ok(record) = ValueReader::new(bytes).value(py) {
                        pieces.append((kind, record))?;
                    }
                }
                task_output::LEFT_OUT => {
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
