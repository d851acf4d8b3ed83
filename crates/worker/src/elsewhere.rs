//! Functions that this process does not run itself: it speaks for a worker that it alone can reach, in a virtual machine.
//!
//! To agent and clients it is the worker. Channels, buffers and the bill are here; input and output are copied to
//! and fro, and nothing of a client's memory is shared with who runs the function.

use crate::context::FunctionContext;
use crate::invoke::{Outcome, Place};
use hotlease_wire::frame::Status;
use hotlease_wire::machine::{Assignment, Crash};

/// Where functions run. Used by several threads at once; each waits for its own answer.
pub trait Elsewhere: Send + Sync {
    /// Tells the worker there of its lease. Once, before the rest.
    ///
    /// # Errors
    /// Its words.
    fn assign(&self, assignment: Assignment) -> Result<(), String>;

    /// Has it load a library whose first function gets the index `base`.
    ///
    /// # Errors
    /// Its words.
    fn load(&self, code: &[u8], base: u16) -> Result<(), String>;

    /// Calls a function in this slot, in which nothing else runs. Does not return if the worker there dies.
    ///
    /// # Errors
    /// Why it did not run.
    fn call(&self, call: Call<'_>) -> Result<Returned, Status>;
}

/// A call of a function elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Whose slot.
    pub slot: u16,
    /// Its index.
    pub function: u16,
    /// The time it has, microseconds; 0: unlimited.
    pub timeout_us: u32,
    /// Its input, which nobody changes.
    pub input: &'a [u8],
    /// Room for its output, bytes.
    pub capacity: u64,
}

/// How a call elsewhere ended.
#[derive(Debug)]
pub struct Returned {
    /// That it ran, and how.
    pub status: Status,
    /// The function's own error number.
    pub code: i32,
    /// Bytes of output, as it says: more than its capacity are none.
    pub bytes: u64,
    /// As many, if they are there.
    pub output: Vec<u8>,
}

/// How the worker elsewhere ended, and so this process.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Its exit status, or else the signal that killed it, negative.
    pub status: i32,
    /// What it wrote down.
    pub crash: Option<Crash>,
}

/// Calls it with a private copy of its input.
///
/// # Safety
/// Both places are valid as long as it runs, the output's for writing.
pub unsafe fn call(
    there: &dyn Elsewhere,
    function: u16,
    context: &FunctionContext,
    input: Place,
    output: Place,
) -> Result<Outcome, Status> {
    let bytes = usize::try_from(input.bytes).map_err(|_| Status::BadSpan)?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes).map_err(|_| Status::BadSpan)?;
    // SAFETY: as many bytes can be read there, by the caller's word, and were reserved here. A client that goes on writing
    // to them gets a mixture.
    unsafe {
        std::ptr::copy_nonoverlapping(input.start.as_ptr(), copy.as_mut_ptr(), bytes);
        copy.set_len(bytes);
    }
    let returned = there.call(Call {
        slot: context.slot(),
        function,
        timeout_us: context.timeout_us(),
        input: &copy,
        capacity: output.bytes,
    })?;
    if matches!(returned.status, Status::DeadlineExceeded) {
        return Ok(Outcome {
            status: returned.status,
            code: 0,
            bytes: 0,
        });
    }
    // By its own word also where the room there was less than the client's.
    if returned.status == Status::OutputTooLarge {
        return Ok(Outcome {
            status: returned.status,
            code: 0,
            bytes: returned.bytes,
        });
    }
    let outcome = Outcome::of(returned.code, returned.bytes, output.bytes);
    if outcome.status == Status::OutputTooLarge {
        return Ok(outcome);
    }
    // As many as it says: it may say anything.
    if returned.output.len() as u64 != returned.bytes {
        return Err(Status::BadLength);
    }
    // SAFETY: room for as many, by the check of the outcome and the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(
            returned.output.as_ptr(),
            output.start.as_ptr(),
            returned.output.len(),
        );
    }
    Ok(outcome)
}
