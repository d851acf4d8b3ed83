//! From calls to requests: the function by its content, small plain arguments without a pickle, large ones into shared
//! memory.

use super::decode::called;
use super::job::{Payload, Target};
use super::memory::Pool;
use crate::format::{Layout, Request, key_of, request};
use crate::plain;
use hotlease_client::Invoker;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Functions that are remembered by identity; beyond, all are looked at anew.
const FUNCTIONS_MAX: usize = 4096;

/// What is known of the functions that were submitted.
#[derive(Default)]
pub struct Functions(Mutex<Known>);

/// By address: what is there, which is kept alive, and how it is sent.
type Known = HashMap<usize, (Py<PyAny>, Arc<Target>)>;

/// How a callable is sent.
pub enum Callable {
    /// By itself.
    Target(Arc<Target>),
    /// As the first argument of a function that calls it: it has a state of its own, which each task gets afresh.
    Argument(Arc<Target>),
}

impl Functions {
    /// How to send this one.
    pub fn find(&self, function: &Bound<'_, PyAny>, idempotent: bool) -> PyResult<Callable> {
        let address = function.as_ptr() as usize;
        // The table keeps what it knows alive, so that an address means one object.
        if let Some((_, target)) = self.known().get(&address) {
            return Ok(Callable::Target(target.clone()));
        }
        let py = function.py();
        let described = called(py, intern!(py, "describe"))?.call1((function,))?;
        let (blob, kind, declared): (Option<Bound<'_, PyBytes>>, u8, Option<bool>) = described.extract()?;
        let idempotent = declared.unwrap_or(idempotent);
        let Some(blob) = blob else {
            let trampoline = called(py, intern!(py, "call"))?;
            return match self.find(&trampoline, idempotent)? {
                Callable::Target(target) | Callable::Argument(target) => Ok(Callable::Argument(target)),
            };
        };
        let target = Arc::new(Target {
            key: key_of(blob.as_bytes()),
            blob: blob.as_bytes().into(),
            idempotent,
        });
        if kind == 0 {
            let mut known = self.known();
            let forgotten = (known.len() >= FUNCTIONS_MAX).then(|| std::mem::take(&mut *known));
            known.insert(address, (function.clone().unbind(), target.clone()));
            drop(known);
            // Outside the lock: dropping objects runs code of Python's.
            drop(forgotten);
        }
        Ok(Callable::Target(target))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request for a call, without its function.
pub fn request(
    target: &Target,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    invoker: &Invoker,
    pool: &Arc<Pool>,
) -> PyResult<Payload> {
    let limit = invoker.options().request_bytes as usize;
    let mut bytes = Vec::with_capacity(64);
    bytes.extend([request::PLAIN, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(target.key);
    if plain::encode_tuple(args, &mut bytes, limit) && plain_names(kwargs, &mut bytes, limit) {
        return Ok(Payload::Small(bytes.into_boxed_slice()));
    }
    pickled(target, args, kwargs, limit, invoker, pool)
}

fn plain_names(kwargs: Option<&Bound<'_, PyDict>>, bytes: &mut Vec<u8>, limit: usize) -> bool {
    kwargs.is_none_or(|kwargs| {
        kwargs
            .iter()
            .all(|(name, value)| plain::encode(&name, bytes, limit) && plain::encode(&value, bytes, limit))
    })
}

fn pickled(
    target: &Target,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    limit: usize,
    invoker: &Invoker,
    pool: &Arc<Pool>,
) -> PyResult<Payload> {
    let py = args.py();
    let dumped = called(py, intern!(py, "dump_arguments"))?.call1((args, kwargs))?;
    let (pickle, buffers): (Bound<'_, PyBytes>, Bound<'_, PyList>) = dumped.extract()?;
    let pickle = pickle.as_bytes();
    let buffers = buffers.iter().map(|buffer| PyBuffer::<u8>::get(&buffer));
    let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
    let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.len_bytes()).collect();
    let whole = |kind| {
        let head = Request::head(kind, true, &target.key, 0, pickle.len(), &lengths)?;
        let layout = Layout::new(head.len(), pickle.len(), lengths.iter().copied())?;
        Some((head, layout))
    };
    let (head, layout) = whole(request::PICKLED).ok_or_else(|| {
        PyValueError::new_err("the arguments have too many buffers, or are larger than any memory")
    })?;
    let fill = |bytes: &mut [u8]| -> PyResult<()> {
        bytes[..head.len()].copy_from_slice(&head);
        bytes[layout.pickle..][..pickle.len()].copy_from_slice(pickle);
        for (buffer, &(start, length)) in buffers.iter().zip(&layout.buffers) {
            buffer.copy_to_slice(py, &mut bytes[start..][..length])?;
        }
        Ok(())
    };
    if layout.end <= limit {
        let mut bytes = vec![0; layout.end];
        fill(&mut bytes)?;
        return Ok(Payload::Small(bytes.into_boxed_slice()));
    }
    let taken = py.detach(|| pool.take(invoker, layout.end));
    let mut memory = taken.map_err(|error| super::decode::exception(py, &error))?;
    fill(memory.bytes_mut())?;
    Ok(Payload::Large(Arc::new(memory)))
}
