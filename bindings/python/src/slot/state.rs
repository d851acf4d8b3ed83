//! State that tasks left in this interpreter, saved and restored by the functions that a module of the tenant has
//! registered: see `hotlease._state`.

use hotlease_worker::{StateFunctions, StatePieces};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

/// Functions that the worker calls between two tasks.
pub const FUNCTIONS: StateFunctions = StateFunctions { check, restore, save };

fn check() -> Result<(), String> {
    in_python(|module| module.call_method0("check").map(drop))
}

fn restore(pipe: &mut File, bytes: u64) -> Result<(), String> {
    in_python(|module| {
        let py = module.py();
        let length = usize::try_from(bytes)?;
        // The memory is writable, so that a numpy array can use it in place.
        let state = PyByteArray::new_with(py, length, |place| Ok(pipe.read_exact(place)?))?;
        module.call_method1("restore", (state,)).map(drop)
    })
}

fn save(pieces: &mut StatePieces<File>) -> Result<(), String> {
    in_python(|module| {
        let py = module.py();
        let state: PyBuffer<u8> = PyBuffer::get(&module.call_method0("save")?)?;
        let (start, length) = (state.buf_ptr() as usize, state.len_bytes());
        // Other threads of the program run meanwhile. A thread that changes the state now changes the saved state.
        py.detach(|| match length {
            0 => Ok(()),
            length => write_from(pieces.pipe(length)?, start, length),
        })?;
        Ok(())
    })
}

/// Writes memory that another thread may be changing; otherwise like `write_all`.
fn write_from(pipe: &File, start: usize, length: usize) -> io::Result<()> {
    let mut written = 0;
    while written < length {
        let place = (start + written) as *const libc::c_void;
        // SAFETY: inside a buffer that is held; only the kernel reads it.
        let count = unsafe { libc::write(pipe.as_raw_fd(), place, length - written) };
        match usize::try_from(count) {
            Ok(count) => written += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn in_python(what: impl FnOnce(&Bound<'_, PyModule>) -> PyResult<()>) -> Result<(), String> {
    Python::attach(|py| {
        let module = PyModule::import(py, "hotlease._state").map_err(|error| error.to_string())?;
        what(&module).map_err(
            |error| match error.is_instance_of::<pyo3::exceptions::PyRuntimeError>(py) {
                // The text of a `RuntimeError` is complete.
                true => error.value(py).to_string(),
                false => error.to_string(),
            },
        )
    })
}
