//! Member: a communicator of the program, which joins on first use, and is not used in a forked process.

use super::failure;
use super::operation::{RunningOperation, SIGNAL_INTERVAL};
use hotlease_comm::{Communicator, Error, Options, Secret};
use hotlease_fabric::forks::ProcessMark;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Runs blocking work in a separate thread, so that Ctrl-C ends the wait; the work itself then continues.
pub fn interruptible<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (told, answer) = mpsc::channel();
    let thread = std::thread::Builder::new().name("comm-wait".into());
    thread.spawn(move || drop(told.send(work())))?;
    let answer = Mutex::new(answer);
    loop {
        let next = py.detach(|| {
            answer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv_timeout(SIGNAL_INTERVAL)
        });
        match next {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a thread that waited for others panicked"));
            }
        }
    }
}

/// A communicator. Threads release the GIL while they wait for it, and a forked process never finishes it.
pub struct SharedCommunicator {
    communicator: Option<Communicator>,
    made_by: ProcessMark,
}

impl SharedCommunicator {
    fn new(communicator: Communicator) -> Self {
        Self {
            communicator: Some(communicator),
            made_by: ProcessMark::here(),
        }
    }

    fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Finishes the communicator, or aborts it.
    fn end(mut self, gives_up: bool) -> Result<(), Error> {
        match self.communicator.take() {
            None => Ok(()),
            Some(foreign) if self.is_foreign() => {
                std::mem::forget(foreign);
                Ok(())
            }
            Some(communicator) if gives_up => {
                communicator.abort();
                Ok(())
            }
            Some(communicator) => communicator.finish(),
        }
    }
}

impl Deref for SharedCommunicator {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        self.communicator.as_ref().expect("it is taken out at its end only")
    }
}

impl Drop for SharedCommunicator {
    fn drop(&mut self) {
        let Some(communicator) = self.communicator.take() else {
            return;
        };
        if self.is_foreign() {
            return std::mem::forget(communicator);
        }
        let mut communicator = Some(communicator);
        let place = &mut communicator;
        Python::try_attach(|py| py.detach(|| drop(place.take())));
        drop(communicator);
    }
}

enum MemberState {
    /// The communicator that the environment names, joined on first use. If the environment names none, a communicator
    /// of this process alone.
    World,
    /// A communicator of this process alone, made on first use.
    Own,
    Joined(Arc<SharedCommunicator>),
    /// There is no communicator, for this reason.
    Absent(&'static str),
}

/// All members of this process, finished at the end of the program.
static ALL: Mutex<Vec<Weak<Member>>> = Mutex::new(Vec::new());

/// A communicator of the program; see the module.
pub struct Member {
    state: Mutex<MemberState>,
    left: Mutex<Vec<RunningOperation>>,
    has_left: AtomicBool,
}

impl Member {
    fn new(state: MemberState) -> Arc<Self> {
        let member = Arc::new(Self {
            state: Mutex::new(state),
            left: Mutex::default(),
            has_left: AtomicBool::new(false),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&member));
        member
    }

    /// Returns the communicator; joins it first if it was not joined yet.
    pub fn shared(&self, py: Python<'_>) -> PyResult<Arc<SharedCommunicator>> {
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let joined = match &*state {
            MemberState::Joined(shared) if shared.is_foreign() => {
                return Err(failure::error(
                    py,
                    "Forked",
                    "this process was forked after its parent had joined this communicator, in which only the parent is a member; \
                     join one after the fork (MPI.join), or start processes with multiprocessing's \"spawn\"",
                ));
            }
            MemberState::Joined(shared) => return Ok(Arc::clone(shared)),
            MemberState::Absent(why) => return Err(failure::error(py, "Finished", *why)),
            MemberState::World if !Options::is_in_env() => Communicator::alone("MPI_COMM_WORLD"),
            MemberState::World => interruptible(py, || {
                let mut options = Options::from_env()?;
                options.stores = hotlease_stores::openers();
                Communicator::join(&options)
            })?,
            MemberState::Own => Communicator::alone("MPI_COMM_SELF"),
        };
        let shared = Arc::new(SharedCommunicator::new(
            joined.map_err(|error| failure::of(py, &error))?,
        ));
        *state = MemberState::Joined(Arc::clone(&shared));
        Ok(shared)
    }

