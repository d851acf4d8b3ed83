//! Native functions: of shared libraries, called on bytes where they lie. Both sides, as a program may call them itself.
//!
//! | module | job |
//! |---|---|
//! | `sizes` | how large replies are |
//! | `view` | memory of an object that lies in one piece |
//! | `libraries` | what this process has loaded, and calling it |
//! | `function` | a function as a program has it: the base of `hotlease.NativeFunction` |

mod function;
mod libraries;
mod sizes;
mod view;

pub use function::{Native, Output};
pub use libraries::{Call, find, load};
pub use sizes::{reply_bytes, reply_layout};
pub use view::View;

use hotlease_wire::frame::Status;
use hotlease_worker::Outcome;
use pyo3::prelude::*;

/// Room that a function is given at least, so that an error's message fits.
pub const ROOM_MIN: usize = 512;
/// Bytes of a function's message that are told.
const MESSAGE_BYTES: usize = 16 << 10;

/// How many bytes of the output count: what the function says of them, or the exception for it. It was called with `output`, of
/// which `room` is for results.
pub fn produced(
    py: Python<'_>,
    name: &str,
    outcome: Result<Outcome, Status>,
    output: &[u8],
    room: usize,
) -> PyResult<usize> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(_) => {
            let text = format!(
                "`{name}` was not called: its interface, the plain one, takes less than 4 GiB; HOTLEASE_FUNCTION declares one that \
                 takes more"
            );
            return Err(failed(py, "TaskError", (text, false)));
        }
    };
    if outcome.status == Status::FunctionError {
        // Not more than `output` has: see `OutputTooLarge`.
        let message = &output[..(outcome.bytes as usize).min(MESSAGE_BYTES)];
        let message = String::from_utf8_lossy(message);
        return Err(failed(py, "FunctionFailed", (name, outcome.code, message)));
    }
    if outcome.bytes > room as u64 {
        return Err(failed(py, "OutputTooLarge", (name, outcome.bytes, room)));
    }
    Ok(outcome.bytes as usize)
}

/// An exception that `hotlease._native_results.failed` makes of this.
fn failed<'py>(py: Python<'py>, kind: &str, details: impl IntoPyObject<'py>) -> PyErr {
    let made = py
        .import("hotlease._native_results")
        .and_then(|module| module.call_method1("failed", (kind, details)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
