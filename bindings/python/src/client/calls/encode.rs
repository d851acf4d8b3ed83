//! Encoding of calls to requests: the function by its content, small plain arguments without a pickle, large ones into
//! shared memory.

use crate::client::calls::native;
use crate::client::core::ExecutorCore;
use crate::client::futures::decode::called;
use crate::client::futures::inputs::{FutureInput, Gather};
use crate::client::memory::{BufferPool, Extent, PoolBuffer};
use crate::client::tasks::expected::Expected;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::target::{Blob, MemoChoice, Target, TaskPlan};
use crate::native::Native;
use crate::plain;
use hotlease_client::Invoker;
use hotlease_wire::task::{TaskLayout, TaskRequest, key_of, request};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of functions that are remembered by identity; when it is reached, the table is emptied.
const FUNCTIONS_MAX: usize = 4096;

/// Table of the functions that were submitted.
#[derive(Default)]
pub struct Functions(Mutex<TargetTable>);

/// Functions by the address of their object, which is kept alive, and the way each is sent.
type TargetTable = HashMap<usize, (Py<PyAny>, Arc<Target>)>;

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
        idempotent,
        retries,
        priority,
        memo: memo.map(|memo| memo_of(&memo)).transpose()?,
    })
}

/// Way in which a callable is sent.
pub enum Callable {
    /// Sent as the function of the task.
    Target(Arc<Target>),
    /// Sent as the first argument of a function that calls it: the callable has its own state, which each task gets
    /// afresh.
    Argument(Arc<Target>),
}

impl Functions {
    /// Returns how to send this function.
    pub fn find(&self, function: &Bound<'_, PyAny>, idempotent: bool) -> PyResult<Callable> {
        let address = function.as_ptr() as usize;
        // The table keeps its objects alive, so that an address means one object.
        if let Some((_, target)) = self.known().get(&address) {
            return Ok(Callable::Target(target.clone()));
        }
        let py = function.py();
        let remember = |target: Arc<Target>| {
            let mut known = self.known();
            let forgotten = (known.len() >= FUNCTIONS_MAX).then(|| std::mem::take(&mut *known));
            known.insert(address, (function.clone().unbind(), target));
            drop(known);
            // Outside the lock: dropping objects runs Python code.
            drop(forgotten);
        };
        if let Ok(of_library) = function.cast::<Native>() {
            let plan = plan_of(function.getattr(intern!(py, "_hotlease_declared"))?.extract()?)?;
            let target = Arc::new(native::target(of_library.get(), plan, idempotent));
            remember(target.clone());
            return Ok(Callable::Target(target));
        }
        let described = called(py, intern!(py, "describe"))?.call1((function,))?;
        let (blob, kind, name, declared): (Option<Bound<'_, PyBytes>>, u8, String, Declared<'_>) =
            described.extract()?;
        let plan = plan_of(declared)?;
        let idempotent = plan.idempotent.unwrap_or(idempotent);
        let Some(blob) = blob else {
            let trampoline = called(py, intern!(py, "call"))?;
            return match self.find(&trampoline, idempotent)? {
                Callable::Target(target) | Callable::Argument(target) => Ok(Callable::Argument(target)),
            };
        };
        let target = Arc::new(Target {
            key: key_of(blob.as_bytes()),
            blob: Blob::Pickle(blob.as_bytes().into()),
            idempotent,
            name: name.into(),
            plan,
            content: OnceLock::new(),
            expected: Expected::default(),
        });
        if kind == 0 {
            remember(target.clone());
        }
        Ok(Callable::Target(target))
    }

    /// Visits the functions, for the garbage collector.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.0.try_lock() {
            Ok(known) => known.values().try_for_each(|(function, _)| visit.call(function)),
            // A table that another thread is changing is not garbage.
            Err(_) => Ok(()),
        }
    }

    /// Forgets the functions, for the garbage collector: they are described anew.
    pub fn clear(&self) {
        let known = self.0.try_lock().map(|mut known| std::mem::take(&mut *known));
        drop(known);
    }

    fn known(&self) -> MutexGuard<'_, TargetTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    let payload = match target.blob {
        Blob::Pickle(_) => request(target, args, kwargs, &core.invoker, &core.pool, &mut gather)?,
        Blob::Library(_) => native::request((function, target), args, kwargs, core, &mut gather)?,
    };
    Ok((payload, gather.inputs))
}

