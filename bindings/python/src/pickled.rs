//! Pickles and their buffers, in the layout of requests and replies, for both sides.

use hotlease_wire::task::{FunctionKey, TaskLayout, TaskReply, TaskRequest, reply};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// A request or reply that has a pickle and buffers, without a function or results.
pub struct PickledBody<'a> {
    head: Vec<u8>,
    pickle: &'a [u8],
    pub layout: TaskLayout,
}

impl<'a> PickledBody<'a> {
    /// Makes a request of a kind. Returns `None` if it has too many buffers, or is larger than any memory.
    pub fn request(
        (kind, writable): (u8, bool),
        key: &FunctionKey,
        pickle: &'a [u8],
        lengths: &[usize],
    ) -> Option<Self> {
        let head = TaskRequest::head(kind, writable, key, 0, pickle.len(), lengths, &[])?;
        Self::new(head, pickle, lengths)
    }

    /// Makes a reply with a result. Returns `None` if it has too many buffers, or is larger than any memory.
    pub fn reply(pickle: &'a [u8], lengths: &[usize]) -> Option<Self> {
        let head = TaskReply::head(reply::PICKLED, 0, pickle.len(), lengths)?;
        Self::new(head, pickle, lengths)
    }

    fn new(head: Vec<u8>, pickle: &'a [u8], lengths: &[usize]) -> Option<Self> {
        let layout = TaskLayout::new(head.len(), pickle.len(), lengths.iter().copied())?;
        Some(Self { head, pickle, layout })
    }

    /// Writes head and pickle, and calls `copy` with the number and the place of each buffer.
    pub fn fill<E>(&self, into: &mut [u8], mut copy: impl FnMut(usize, &mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let mut end = self.layout.pickle + self.pickle.len();
        into[..self.head.len()].copy_from_slice(&self.head);
        into[self.layout.pickle..end].copy_from_slice(self.pickle);
        for (number, &(start, length)) in self.layout.buffers.iter().enumerate() {
            // Earlier content of the memory must not reach the other side.
            into[end..start].fill(0);
            end = start + length;
            copy(number, &mut into[start..end])?;
        }
        Ok(())
    }

    /// Returns the bytes before the only buffer; `None` if there is no buffer, or more than one.
    pub fn front(&self) -> Option<Vec<u8>> {
        let &[(until, _)] = &self.layout.buffers[..] else {
            return None;
        };
        let mut front = [&self.head, self.pickle].concat();
        front.resize(until, 0);
        Some(front)
    }
}

/// Pickle and buffers of an object, from `hotlease._called.dump_arguments`.
pub struct PickledObject<'py> {
    pickle: Bound<'py, PyBytes>,
    pub buffers: Vec<PyBuffer<u8>>,
    pub lengths: Vec<usize>,
}

impl<'py> PickledObject<'py> {
    /// Takes the pickle and its buffers.
    pub fn read(dumped: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (pickle, buffers): (Bound<'_, PyBytes>, Bound<'_, PyList>) = dumped.extract()?;
        let buffers = buffers.iter().map(|buffer| PyBuffer::<u8>::get(&buffer));
        let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
        let lengths = buffers.iter().map(|buffer| buffer.len_bytes()).collect();
        Ok(Self {
            pickle,
            buffers,
            lengths,
        })
    }

    /// Bytes of the pickle.
    pub fn pickle(&self) -> &[u8] {
        self.pickle.as_bytes()
    }

    /// Writes a request or reply of this object.
    pub fn fill(&self, body: &PickledBody<'_>, into: &mut [u8]) -> PyResult<()> {
        let py = self.pickle.py();
        body.fill(into, |number, into| self.buffers[number].copy_to_slice(py, into))
    }
}
