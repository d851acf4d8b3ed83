//! Operators of reductions: `MPI.Op`, and functions of the program.

use super::buffer_spec::BufferPart;
use super::datatype::Datatype;
use super::failure;
use hotlease_comm::{Datatype as Kind, Operator};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

/// Last exception of a function of the program.
#[derive(Clone, Default)]
pub struct RaisedError(Arc<Mutex<Option<PyErr>>>);

impl RaisedError {
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// Operator that reduces two elements to one.
#[pyclass(frozen, module = "hotlease.MPI")]
pub struct Op {
    name: String,
    /// `None` if no reduction has this name.
    operator: Option<Operator>,
    /// Function for two objects.
    call: Py<PyAny>,
    raised: Option<RaisedError>,
}

impl Op {
    /// Returns the operator for the elements of a buffer, and the store for its exceptions if it is a function in
    /// Python.
    pub fn operator(&self, py: Python<'_>, part: &BufferPart) -> PyResult<(Operator, Option<RaisedError>)> {
        if let (None, Some(code)) = (&self.raised, part.reduced_as)
            && let Some(by_numpy) = self.by_numpy(py, code)?
        {
            return Ok(by_numpy);
        }
        match &self.operator {
            Some(operator) => Ok((operator.clone(), self.raised.clone())),
            None => Err(failure::error(
                py,
                "Operator",
                format!("{} is no operator of a reduction", self.name),
            )),
        }
    }
}

impl Op {
    /// Returns this predefined operator, computed by a function of numpy; `None` if numpy has no function for the type.
    fn by_numpy(&self, py: Python<'_>, code: &str) -> PyResult<Option<(Operator, Option<RaisedError>)>> {
        let functions = py.import("hotlease.MPI._reductions")?;
        let function = functions.call_method1("function", (&*self.name, code))?;
        if function.is_none() {
            return Ok(None);
        }
        let raised = RaisedError::default();
        Ok(Some((of_function(function.unbind(), &raised, true), Some(raised))))
    }
}

/// Makes an operator from a function in Python.
fn of_function(function: Py<PyAny>, raised: &RaisedError, commutes: bool) -> Operator {
    let raised = raised.clone();
    let user = move |left: &[u8], right: &mut [u8], kind: Kind| reduce(&function, &raised, left, right, kind);
    Operator::User {
        function: Arc::new(user),
        commutes,
    }
}

fn predefined(name: &str) -> Option<Operator> {
    Some(match name {
        "MPI_SUM" => Operator::Sum,
        "MPI_PROD" => Operator::Prod,
        "MPI_MIN" => Operator::Min,
        "MPI_MAX" => Operator::Max,
        "MPI_BAND" => Operator::BitAnd,
        "MPI_BOR" => Operator::BitOr,
        "MPI_BXOR" => Operator::BitXor,
        "MPI_LAND" => Operator::LogicalAnd,
        "MPI_LOR" => Operator::LogicalOr,
        "MPI_LXOR" => Operator::LogicalXor,
        "MPI_MINLOC" => Operator::MinLoc,
        "MPI_MAXLOC" => Operator::MaxLoc,
        _ => return None,
    })
}

#[pymethods]
impl Op {
    /// Makes a predefined operator from its name and its function for two objects.
    #[new]
    fn new(name: &str, call: Py<PyAny>) -> Self {
        Self {
            operator: predefined(name),
            name: name.into(),
            call,
            raised: None,
        }
    }

    /// Makes an operator from a function of the program.
    ///
    /// `function(a, b, datatype)` gets two buffers of elements in the order of their ranks, and writes `a op b` to `b`;
    /// both buffers are valid until the function returns. In lower-case calls, the function gets two objects and None,
    /// and returns an object.
    #[staticmethod]
    #[pyo3(signature = (function, commute=false))]
    fn Create(py: Python<'_>, function: Py<PyAny>, commute: bool) -> Self {
        let raised = RaisedError::default();
        Self {
            name: String::new(),
            call: function.clone_ref(py),
            operator: Some(of_function(function, &raised, commute)),
            raised: Some(raised),
        }
    }

    fn Free(&self) {}

    fn Is_commutative(&self) -> bool {
        self.operator.as_ref().is_some_and(Operator::commutes)
    }

    #[getter]
    fn is_commutative(&self) -> bool {
        self.Is_commutative()
    }

    #[getter]
    fn is_predefined(&self) -> bool {
        self.raised.is_none()
    }

    /// Applies the operator to two objects.
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        x: Bound<'py, PyAny>,
        y: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.raised {
            None => self.call.bind(py).call1((x, y)),
            Some(_) => self.call.bind(py).call1((x, y, py.None())),
        }
    }

    /// Pickles a predefined operator, by its name.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.raised.is_some() {
            return Err(pyo3::exceptions::PyTypeError::new_err(
                "an operator that Op.Create made cannot be sent to another process: call Op.Create there, too",
            ));
        }
        let name = self.name.trim_start_matches("MPI_");
        Ok(pyo3::types::PyString::new(py, name).into_any())
    }

    fn __bool__(&self) -> bool {
        self.name != "MPI_OP_NULL"
    }

    fn __repr__(&self) -> String {
        match self.name.as_str() {
            "" => format!("MPI.Op.Create(commute={})", self.Is_commutative()),
            name => name.replacen('_', ".", 1),
        }
    }
}

/// Calls the function of the program. If the function raises, panics without a message on stderr; the library reports
/// the panic to all ranks.
fn reduce(function: &Py<PyAny>, raised: &RaisedError, left: &[u8], right: &mut [u8], kind: Kind) {
    let called = Python::try_attach(|py| {
        called(py, function, left, right, kind).map_err(|error| {
            let text = error.to_string();
            raised.put(error);
            text
        })
    });
    let problem = match called {
        Some(Ok(())) => return,
        Some(Err(text)) => text,
        None => "Python has ended".into(),
    };
    resume_unwind(Box::new(problem));
}

fn called(py: Python<'_>, function: &Py<PyAny>, left: &[u8], right: &mut [u8], kind: Kind) -> PyResult<()> {
    // SAFETY: both buffers live as long as this call, and the views are released at the end of the call.
    let (first, second) = unsafe {
        let (start, bytes) = (left.as_ptr().cast_mut().cast(), left.len() as isize);
        let first = ffi::PyMemoryView_FromMemory(start, bytes, ffi::PyBUF_READ);
        let (start, bytes) = (right.as_mut_ptr().cast(), right.len() as isize);
        let second = ffi::PyMemoryView_FromMemory(start, bytes, ffi::PyBUF_WRITE);
        (
            Bound::from_owned_ptr_or_err(py, first)?,
            Bound::from_owned_ptr_or_err(py, second)?,
        )
    };
    let done = function.bind(py).call1((&first, &second, Datatype::of(kind)));
    if let Err(error) = &done
        && let Some(traceback) = error.traceback(py)
    {
        // The frames of the traceback hold objects that the function made from the views, such as arrays. A view cannot
        // be released while such an object exists.
        py.import("traceback")?.call_method1("clear_frames", (traceback,))?;
    }
    for view in [first, second] {
        view.call_method0("release").map_err(|_| {
            PyRuntimeError::new_err(
                "a function of Op.Create kept an operand, which is valid only until the function returns: keep a copy",
            )
        })?;
    }
    done.map(drop)
}
