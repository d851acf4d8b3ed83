//! `hotlease_map`: one function, many inputs.

use crate::argument::{bytes, bytes_mut, object};
use crate::function::{FunctionHandle, own_message};
use crate::status::{ErrorHandle, Failure, ItemError, PlatformError, Status, run_guarded};
use hotlease_client::Error;
use std::ffi::c_void;

/// `hotlease_item`.
#[repr(C)]
pub struct Item {
    input: *const c_void,
    input_size: usize,
    out: *mut c_void,
    out_capacity: usize,
    out_size: usize,
    status: Status,
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_map(
    function: *const FunctionHandle,
    items: *mut Item,
    count: usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let function = &unsafe { object(function, "function") }?.function;
        if count == 0 {
            return Ok(());
        }
        if items.is_null() {
            return Err(Failure::Null("items"));
        }
        if count > isize::MAX as usize / size_of::<Item>() {
            return Err(Failure::Argument(format!(
                "{count} items are more than fit into memory"
            )));
        }
        // Checks all arguments first, so that no call runs if an argument is wrong.
        let mut inputs = Vec::with_capacity(count);
        let mut capacity = 0;
        for index in 0..count {
            // SAFETY: inside the array that the header demands. (No reference to the whole array: its
            // `status` need not hold a valid value yet.)
            let item = unsafe { items.add(index) };
            // SAFETY: as above, and the fields read here are numbers and pointers.
            let (input, input_size, out, out_capacity) =
                unsafe { ((*item).input, (*item).input_size, (*item).out, (*item).out_capacity) };
            // SAFETY: as the header demands.
            inputs.push(unsafe { bytes(input, input_size, "items[].in") }?);
            if out.is_null() && out_capacity > 0 {
                return Err(Failure::Null("items[].out"));
            }
            capacity = capacity.max(out_capacity);
        }
        let mut first_failure = None;
        let results = function.clone().output_bytes(capacity).map(inputs);
        for (index, result) in results.enumerate() {
            // SAFETY: there are as many results as inputs, and as many inputs as items.
            let item = unsafe { items.add(index) };
            // SAFETY: as the header demands: each item has a separate output.
            let out = unsafe { bytes_mut((*item).out, (*item).out_capacity, "items[].out") }?;
            let (status, size) = match result.and_then(|bytes| copy_result(&bytes, out)) {
                Ok(size) => (Status::Ok, size),
                Err(error) => {
                    let size = own_message(&error, out).unwrap_or(0);
                    let function = function.name().to_owned();
                    let item = ItemError { index, function, error };
                    let failure = Failure::Platform(PlatformError::Item(Box::new(item)));
                    let status = failure.status();
                    first_failure.get_or_insert(failure);
                    (status, size)
                }
            };
            // SAFETY: inside the array.
            unsafe {
                (&raw mut (*item).out_size).write(size);
                (&raw mut (*item).status).write(status);
            }
        }
        first_failure.map_or(Ok(()), Err)
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// Copies a result to its place; fails if the result does not fit.
fn copy_result(bytes: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let capacity = out.len() as u64;
    let room = out.get_mut(..bytes.len()).ok_or(Error::OutputTooLarge {
        produced: bytes.len() as u64,
        capacity,
    })?;
    room.copy_from_slice(bytes);
    Ok(bytes.len())
}
