//! `hotlease_gang`: functions that run on several workers at the same time, and the communicator that these functions
//! get.

use crate::argument::{bytes, bytes_mut, give, object, optional_text, put, require_place, text};
use crate::code::CodeHandle;
use crate::comm::CommHandle;
use crate::invoker::{Options, Usage};
use crate::status::{ErrorHandle, Failure, PlatformError, Status, catch_panic, exported, run_guarded};
use hotlease_gang::{Error, FunctionContext, Gang, GangCall, Inputs, SeatValue};
use std::ffi::{c_char, c_void};

/// `hotlease_gang`.
pub struct GangHandle {
    gang: Gang,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Lease(error) => error.into(),
            Error::Comm(error) => Self::Comm(error),
            error => Self::Platform(PlatformError::Gang(error)),
        }
    }
}

exported!(hotlease_gang_lease(
    code: *const CodeHandle,
    options: *const Options,
    address: *const c_char,
    gang: *mut *mut GangHandle,
) {
    require_place(gang, "gang")?;
    let code = object(code, "code")?;
    let options = Options::read(options)?;
    let address = optional_text(address, "address")?;
    let address = address.map(|address| {
        let wrong = |_| Failure::Argument(format!("address: {address} is no IP address"));
        address.parse().map_err(wrong)
    });
    let leased = Gang::lease(&code.code, options, address.transpose()?)?;
    give(gang, GangHandle { gang: leased })
});

exported!(get hotlease_gang_ranks(gang: GangHandle) -> u32 { 0, gang.gang.ranks() });

/// Destination of a call's outputs.
struct CallOutputs {
    start: *mut c_void,
    /// Bytes for each rank.
    capacity: usize,
    sizes: *mut usize,
}

impl GangHandle {
    /// Calls a function at all ranks.
    ///
    /// # Safety
    /// The function's name is NULL or valid. Outputs and sizes are NULL, or valid for writing `capacity` bytes and one
    /// size for each rank.
    unsafe fn call(&self, function: *const c_char, inputs: Inputs<'_>, outputs: CallOutputs) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let function = unsafe { text(function, "function") }?;
        let ranks = self.gang.ranks() as usize;
        let room = outputs.capacity.checked_mul(ranks);
        let room = room.ok_or_else(|| Failure::Argument("out_capacity: more than fits into memory".into()))?;
        // SAFETY: the caller's promise.
        let room = unsafe { bytes_mut(outputs.start, room, "out") }?;
        let results = self.gang.call_with(GangCall {
            function,
            inputs,
            output_bytes: Some(outputs.capacity),
        })?;
        for (rank, result) in results.iter().enumerate() {
            let begin = rank * outputs.capacity;
            room[begin..begin + result.len()].copy_from_slice(result);
            if !outputs.sizes.is_null() {
                // SAFETY: not NULL, so there is one size for each rank by the caller's promise.
                unsafe { outputs.sizes.add(rank).write(result.len()) };
            }
        }
        Ok(())
    }
}

exported!(hotlease_gang_call(
    gang: *const GangHandle,
    function: *const c_char,
    input: *const c_void,
    input_size: usize,
    output: *mut c_void,
    output_capacity: usize,
    output_sizes: *mut usize,
) {
    let gang = object(gang, "gang")?;
    let input = bytes(input, input_size, "in")?;
    let outputs = CallOutputs {
        start: output,
        capacity: output_capacity,
        sizes: output_sizes,
    };
    gang.call(function, Inputs::Shared(input), outputs)
});

/// See `gang.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_gang_call_each(
    gang: *const GangHandle,
    function: *const c_char,
    inputs: *const *const c_void,
    input_sizes: *const usize,
    output: *mut c_void,
    output_capacity: usize,
    output_sizes: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let gang = unsafe { object(gang, "gang") }?;
        if inputs.is_null() || input_sizes.is_null() {
            return Err(Failure::Null(if inputs.is_null() { "in" } else { "in_sizes" }));
        }
        let input = |rank| {
            // SAFETY: neither array is NULL, so each has an entry for each rank, as the header demands; an entry of
            // `inputs` is NULL or valid for its size.
            unsafe { bytes(*inputs.add(rank), *input_sizes.add(rank), "in") }
        };
        let inputs: Vec<&[u8]> = (0..gang.gang.ranks() as usize).map(input).collect::<Result<_, _>>()?;
        let outputs = CallOutputs {
            start: output,
            capacity: output_capacity,
            sizes: output_sizes,
        };
        // SAFETY: NULL or valid, as the header demands.
        unsafe { gang.call(function, Inputs::Each(&inputs), outputs) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

exported!(hotlease_gang_end(gang: *const GangHandle, usage: *mut Usage) {
    let gang = object(gang, "gang")?;
    Usage::report(usage, || Ok(gang.gang.end()?))
});

exported!(free hotlease_gang_free(GangHandle));

/// Communicator that a worker of a gang keeps.
struct KeptCommunicator(CommHandle);

impl SeatValue for KeptCommunicator {
    fn give_up(self: Box<Self>) {
        catch_panic((), || self.0.into_communicator().abort());
    }
}

exported!(hotlease_context_communicator(context: *const FunctionContext, communicator: *mut *const CommHandle) {
    require_place(communicator, "communicator")?;
    let context = object(context, "context")?;
    let kept =
        hotlease_gang::communicator_in(context, |communicator| KeptCommunicator(CommHandle::of(communicator)))?;
    put(communicator, &raw const kept.0);
    Ok(())
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::failure::status_of;
    use hotlease_comm::{Activity, JoinRejection, Loss};

    #[test]
    fn functions_in_rust_fail_with_the_numbers_of_c() {
        let during = Activity::Meeting;
        let lost = hotlease_comm::Error::MemberLost {
            during,
            rank: 1,
            loss: Loss::Closed,
        };
        let left = hotlease_comm::Error::MemberLeft { during, rank: 1 };
        let broken = hotlease_comm::Error::CollectiveFailed { during, rank: 1 };
        let apart = |refused| hotlease_comm::Error::RendezvousRefused {
            name: "gang".into(),
            refused,
        };
        let missing = apart(JoinRejection::Missing {
            ranks: vec![1],
            size: 2,
            waited_ms: 15_000,
        });
        for error in [lost, left, broken, missing, apart(JoinRejection::Stopping)] {
            assert_eq!(status_of(&error) as i32, Error::Comm(error.clone()).code(), "{error}");
        }
    }
}
