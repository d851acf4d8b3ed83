//! A native function as a Python object: the base of `hotlease.NativeFunction`.

use super::libraries::{self, NativeCall};
use super::view::InputView;
use super::{ROOM_MIN, failed, produced};
use hotlease_client::{Code, Error, Interface};
use hotlease_wire::task::{ALIGNMENT, FunctionKey, KEY_BYTES};
use hotlease_worker::{Context, MemoryPlace};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PySlice};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

thread_local! {
    /// Context for functions that this thread itself calls.
    static CONTEXT: RefCell<Context> = RefCell::new(Context::new(0, 1, &format!("uid:{}", uid()), Arc::default()));
}

fn uid() -> u32 {
    // SAFETY: it cannot fail.
    unsafe { libc::getuid() }
}

/// Bytes of a result, and the recipe that makes an object from them.
type CallResult<'py> = (Bound<'py, PyAny>, Bound<'py, PyBytes>);

/// Size and recipe of a function's result.
pub enum NativeResult {
    /// Fixed room, and recipe.
    Fixed(u64, Box<[u8]>),
    /// Room for as many items as the input has; this pickle contains their dtype.
    AsInput(Box<[u8]>),
    /// Room and recipe that the method `_output_of` returns for each input.
    Asked,
}

/// A native function; see the module.
#[pyclass(subclass, frozen, module = "hotlease._core")]
pub struct Native {
    pub code: Code,
    pub name: Box<str>,
    pub interface: Interface,
    pub output: NativeResult,
    is_idempotent: bool,
}

impl Native {
    /// Key of the function's library.
    pub fn key(&self) -> FunctionKey {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&self.code.hash().0[..KEY_BYTES]);
        key
    }
}

#[pymethods]
impl Native {
    /// Makes a function of a library, which is given as `bytes`, or else as the file `library`. `output`: room and
    /// recipe. A room of `None` means [`NativeResult::AsInput`]; an `output` of `None` means [`NativeResult::Asked`].
    #[new]
    fn new(
        py: Python<'_>,
        library: &str,
        name: &str,
        bytes: Option<Vec<u8>>,
        output: Option<(Option<u64>, Vec<u8>)>,
    ) -> PyResult<Self> {
        let open = || -> Result<(Code, Interface, bool), Error> {
            let code = match bytes {
                Some(bytes) => Code::from_bytes(library, bytes),
                None => Code::open(library),
            }?;
            let found = code.function(name)?;
            let (interface, is_idempotent) = (found.interface, found.idempotent);
            Ok((code, interface, is_idempotent))
        };
        let (code, interface, is_idempotent) = py.detach(open).map_err(|error| refused(py, &error))?;
        Ok(Self {
            code,
            name: name.into(),
            interface,
            output: match output {
                Some((Some(room), recipe)) => NativeResult::Fixed(room, recipe.into()),
                Some((None, dtype)) => NativeResult::AsInput(dtype.into()),
                None => NativeResult::Asked,
            },
            is_idempotent,
        })
    }

    /// Whether the library declares that the function may run twice.
    #[getter]
    fn _is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// Bytes of the library.
    fn _bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.code.bytes())
    }

    /// Calls the function in this process; returns the bytes of its result, and the recipe that makes an object from
    /// them.
    fn _call<'py>(slf: &Bound<'py, Self>, value: &Bound<'py, PyAny>) -> PyResult<CallResult<'py>> {
        let (py, this) = (slf.py(), slf.get());
        let view = InputView::of(value)?;
        let output_of = slf.as_any().call_method1(intern!(py, "_output_of"), (value,))?;
        let (room, recipe): (usize, Bound<'_, PyBytes>) = output_of.extract()?;
        let key = this.key();
        let loaded = py.detach(|| match libraries::find(&key) {
            Some(library) => Ok(library),
            None => libraries::load(key, this.code.bytes()),
        });
        let cannot = |why: &str| {
            let text = format!("{} cannot be loaded here: {why}", this.code.name());
            failed(py, "TaskError", (text, false))
        };
        let library = loaded.map_err(|why| cannot(&why))?;
        let function = library
            .function(&this.name)
            .ok_or_else(|| cannot("its function is gone"))?;
        let capacity = room.max(ROOM_MIN);
        let whole = capacity
            .checked_add(ALIGNMENT)
            .filter(|bytes| isize::try_from(*bytes).is_ok());
        let whole = whole.ok_or_else(|| PyMemoryError::new_err("the result is larger than any memory"))?;
        let block = PyByteArray::new_with(py, whole, |_| Ok(()))?;
        // SAFETY: the block was just made and is not shared yet: no other code moves or reads it during the write.
        let bytes = unsafe { block.as_bytes_mut() };
        let offset = bytes.as_ptr().align_offset(ALIGNMENT);
        let output = &mut bytes[offset..][..capacity];
        let call = NativeCall {
            function,
            context: CONTEXT.with_borrow_mut(|context| context.prepare_call(0)),
            input: view.place(),
            output: MemoryPlace {
                start: NonNull::from(&mut *output).cast(),
                bytes: capacity as u64,
            },
        };
        // SAFETY: the view keeps the input, and only this call uses the output. The context belongs to this thread,
        // which runs only this call.
        let outcome = py.detach(move || unsafe { call.make() });
        let produced = produced(py, &this.name, outcome, output, room)?;
        let (start, end) = (offset as isize, (offset + produced) as isize);
        let result = PyMemoryView::from(block.as_any())?.get_item(PySlice::new(py, start, end, 1))?;
        Ok((result, recipe))
    }
}

/// Makes the exception for an unusable library or name.
fn refused(py: Python<'_>, error: &Error) -> PyErr {
    if let Error::File { path, source } = error
        && let Some(number) = source.raw_os_error()
    {
        let message = std::io::Error::from_raw_os_error(number).to_string();
        let message = message.split(" (os error").next().unwrap_or_default().to_owned();
        return PyOSError::new_err((number, message, path.display().to_string()));
    }
    failed(py, "OptionError", (error.to_string(), false))
}
