//! The control thread, the one background thread of the library: control-plane sockets, lease renewal, and reports of
//! dead workers. No invocation passes through it.

use crate::Error;
use hotlease_fabric::forks::PerProcess;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handle to the control thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Control {
    handle: Handle,
    thread: ThreadId,
}

/// One control thread for each process: the child of a fork does not have its parent's thread.
static CONTROL: PerProcess<Mutex<Option<Control>>> = PerProcess::new();

impl Control {
    /// The control thread of the process, started at first use. It lives as long as the process and does not keep
    /// it from exiting.
    pub(crate) fn get() -> Result<Self, Error> {
        let mut control = CONTROL.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(control) = &*control {
            return Ok(control.clone());
        }
        let cannot_start = "start the control thread";
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::local(cannot_start))?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name("hotlease-control".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .map_err(Error::local(cannot_start))?;
        let started = Self {
            handle,
            thread: thread.thread().id(),
        };
        *control = Some(started.clone());
        Ok(started)
    }

    /// Starts a future on the thread.
    pub(crate) fn spawn<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(Box::pin(future));
    }

    /// Boxed, so that tokio's machinery of a task is compiled once, and not again for each type of future.
    fn spawn_boxed(&self, future: BoxFuture) {
        self.handle.spawn(future);
    }

    /// Whether this is the control thread.
    pub(crate) fn is_current(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    /// Runs a future on the thread and waits for it. The caller needs no async context.
    pub(crate) fn run<T, F>(&self, future: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        if self.is_current() {
            return Err(Error::protocol("the control thread cannot wait for itself"));
        }
        let (sender, receiver) = sync_channel(1);
        self.spawn(async move {
            // The caller waits without a limit, so the receiver still exists.
            let _ = sender.send(future.await);
        });
        receiver.recv().unwrap_or_else(|_| Err(failed()))
    }

    /// Runs a future as [`Control::run`] does, but waits no longer than `limit`. After that it returns `None`, and the
    /// future continues on the thread.
    pub(crate) fn run_within<T, F>(&self, limit: Option<Duration>, future: F) -> Option<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let Some(limit) = limit else {
            return Some(self.run(future));
        };
        if self.is_current() {
            return Some(Err(Error::protocol("the control thread cannot wait for itself")));
        }
        let (sender, receiver) = sync_channel(1);
        self.spawn(async move {
            // The caller may not wait any more.
            let _ = sender.send(future.await);
        });
        match receiver.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(failed())),
        }
    }
}

fn failed() -> Error {
    Error::OutcomeUnknown {
        why: "the control thread failed at this request".into(),
    }
}
