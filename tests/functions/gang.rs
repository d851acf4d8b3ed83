//! A library of functions in Rust for tests of gangs, as docs/functions.md describes it.

use hotlease_comm::Operator;
use hotlease_gang::{Error, FunctionContext, communicator};
use std::ffi::c_void;

/// Tells client and worker that the function takes a context.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static hotlease_context_total: u32 = 1;

/// Returns the sum of all ranks' numbers, and this rank: doubles.
///
/// # Safety
/// Called by a worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn total(
    context: *const FunctionContext,
    input: *const c_void,
    size: u64,
    output: *mut c_void,
    capacity: u64,
    produced: *mut u64,
) -> i32 {
    // SAFETY: the pointers are the worker's and valid during the call.
    let (context, input, output, produced) = unsafe {
        (
            &*context,
            std::slice::from_raw_parts(input.cast::<u8>(), size as usize),
            std::slice::from_raw_parts_mut(output.cast::<u8>(), capacity as usize),
            &mut *produced,
        )
    };
    let (code, bytes) = match add_up(context, input) {
        Ok(numbers) => (0, numbers.map(f64::to_le_bytes).concat()),
        Err(error) => (error.code(), error.to_string().into_bytes()),
    };
    let fits = bytes.len().min(output.len());
    output[..fits].copy_from_slice(&bytes[..fits]);
    *produced = if code == 0 { bytes.len() } else { fits } as u64;
    code
}

fn add_up(context: &FunctionContext, input: &[u8]) -> Result<[f64; 2], Error> {
    let mine = f64::from_le_bytes(input.try_into().expect("a double"));
    let all = communicator(context)?;
    let mut sum = [0.0];
    all.allreduce(&[mine], &mut sum, &Operator::Sum)?;
    Ok([sum[0], f64::from(all.rank())])
}
