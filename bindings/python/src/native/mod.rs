//! Native functions: functions of shared libraries, called on bytes in place. Both sides need them, because a program
//! may call them itself.
//!
//! | module | job |
//! |---|---|
//! | `sizes` | sizes of replies |
//! | `view` | memory of an object in one piece |
//! | `libraries` | libraries that this process has loaded, and calls of their functions |
//! | `function` | a function as a Python object: the base of `hotlease.NativeFunction` |

mod function;
mod libraries;
mod sizes;
mod view;

pub use function::{Native, NativeResult};
pub use libraries::{NativeCall, find, load};
pub use sizes::{reply_bytes, reply_layout};
pub use view::InputView;

use hotlease_wire::frame::InvocationStatus;
use hotlease_worker::CallOutcome;
use pyo3::prelude::*;

/// Minimum of the room for a function's output, so that an error message fits.
pub const ROOM_MIN: usize = 512;
/// Limit of the bytes of a function's message that are reported.
const MESSAGE_BYTES: usize = 16 << 10;

/// Returns the number of result bytes in the output, or the exception of the function. The function was called with
/// `output`; `room` bytes of it are for the result.
pub fn produced(
    py: Python<'_>,
    name: &str,
    outcome: Result<CallOutcome, InvocationStatus>,
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
    if outcome.status == InvocationStatus::FunctionError {
        // In range: with more bytes than `output` has, the status is `OutputTooLarge`.
        let message = &output[..(outcome.bytes as usize).min(MESSAGE_BYTES)];
        let message = String::from_utf8_lossy(message);
        return Err(failed(py, "FunctionFailed", (name, outcome.code, message)));
    }
    if outcome.bytes > room as u64 {
        return Err(failed(py, "OutputTooLarge", (name, outcome.bytes, room)));
    }
    Ok(outcome.bytes as usize)
}

/// Makes the exception with `hotlease._native_results.failed`.
fn failed<'py>(py: Python<'py>, kind: &str, details: impl IntoPyObject<'py>) -> PyErr {
    let made = py
        .import("hotlease._native_results")
        .and_then(|module| module.call_method1("failed", (kind, details)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
