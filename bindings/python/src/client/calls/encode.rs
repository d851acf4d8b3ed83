//! Encoding of calls to requests: functions by their content, small plain arguments without a pickle, large arguments
//! into shared memory.

use crate::client::calls::native;
use crate::client::core::ExecutorCore;
use crate::client::futures::decode::{called, exception};
use crate::client::futures::inputs::{FutureInput, Gather};
use crate::client::memory::{BufferPool, Extent, PoolBuffer};
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::target::{Blob, Estimates, MemoChoice, Rerun, Target, TaskPlan};
use crate::locks::locked;
use crate::native::Native;
use crate::pickled::{PickledBody, PickledObject};
use crate::plain;
use hotlease_client::Invoker;
use hotlease_wire::task::{FunctionKey, key_of, request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Limit of the functions in each table of [`Functions`]; a full table is emptied.
const FUNCTIONS_MAX: usize = 4096;

/// Tables of the functions that were submitted.
#[derive(Default)]
pub struct Functions {
    known: Mutex<TargetTable>,
    wrappers: Mutex<WrapperTable>,
}

/// Function objects by their address, each with its target. The table keeps the objects alive.
type TargetTable = HashMap<usize, (Py<PyAny>, Arc<Target>)>;

/// Targets of functions that call one of the program's functions, by the key of the calling function and the name of
/// the program's function.
type WrapperTable = HashMap<(FunctionKey, Box<str>), Arc<Target>>;

/// Declarations of a function for its tasks: idempotent, retries, priority, memo.
type Declared<'py> = Option<(Option<bool>, Option<u16>, Option<i32>, Option<Bound<'py, PyAny>>)>;

/// Reads the value of `memo=`.
pub fn memo_of(asked: &Bound<'_, PyAny>) -> PyResult<MemoChoice> {
    if let Ok(asked) = asked.cast::<PyBool>() {
        return Ok(if asked.is_true() {
            MemoChoice::Content
        } else {
            MemoChoice::Not
        });
    }
    let text = asked.cast::<PyString>();
    let text = text.map_err(|_| PyTypeError::new_err("memo is a bool or, as a key, a string"))?;
    let key = blake3::derive_key("hotlease python key 1", text.to_str()?.as_bytes());
    Ok(MemoChoice::Key(Box::new(key)))
}

fn plan_of(declared: Declared<'_>) -> PyResult<TaskPlan> {
    let Some((idempotent, retries, priority, memo)) = declared else {
        return Ok(TaskPlan::default());
    };
    Ok(TaskPlan {
        retries,
        priority,
        memo: memo.map(|memo| memo_of(&memo)).transpose()?,
        rerun: idempotent.map(Rerun::from),
    })
}

/// Way in which a callable is sent.
pub enum Callable {
    /// Sent as the function of the task.
    Target(Arc<Target>),
    /// The callable has state of its own. So it is sent as the first argument of a function that calls it, and each
    /// task gets a fresh copy.
    Argument(Arc<Target>),
}