/// Encodes the request for a call whose worker keeps the arguments: all of them are in the pickle, none in memory that is
/// lent for the call.
pub fn kept(target: &Target, args: &Bound<'_, PyTuple>) -> PyResult<Box<[u8]>> {
    let py = args.py();
    let pickle = called(py, intern!(py, "dump_kept"))?
        .call1((args,))?
        .cast_into::<PyBytes>()?;
    let pickle = pickle.as_bytes();
    let layout = || {
        let head = TaskRequest::head(request::PICKLED, true, &target.key, 0, pickle.len(), &[], &[])?;
        let layout = TaskLayout::new(head.len(), pickle.len(), [])?;
        Some((head, layout))
    };
    let (head, layout) = layout().ok_or_else(|| PyValueError::new_err("the arguments are larger than any memory"))?;
    let mut bytes = vec![0; layout.end];
    bytes[..head.len()].copy_from_slice(&head);
    bytes[layout.pickle..][..pickle.len()].copy_from_slice(pickle);
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
    let (pickle, buffers): (Bound<'_, PyBytes>, Bound<'_, PyList>) = dumped.extract()?;
    let pickle = pickle.as_bytes();
    let buffers = buffers.iter().map(|buffer| PyBuffer::<u8>::get(&buffer));
    let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
    let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.len_bytes()).collect();
    let given = match &buffers[..] {
        [buffer] if buffer.len_bytes() > limit => pool.given(buffer.buf_ptr().cast(), buffer.len_bytes()),
        _ => None,
    };
    let whole = |kind| {
        // A task may not write to memory that the program sees.
        let head = TaskRequest::head(kind, given.is_none(), &target.key, 0, pickle.len(), &lengths, &[])?;
        let layout = TaskLayout::new(head.len(), pickle.len(), lengths.iter().copied())?;
        Some((head, layout))
    };
    let (head, layout) = whole(request::PICKLED)
        .ok_or_else(|| PyValueError::new_err("the arguments have too many buffers, or are larger than any memory"))?;
    if let Some(request) = given.and_then(|given| before(&given, &head, pickle, &layout)) {
        return Ok(TaskPayload::Shared(request.into()));
    }
    let fill = |bytes: &mut [u8]| -> PyResult<()> {
        bytes[..head.len()].copy_from_slice(&head);
        bytes[layout.pickle..][..pickle.len()].copy_from_slice(pickle);
        for (buffer, &(start, length)) in buffers.iter().zip(&layout.buffers) {
            buffer.copy_to_slice(py, &mut bytes[start..][..length])?;
        }
        Ok(())
    };
    let memory = match layout.end <= limit {
        true => None,
        false => shared(py, invoker, pool, layout.end)?,
    };
    let Some(mut memory) = memory else {
        let mut bytes = vec![0; layout.end];
        fill(&mut bytes)?;
        return Ok(TaskPayload::Own(bytes.into_boxed_slice()));
    };
    fill(&mut memory.room()[..layout.end])?;
    Ok(TaskPayload::Shared(memory.into_extent(layout.end).into()))
}

/// Builds a request whose only buffer is in memory that was given to the program: the rest is put before it. `None`
/// without room.
pub fn before(given: &Extent, head: &[u8], pickle: &[u8], layout: &TaskLayout) -> Option<Extent> {
    let &[(until, _)] = &layout.buffers[..] else {
        return None;
    };
    if !given.has_room_before(0, until) {
        return None;
    }
    let mut front = [head, pickle].concat();
    front.resize(until, 0);
    given.put_before(0, &front)
}

/// Takes shared memory of this size. `None` while others use as many buffers as there may be: a copy of the request then
/// waits for one.
pub fn shared(py: Python<'_>, invoker: &Invoker, pool: &Arc<BufferPool>, bytes: usize) -> PyResult<Option<PoolBuffer>> {
    if pool.is_full() {
        return Ok(None);
    }
    match py.detach(|| pool.take(invoker, bytes)) {
        Ok(memory) => Ok(Some(memory)),
        Err(error) if error.lacks_descriptors() => Ok(None),
        Err(error) => Err(crate::client::futures::decode::exception(py, &error)),
    }
}
