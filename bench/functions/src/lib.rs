//! Functions that the benchmarks invoke, and an example of a function library in Rust.
//!
//! | function | input | output |
//! |---|---|---|
//! | `noop` | any bytes | nothing |
//! | `echo` | bytes | the same bytes |
//! | `touch` | at least one byte | the first byte |
//! | `sum` | 64-bit words | their wrapping sum: every byte is read |
//! | `whereabouts` | any bytes | process id and processor, two 64-bit words |
//! | `spin` | a number of milliseconds, a 64-bit word | nothing, after that time: its core is busy |
//! | `raw` | a [`RoundTripKind`] as two 64-bit words | a registered buffer: answers its client until told to stop |
//!
//! `noop` and `echo` have the plain interface of the papers; the others have the interface with a context, which a data
//! symbol `hotlease_context_NAME` shows. `hotlease/function.h` does the same for C.

use hotlease_bench_baseline::{RoundTripKind, serve_peer};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Error code of `raw` and `sum` for an invalid input or output.
pub const BAD_ARGUMENT: i32 = 22;

/// Worker's context, which these functions do not use.
#[repr(C)]
pub struct Context([u8; 0]);

/// Does nothing.
///
/// # Safety
/// Called by a worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn noop(_input: *const c_void, _size: u32, _output: *mut c_void) -> u32 {
    0
}

/// Returns its input.
///
/// # Safety
/// Called by a worker with `size` readable bytes and an output that takes as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn echo(input: *const c_void, size: u32, output: *mut c_void) -> u32 {
    // SAFETY: promised by the caller; input and output do not overlap unless they are the same buffer.
    unsafe { std::ptr::copy(input.cast::<u8>(), output.cast::<u8>(), size as usize) };
    size
}

/// Defines functions with a context: name, marker and documentation of each, and its body, which gets input and output
/// as slices and returns the number of bytes of the result, or an error code.
#[macro_export]
macro_rules! context_functions {
    ($($name:ident $marker:ident $doc:literal: |$input:ident, $output:ident| $body:expr;)*) => {$(
        /// Tells client and worker that the function of this name has the interface with a context.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $marker: u32 = 1;

        #[doc = $doc]
        ///
        /// # Safety
        /// Called by a worker with `size` readable bytes at `input`, `capacity` writable ones at `output`
        /// and a valid `produced`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            _context: *mut $crate::Context,
            input: *const ::std::ffi::c_void,
            size: u64,
            output: *mut ::std::ffi::c_void,
            capacity: u64,
            produced: *mut u64,
        ) -> i32 {
            let $input: &[u8] = match size {
                0 => &[],
                // SAFETY: promised by the caller.
                _ => unsafe { ::std::slice::from_raw_parts(input.cast(), size as usize) },
            };
            let $output: &mut [u8] = match capacity {
                0 => &mut [],
                // SAFETY: promised by the caller. Benchmarks never name one buffer for both.
                _ => unsafe { ::std::slice::from_raw_parts_mut(output.cast(), capacity as usize) },
            };
            let result: Result<usize, i32> = $body;
            match result {
                Ok(bytes) => {
                    // SAFETY: promised by the caller.
                    unsafe { produced.write(bytes as u64) };
                    0
                }
                Err(code) => code,
            }
        }
    )*};
}

context_functions! {
    touch hotlease_context_touch "Returns the first byte of its input of any size.":
        |input, output| write_if_fits(output, &input[..input.len().min(1)]);

    sum hotlease_context_sum "Returns the wrapping sum of the 64-bit words of its input.":
        |input, output| {
            let words = input.as_chunks::<8>().0.iter();
            let sum = words.fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
            write_if_fits(output, &sum.to_le_bytes())
        };

    whereabouts hotlease_context_whereabouts "Returns process id and processor.":
        |_input, output| {
            // SAFETY: a system call without arguments.
            let processor = unsafe { libc::sched_getcpu() };
            let mut place = [0; 16];
            place[..8].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
            place[8..].copy_from_slice(&(processor as i64).to_le_bytes());
            write_if_fits(output, &place)
        };

    spin hotlease_context_spin "Keeps its core busy for a number of milliseconds.":
        |input, output| {
            let [ms] = input.as_chunks::<8>().0 else {
                return BAD_ARGUMENT;
            };
            let (begin, time) = (Instant::now(), Duration::from_millis(u64::from_le_bytes(*ms)));
            while begin.elapsed() < time {
                std::hint::spin_loop();
            }
            write_if_fits(output, &[])
        };

    raw hotlease_context_raw "The peer of a raw round trip, in the slot that is compared with it.":
        |input, output| {
            let kind = match input.as_chunks::<8>().0 {
                [kind, detail] => RoundTripKind::from_words([u64::from_le_bytes(*kind), u64::from_le_bytes(*detail)]),
                _ => None,
            };
            let Some(kind) = kind else {
                return BAD_ARGUMENT;
            };
            // SAFETY: until this function returns, the output belongs to it and to the client of the baseline.
            match unsafe { serve_peer(output.as_mut_ptr(), output.len(), kind) } {
                true => Ok(0),
                false => Err(BAD_ARGUMENT),
            }
        };
}

/// Writes a result if it fits. Otherwise returns only the result's size, which tells the caller the needed capacity.
///
/// # Errors
/// None; the type is that of a body of [`context_functions`].
pub fn write_if_fits(output: &mut [u8], result: &[u8]) -> Result<usize, i32> {
    if let Some(place) = output.get_mut(..result.len()) {
        place.copy_from_slice(result);
    }
    Ok(result.len())
}
