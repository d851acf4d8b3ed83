//! `hotlease.RemoteMemory`: memory of other nodes.

use crate::client::calls::options::seconds;
use crate::client::futures::decode::exception;
use crate::locks::locked;
use hotlease_client::{Error, LeaseOptions, MemoryOptions, MemoryTransfer, RemoteMemory};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::PathBuf;
use std::sync::Mutex;

/// The base of `hotlease.RemoteMemory`.
#[pyclass(subclass, frozen, module = "hotlease._core")]
pub struct MemoryBase {
    /// `None` once it was given back.
    memory: Mutex<Option<RemoteMemory>>,
}

/// A copy that was begun, with the object whose bytes it uses.
#[pyclass(frozen, module = "hotlease._core")]
pub struct MemoryCopy(Mutex<Option<(MemoryTransfer<()>, Bytes)>>);

/// The bytes of a Python object, which is kept as it is meanwhile.
struct Bytes {
    /// Keeps the object.
    _buffer: Option<PyBuffer<u8>>,
    start: *mut u8,
    length: usize,
}

// SAFETY: the address is only used while the object is kept; releasing the object takes Python's lock.
unsafe impl Send for Bytes {}

impl Bytes {
    /// The bytes of an object, which must be one contiguous piece, and writable if `is_target`.
    fn of(object: &Bound<'_, PyAny>, is_target: bool) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the bytes must be contiguous"));
        }
        if is_target && buffer.readonly() {
            return Err(PyBufferError::new_err("the object to read into cannot be written"));
        }
        Ok(Self {
            start: buffer.buf_ptr().cast(),
            length: buffer.len_bytes(),
            _buffer: Some(buffer),
        })
    }

    /// The same bytes for another thread, on which the object is not released.
    fn for_thread(&self) -> Self {
        Self {
            _buffer: None,
            start: self.start,
            length: self.length,
        }
    }

    /// # Safety
    /// The object is kept, and no other thread writes to the bytes.
    unsafe fn slice(&self) -> &[u8] {
        match self.length {
            0 => &[],
            // SAFETY: the caller's promise.
            length => unsafe { std::slice::from_raw_parts(self.start, length) },
        }
    }

    /// # Safety
    /// The object is kept, and no other thread uses the bytes.
    unsafe fn slice_mut(&mut self) -> &mut [u8] {
        match self.length {
            0 => &mut [],
            // SAFETY: the caller's promise.
            length => unsafe { std::slice::from_raw_parts_mut(self.start, length) },
        }
    }
}

#[pymethods]
impl MemoryBase {
    #[new]
    #[pyo3(signature = (size, options))]
    fn new(py: Python<'_>, size: u64, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = read(options)?;
        let allocated = py.detach(|| RemoteMemory::allocate(size, options));
        let memory = allocated.map_err(|error| exception(py, &error))?;
        Ok(Self {
            memory: Mutex::new(Some(memory)),
        })
    }

