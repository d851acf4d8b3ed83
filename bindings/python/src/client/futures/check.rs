//! Check of pickles from sandboxes, before they are unpickled: `hotlease_wire::task::pickle`.

use hotlease_wire::task::pickle::{PickleRefusal, check};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Checks a pickle. `look` is called with module and name of each global. It returns the permitted uses of the global,
/// or raises if the global is not admitted. Returns the number of keys whose hashes the sender may have chosen to be
/// equal.
///
/// # Errors
/// Exceptions of `look`; `ValueError` if an operation is refused.
#[pyfunction]
pub fn _check_pickle(pickle: &[u8], look: &Bound<'_, PyAny>) -> PyResult<u64> {
    let look = |module: &str, name: &str| look.call1((module, name))?.extract::<u8>();
    check(pickle, look).map_err(|refusal| match refusal {
        PickleRefusal::Name(error) => error,
        PickleRefusal::Operation(at, why) => PyValueError::new_err(format!("{why} (byte {at})")),
    })
}