    fn end(&self, py: Python<'_>, why: &'static str, gives_up: bool) -> PyResult<()> {
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let MemberState::Joined(shared) = std::mem::replace(&mut *state, MemberState::Absent(why)) else {
            return Ok(());
        };
        drop(state);
        // If calls of other threads are going on, the last of them ends the communicator.
        let Ok(shared) = Arc::try_unwrap(shared) else {
            return Ok(());
        };
        let ended = interruptible(py, move || shared.end(gives_up))?;
        self.sweep(py);
        ended.map_err(|error| failure::of(py, &error))
    }

    /// Keeps an abandoned operation until it has ended, because the operation uses its memory.
    pub fn keep_until_end(&self, left: RunningOperation) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(left);
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Drops abandoned operations that have ended.
    pub fn sweep(&self, py: Python<'_>) {
        if !self.has_left.load(Ordering::Relaxed) {
            return;
        }
        let mut all = std::mem::take(&mut *self.left.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner));
        all.retain_mut(|left| py.detach(|| left.poll(Duration::ZERO)).is_none());
        let mut left = self.left.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        left.extend(all);
        self.has_left.store(!left.is_empty(), Ordering::Relaxed);
    }
}

/// Finishes all members, or aborts them. Returns the first error, after all have ended.
#[pyfunction]
pub fn end_all(py: Python<'_>, gives_up: bool) -> PyResult<()> {
    let all: Vec<_> = {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    };
    let ended: Vec<_> = all.iter().map(|member| member.end(py, ENDED, gives_up)).collect();
    ended.into_iter().collect()
}

const ENDED: &str = "this communicator has finished (MPI.Finalize, or the end of the program)";
const FREED: &str = "this communicator has finished (Free)";

/// Handle from which a `Comm` is made.
#[pyclass(frozen, module = "hotlease._core")]
pub struct Handle(pub Arc<Member>);

impl Handle {
    pub fn of(communicator: Communicator) -> Self {
        Self(Member::new(MemberState::Joined(Arc::new(SharedCommunicator::new(
            communicator,
        )))))
    }
}

#[pymethods]
impl Handle {
    /// The communicator that the environment names, joined on first use.
    #[staticmethod]
    fn world() -> Self {
        Self(Member::new(MemberState::World))
    }

    /// A communicator of this process alone.
    #[staticmethod]
    fn own() -> Self {
        Self(Member::new(MemberState::Own))
    }

    /// No communicator.
    #[staticmethod]
    fn null() -> Self {
        Self(Member::new(MemberState::Absent(
            "this is MPI.COMM_NULL: no communicator",
        )))
    }

    /// Joins a communicator by name.
    #[staticmethod]
    #[pyo3(signature = (name, size, rendezvous, rank, secret, timeout, newcomer, link))]
    #[allow(clippy::too_many_arguments, reason = "they are what Python's function has")]
    fn join(
        py: Python<'_>,
        name: &str,
        size: u32,
        rendezvous: &str,
        rank: Option<u32>,
        secret: Option<&[u8]>,
        timeout: Option<f64>,
        newcomer: bool,
        link: Option<&str>,
    ) -> PyResult<Self> {
        let failed = |error: Error| failure::of(py, &error);
        let secret = secret
            .map_or_else(Secret::from_environment, Secret::new)
            .map_err(failed)?;
        let mut options = Options::new(name, size, rendezvous, secret);
        options.rank = rank;
        options.is_newcomer = newcomer;
        options.stores = hotlease_stores::openers();
        if let Some(link) = link {
            options.link = link.parse().map_err(failed)?;
        }
        if let Some(timeout) = timeout {
            options.join_timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        }
        let joined = interruptible(py, move || Communicator::join(&options))?;
        joined.map(Self::of).map_err(failed)
    }

    /// Finishes the communicator, or aborts it; the other members learn of an abort at once.
    fn end(&self, py: Python<'_>, gives_up: bool) -> PyResult<()> {
        self.0.end(py, FREED, gives_up)
    }

    /// Whether this is no communicator: `MPI.COMM_NULL`, or a communicator that was freed.
    fn is_null(&self, py: Python<'_>) -> bool {
        let state = self
            .0
            .state
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner);
        matches!(&*state, MemberState::Absent(why) if *why != ENDED)
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}