    fn _size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.held(py)?.size_bytes())
    }

    fn _transport(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.held(py)?.transport())
    }

    /// Fills a writable object of bytes with the bytes from `offset` on.
    fn _read_into(&self, py: Python<'_>, offset: u64, target: &Bound<'_, PyAny>) -> PyResult<()> {
        let (memory, kept) = (self.held(py)?, Bytes::of(target, true)?);
        let mut target = kept.for_thread();
        // SAFETY: the object is kept by `kept`; a program that uses it meanwhile gets old or new bytes.
        let read = py.detach(move || memory.read(offset, unsafe { target.slice_mut() }));
        drop(kept);
        read.map_err(|error| exception(py, &error))
    }

    /// Copies an object of bytes to the bytes from `offset` on.
    fn _write(&self, py: Python<'_>, offset: u64, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let (memory, kept) = (self.held(py)?, Bytes::of(source, false)?);
        let source = kept.for_thread();
        // SAFETY: the object is kept by `kept`; a program that writes to it meanwhile sends old or new bytes.
        let written = py.detach(move || memory.write(offset, unsafe { source.slice() }));
        drop(kept);
        written.map_err(|error| exception(py, &error))
    }

    /// Begins to fill a writable object of bytes.
    fn _begin_read(&self, py: Python<'_>, offset: u64, target: &Bound<'_, PyAny>) -> PyResult<MemoryCopy> {
        let kept = Bytes::of(target, true)?;
        let mut target = kept.for_thread();
        self.begin(py, offset, kept, move |memory| {
            // SAFETY: the object is kept by the `MemoryCopy` until the copy has ended.
            let target = unsafe { target.slice_mut() };
            memory.read(offset, target)
        })
    }

    /// Begins to copy an object of bytes.
    fn _begin_write(&self, py: Python<'_>, offset: u64, source: &Bound<'_, PyAny>) -> PyResult<MemoryCopy> {
        let kept = Bytes::of(source, false)?;
        let source = kept.for_thread();
        self.begin(py, offset, kept, move |memory| {
            // SAFETY: the object is kept by the `MemoryCopy` until the copy has ended.
            let source = unsafe { source.slice() };
            memory.write(offset, source)
        })
    }

    /// Gives the memory back; returns the nanoseconds for which it was held, or `None` if it was given back before.
    fn _close(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let Some(memory) = locked(&self.memory).take() else {
            return Ok(None);
        };
        let used = py.detach(|| memory.deallocate());
        used.map(|used| Some(used.allocated_ns))
            .map_err(|error| exception(py, &error))
    }
}

impl MemoryBase {
    fn held(&self, py: Python<'_>) -> PyResult<RemoteMemory> {
        let memory = locked(&self.memory).clone();
        memory.ok_or_else(|| {
            exception(
                py,
                &Error::MemoryLost {
                    why: "it was closed".into(),
                },
            )
        })
    }

    fn begin(
        &self,
        py: Python<'_>,
        offset: u64,
        kept: Bytes,
        copy: impl FnOnce(&RemoteMemory) -> Result<(), Error> + Send + 'static,
    ) -> PyResult<MemoryCopy> {
        let memory = self.held(py)?;
        let begun = py.detach(|| {
            memory.check_span(offset, kept.length)?;
            memory.begin(copy)
        });
        let begun = begun.map_err(|error| exception(py, &error))?;
        Ok(MemoryCopy(Mutex::new(Some((begun, kept)))))
    }
}

#[pymethods]
impl MemoryCopy {
    /// Waits until the copy has ended; later calls do nothing.
    fn _wait(&self, py: Python<'_>) -> PyResult<()> {
        let Some((transfer, kept)) = locked(&self.0).take() else {
            return Ok(());
        };
        let ended = py.detach(|| transfer.wait());
        drop(kept);
        ended.map_err(|error| exception(py, &error))
    }
}

impl Drop for MemoryCopy {
    fn drop(&mut self) {
        // The object must be kept until the copy has ended. Its error is lost, as that of a future whose result is not asked for.
        if let Some((transfer, kept)) = locked(&self.0).take() {
            Python::attach(|py| {
                let _ = py.detach(|| transfer.wait());
                drop(kept);
            });
        }
    }
}

fn read(options: &Bound<'_, PyDict>) -> PyResult<MemoryOptions> {
    let mut read = MemoryOptions::default();
    let lease: &mut LeaseOptions = &mut read.lease;
    for (name, value) in options {
        let name = name.cast_into::<PyString>()?;
        match name.to_str()? {
            "nodes" => read.nodes = value.extract()?,
            "stripe" => read.stripe_bytes = value.extract()?,
            "ttl" => lease.ttl = seconds("ttl", &value)?,
            "patience" => lease.patience = seconds("patience", &value)?,
            "manager" => lease.manager = Some(value.extract()?),
            "identity" => lease.identity = Some(value.extract::<PathBuf>()?),
            "runtime_dir" => lease.runtime_dir = Some(value.extract::<PathBuf>()?),
            "transport" => lease.transport = Some(value.extract()?),
            "label" => lease.label = value.extract()?,
            "job" => lease.job = value.extract()?,
            other => return Err(PyTypeError::new_err(format!("RemoteMemory has no option {other:?}"))),
        }
    }
    Ok(read)
}