impl Functions {
    /// Returns the target of a call and the arguments that are sent to it.
    pub fn of_call<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        rerun: Rerun,
    ) -> PyResult<(Arc<Target>, Bound<'py, PyTuple>)> {
        let py = function.py();
        let (target, sent) = match self.find(function, rerun)? {
            Callable::Target(target) => (target, args.clone()),
            Callable::Argument(target) => {
                let all: Vec<_> = std::iter::once(function.clone()).chain(args.iter()).collect();
                (target, PyTuple::new(py, all)?)
            }
        };
        if !target.name.is_empty() {
            return Ok((target, sent));
        }
        let name: String = called(py, intern!(py, "name_of_call"))?
            .call1((function, args))?
            .extract()?;
        let mut wrappers = locked(&self.wrappers);
        if wrappers.len() >= FUNCTIONS_MAX {
            wrappers.clear();
        }
        let named = wrappers
            .entry((target.key, name.into()))
            .or_insert_with_key(|(key, name)| {
                Arc::new(Target {
                    key: *key,
                    blob: target.blob.clone(),
                    rerun: target.rerun,
                    name: name.clone(),
                    plan: target.plan.clone(),
                    content: OnceLock::new(),
                    estimates: Estimates::default(),
                })
            });
        Ok((named.clone(), sent))
    }

    /// Returns how to send this function.
    pub fn find(&self, function: &Bound<'_, PyAny>, rerun: Rerun) -> PyResult<Callable> {
        let address = function.as_ptr() as usize;
        // Addresses are unique, because the table keeps its objects alive.
        if let Some((_, target)) = self.lock_targets().get(&address) {
            return Ok(Callable::Target(target.clone()));
        }
        let py = function.py();
        let remember = |target: Arc<Target>| {
            let mut known = self.lock_targets();
            let forgotten = (known.len() >= FUNCTIONS_MAX).then(|| std::mem::take(&mut *known));
            known.insert(address, (function.clone().unbind(), target));
            drop(known);
            // Dropped outside the lock, because dropping objects runs Python code.
            drop(forgotten);
        };
        if let Ok(of_library) = function.cast::<Native>() {
            let plan = plan_of(function.getattr(intern!(py, "_hotlease_declared"))?.extract()?)?;
            let target = Arc::new(native::target(of_library.get(), plan, rerun));
            remember(target.clone());
            return Ok(Callable::Target(target));
        }
        let described = called(py, intern!(py, "describe"))?.call1((function,))?;
        let (blob, kind, name, declared): (Option<Bound<'_, PyBytes>>, u8, String, Declared<'_>) =
            described.extract()?;
        let plan = plan_of(declared)?;
        let rerun = plan.rerun.unwrap_or(rerun);
        let Some(blob) = blob else {
            let trampoline = called(py, intern!(py, "call"))?;
            return match self.find(&trampoline, rerun)? {
                Callable::Target(target) | Callable::Argument(target) => Ok(Callable::Argument(target)),
            };
        };
        let target = Arc::new(Target {
            key: key_of(blob.as_bytes()),
            blob: Blob::Pickle(blob.as_bytes().into()),
            rerun,
            name: name.into(),
            plan,
            content: OnceLock::new(),
            estimates: Estimates::default(),
        });
        if kind == 0 {
            remember(target.clone());
        }
        Ok(Callable::Target(target))
    }

    /// Visits the functions, for the garbage collector.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.known.try_lock() {
            Ok(known) => known.values().try_for_each(|(function, _)| visit.call(function)),
            // A table that another thread is changing is not garbage.
            Err(_) => Ok(()),
        }
    }

    /// Forgets the functions, for the garbage collector. The next call of a function describes it anew.
    pub fn clear(&self) {
        let known = self.known.try_lock().map(|mut known| std::mem::take(&mut *known));
        drop(known);
    }

    fn lock_targets(&self) -> MutexGuard<'_, TargetTable> {
        locked(&self.known)
    }
}

