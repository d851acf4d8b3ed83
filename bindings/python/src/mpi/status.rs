//! Status of a message: `MPI.Status`.

use super::element;
use hotlease_comm::MessageStatus as Known;
use pyo3::prelude::*;

/// Any rank, as a source.
pub const ANY_SOURCE: i64 = -1;
/// Any tag.
pub const ANY_TAG: i64 = -1;
/// No rank: sends and receives do nothing.
pub const PROC_NULL: i64 = -2;
/// Value for a number that is not defined.
pub const UNDEFINED: i64 = -32766;

/// Source, tag and length of a message.
#[pyclass(module = "hotlease.MPI")]
#[derive(Clone)]
pub struct Status {
    #[pyo3(get, set)]
    source: i64,
    #[pyo3(get, set)]
    tag: i64,
    #[pyo3(get, set)]
    error: i64,
    bytes: u64,
    is_cancelled: bool,
}

impl Status {
    /// Fills the status when there is no message: after a receive from `PROC_NULL`, or a wait for an empty request.
    pub fn fill_empty(&mut self, source: i64) {
        *self = Self::new();
        self.source = source;
    }

    pub fn fill(&mut self, known: &Known) {
        *self = Self {
            source: i64::from(known.source),
            tag: i64::from(known.tag),
            error: 0,
            bytes: known.bytes,
            is_cancelled: false,
        };
    }

    pub fn fill_cancelled(&mut self) {
        *self = Self::new();
        self.is_cancelled = true;
    }
}

/// Fills the status of a call, if it has one, for a message.
pub fn tell(status: Option<&Bound<'_, Status>>, known: &Known) {
    if let Some(status) = status {
        status.borrow_mut().fill(known);
    }
}

/// Fills the status of a call, if it has one, after a receive from `MPI.PROC_NULL`.
pub fn fill_null_status(status: Option<&Bound<'_, Status>>) {
    if let Some(status) = status {
        status.borrow_mut().fill_empty(PROC_NULL);
    }
}

#[pymethods]
impl Status {
    #[new]
    pub fn new() -> Self {
        Self {
            source: ANY_SOURCE,
            tag: ANY_TAG,
            error: 0,
            bytes: 0,
            is_cancelled: false,
        }
    }

    fn _copy_of(&mut self, other: &Self) {
        *self = other.clone();
    }

    fn Get_source(&self) -> i64 {
        self.source
    }

    fn Set_source(&mut self, source: i64) {
        self.source = source;
    }

    fn Get_tag(&self) -> i64 {
        self.tag
    }

    fn Set_tag(&mut self, tag: i64) {
        self.tag = tag;
    }

    fn Get_error(&self) -> i64 {
        self.error
    }

    fn Set_error(&mut self, error: i64) {
        self.error = error;
    }

    /// Number of elements in the message; `MPI.UNDEFINED` if the message is not a whole number of elements.
    #[pyo3(signature = (datatype=None))]
    fn Get_count(&self, datatype: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
        let size = datatype.map_or(Ok(1), |datatype| {
            element::element_type(datatype).map(|kind| kind.size())
        })? as u64;
        Ok(match size {
            0 if self.bytes == 0 => 0,
            0 => UNDEFINED,
            size if self.bytes.is_multiple_of(size) => (self.bytes / size) as i64,
            _ => UNDEFINED,
        })
    }

    /// Sets the number of elements in the message.
    fn Set_elements(&mut self, datatype: &Bound<'_, PyAny>, count: u64) -> PyResult<()> {
        self.bytes = count.saturating_mul(element::element_type(datatype)?.size() as u64);
        Ok(())
    }

    fn Get_elements(&self, datatype: &Bound<'_, PyAny>) -> PyResult<i64> {
        self.Get_count(Some(datatype))
    }

    /// Bytes of the message.
    #[getter]
    fn count(&self) -> u64 {
        self.bytes
    }

    fn Is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.is_cancelled
    }

    fn __repr__(&self) -> String {
        format!("Status(source={}, tag={}, count={})", self.source, self.tag, self.bytes)
    }
}
