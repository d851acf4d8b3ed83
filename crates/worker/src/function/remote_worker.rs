//! Functions that run in a virtual machine: this process represents a worker there, which only this process can reach.
//!
//! For agent and clients this process is the worker. Channels, buffers and usage are here; input and output are copied
//! in both directions, and the virtual machine shares no memory with the client.

use crate::function::arguments::MemoryPlace;
use crate::function::context::FunctionContext;
use crate::function::outcome::CallOutcome;
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::machine::{Assignment, GuestCrash};

/// The remote worker that runs functions. Used by several threads at once; each thread waits for its own answer.
pub trait RemoteWorker: Send + Sync {
    /// Sends the lease to that worker. Called once, before the other methods.
    ///
    /// # Errors
    /// Error text of that worker.
    fn assign(&self, assignment: Assignment) -> Result<(), String>;

    /// Makes that worker load a library whose first function gets the index `base`.
    ///
    /// # Errors
    /// Error text of that worker.
    fn load(&self, code: &[u8], base: u16) -> Result<(), String>;

    /// Calls a function in this slot, in which no other function runs. Does not return if that worker dies.
    ///
    /// # Errors
    /// Reason why the function did not run.
    fn call(&self, call: RemoteCall<'_>) -> Result<RemoteCallResult, InvocationStatus>;
}

/// A call of a function by the remote worker.
#[derive(Debug, Clone, Copy)]
pub struct RemoteCall<'a> {
    /// Slot of the call.
    pub slot: u16,
    /// Index of the function.
    pub function: u16,
    /// Time limit, microseconds; 0 for unlimited.
    pub timeout_us: u32,
    /// Input, which stays unchanged during the call.
    pub input: &'a [u8],
    /// Capacity for the output, bytes.
    pub capacity: u64,
}

/// Result of a [`RemoteCall`].
#[derive(Debug)]
pub struct RemoteCallResult {
    /// Status of the invocation, whose function ran.
    pub status: InvocationStatus,
    /// The function's own error number.
    pub code: i32,
    /// Number of output bytes, as the function reports it; there is no output if it exceeds the capacity.
    pub bytes: u64,
    /// The output: `bytes` long, if there is one.
    pub output: Vec<u8>,
}

/// End of the remote worker, with which this process ends too.
#[derive(Debug, Clone, Copy)]
pub struct WorkerEnd {
    /// Exit status, or the negative number of the signal that killed the worker.
    pub status: i32,
    /// Crash record of the worker.
    pub crash: Option<GuestCrash>,
}

/// Calls a function in the remote worker with a private copy of its input.
///
/// # Safety
/// Both places are valid during the call, the place of the output also for writing.
pub unsafe fn call(
    there: &dyn RemoteWorker,
    function: u16,
    context: &FunctionContext,
    input: MemoryPlace,
    output: MemoryPlace,
) -> Result<CallOutcome, InvocationStatus> {
    let bytes = usize::try_from(input.bytes).map_err(|_| InvocationStatus::BadSpan)?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes).map_err(|_| InvocationStatus::BadSpan)?;
    // SAFETY: this many bytes can be read there, by the caller's promise, and were reserved here. If a client writes to
    // them meanwhile, the copy is a mixture.
    unsafe {
        std::ptr::copy_nonoverlapping(input.start.as_ptr(), copy.as_mut_ptr(), bytes);
        copy.set_len(bytes);
    }
    let returned = there.call(RemoteCall {
        slot: context.slot(),
        function,
        timeout_us: context.timeout_us(),
        input: &copy,
        capacity: output.bytes,
    })?;
    if matches!(returned.status, InvocationStatus::DeadlineExceeded) {
        return Ok(CallOutcome {
            status: returned.status,
            code: 0,
            bytes: 0,
        });
    }
    // Passes on that worker's status unchanged: its own limit of the output may be below the client's capacity.
    if returned.status == InvocationStatus::OutputTooLarge {
        return Ok(CallOutcome {
            status: returned.status,
            code: 0,
            bytes: returned.bytes,
        });
    }
    let outcome = CallOutcome::of(returned.code, returned.bytes, output.bytes);
    if outcome.status == InvocationStatus::OutputTooLarge {
        return Ok(outcome);
    }
    // The output must be as long as reported: that worker may report any number.
    if returned.output.len() as u64 != returned.bytes {
        return Err(InvocationStatus::BadLength);
    }
    // SAFETY: room for this many bytes, by the check of the outcome and the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(returned.output.as_ptr(), output.start.as_ptr(), returned.output.len());
    }
    Ok(outcome)
}