/// Encodes the request for a call of an executor, without its function, and collects the futures among its arguments.
pub fn call(
    (function, target): (&Bound<'_, PyAny>, &Target),
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    core: &Arc<ExecutorCore>,
) -> PyResult<(TaskPayload, Vec<FutureInput>)> {
    let mut gather = Gather::new(core);
    let mut payload = match target.blob {
        Blob::Pickle(_) => request(target, args, kwargs, &core.invoker, &core.pool, &mut gather)?,
        Blob::Library(_) => native::request((function, target), args, kwargs, core, &mut gather)?,
    };
    if core.guard().is_some() {
        payload.ask_guarded();
    }
    Ok((payload, gather.inputs))
}

/// Encodes the request for a call whose worker keeps the arguments. All arguments are in the pickle, and none is in
/// memory that is lent only for the call.
pub fn encode_kept(target: &Target, args: &Bound<'_, PyTuple>) -> PyResult<Box<[u8]>> {
    let py = args.py();
    let pickle = called(py, intern!(py, "dump_kept"))?
        .call1((args,))?
        .cast_into::<PyBytes>()?;
    let request = PickledBody::request((request::PICKLED, true), &target.key, pickle.as_bytes(), &[])
        .ok_or_else(|| PyValueError::new_err("the arguments are larger than any memory"))?;
    let mut bytes = vec![0; request.layout.end];
    request.fill(&mut bytes, |_, _| Ok::<_, PyErr>(()))?;
    Ok(bytes.into_boxed_slice())
}

/// Encodes the request for a call, without its function.
fn request<'py>(
    target: &Target,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    invoker: &Invoker,
    pool: &Arc<BufferPool>,
    gather: &mut Gather<'_>,
) -> PyResult<TaskPayload> {
    let mut failed = None;
    let mut instead = |value: &Bound<'py, PyAny>| {
        let looked = gather.look(value);
        looked.unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    };
    let limit = invoker.options().request_bytes as usize;
    let mut bytes = Vec::with_capacity(64);
    bytes.extend([request::PLAIN, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(target.key);
    if plain::encode_tuple(args, &mut bytes, limit, &mut instead)
        && plain_names(kwargs, &mut bytes, limit, &mut instead)
    {
        return Ok(TaskPayload::Own(bytes.into_boxed_slice()));
    }
    if let Some(error) = failed {
        return Err(error);
    }
    gather.inputs.clear();
    let pickle = || pickled(target, args, kwargs, limit, invoker, pool);
    gather.during(pickle)
}

fn plain_names<'py>(
    kwargs: Option<&Bound<'py, PyDict>>,
    bytes: &mut Vec<u8>,
    limit: usize,
    instead: &mut impl FnMut(&Bound<'py, PyAny>) -> Option<plain::Replacement<'py>>,
) -> bool {
    kwargs.is_none_or(|kwargs| {
        kwargs.iter().all(|(name, value)| {
            plain::encode(&name, bytes, limit) && plain::encode_with(&value, bytes, limit, instead)
        })
    })
}

fn pickled(
    target: &Target,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    limit: usize,
    invoker: &Invoker,
    pool: &Arc<BufferPool>,
) -> PyResult<TaskPayload> {
    let py = args.py();
    let dumped = called(py, intern!(py, "dump_arguments"))?.call1((args, kwargs))?;
    let object = PickledObject::read(&dumped)?;
    let given = match &object.buffers[..] {
        [buffer] if buffer.len_bytes() > limit => pool.find_given(buffer.buf_ptr().cast(), buffer.len_bytes()),
        _ => None,
    };
    // A task must not write to memory that the program sees.
    let kind = (request::PICKLED, given.is_none());
    let request = PickledBody::request(kind, &target.key, object.pickle(), &object.lengths)
        .ok_or_else(|| PyValueError::new_err("the arguments have too many buffers, or are larger than any memory"))?;
    put(py, &request, given, (invoker, pool), |into| object.fill(&request, into))
}

/// Puts a request into memory. If its only buffer is in memory that was given to the program, the request is put before
/// that buffer. Otherwise a small request, or one for which there is no shared memory, is put into private memory, and
/// any other request into shared memory.
pub fn put(
    py: Python<'_>,
    request: &PickledBody<'_>,
    given: Option<Extent>,
    (invoker, pool): (&Invoker, &Arc<BufferPool>),
    fill: impl FnOnce(&mut [u8]) -> PyResult<()>,
) -> PyResult<TaskPayload> {
    let before = given.zip(request.front());
    if let Some(request) = before.and_then(|(given, front)| given.put_before(0, &front)) {
        return Ok(TaskPayload::Shared(request.into()));
    }
    let end = request.layout.end;
    let memory = match end <= invoker.options().request_bytes as usize {
        true => None,
        false => shared(py, invoker, pool, end)?,
    };
    let Some(mut memory) = memory else {
        let mut bytes = vec![0; end];
        fill(&mut bytes)?;
        return Ok(TaskPayload::Own(bytes.into_boxed_slice()));
    };
    fill(&mut memory.room()[..end])?;
    Ok(TaskPayload::Shared(memory.into_extent(end).into()))
}

/// Takes shared memory of this size. Returns `None` if the pool is full or no descriptor is free: the request then
/// waits in private memory.
fn shared(py: Python<'_>, invoker: &Invoker, pool: &Arc<BufferPool>, bytes: usize) -> PyResult<Option<PoolBuffer>> {
    if pool.is_full() {
        return Ok(None);
    }
    match py.detach(|| pool.take(invoker, bytes)) {
        Ok(memory) => Ok(Some(memory)),
        Err(error) if error.lacks_descriptors() => Ok(None),
        Err(error) => Err(exception(py, &error)),
    }
}
