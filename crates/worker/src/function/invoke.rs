//! Calls of functions through their interfaces.

use crate::function::arguments::{Arguments, MemoryPlace};
use crate::function::context::{Context, FunctionContext};
use crate::function::library::{CodeLocation, LoadedFunction};
use crate::function::outcome::CallOutcome;
use crate::function::remote_worker;
use hotlease_wire::code::Interface;
use hotlease_wire::frame::InvocationStatus;
use std::ffi::c_void;
use std::ptr::NonNull;

type PlainFunction = unsafe extern "C" fn(*const c_void, u32, *mut c_void) -> u32;
type ContextFunction = unsafe extern "C" fn(*mut c_void, *const c_void, u64, *mut c_void, u64, *mut u64) -> i32;

/// Calls a function with these arguments. Returns `Err` if its interface cannot take an input of this size.
#[inline]
pub fn call(
    function: LoadedFunction,
    arguments: &Arguments,
    context: &mut Context,
    deadline_ns: u64,
) -> Result<CallOutcome, InvocationStatus> {
    let Arguments { input, output, .. } = arguments;
    // SAFETY: both places were checked, and stay until the reply; the context outlives the call.
    unsafe { function.call(context.prepare_call(deadline_ns), *input, *output) }
}

impl LoadedFunction {
    /// Calls the function. If the result is larger than `output`, the status is [`InvocationStatus::OutputTooLarge`],
    /// and none of the output is valid.
    ///
    /// # Errors
    /// [`InvocationStatus::BadSpan`] if the interface cannot take an input of this size; the function was not called.
    ///
    /// # Safety
    /// `input` can be read and `output` written during the call, and no other code uses them; `context` is the pointer
    /// of a [`Context`], or the pointer that a host function got. The author of the function vouches for everything
    /// else that it does.
    #[inline]
    pub unsafe fn call(
        self,
        context: *mut c_void,
        input: MemoryPlace,
        output: MemoryPlace,
    ) -> Result<CallOutcome, InvocationStatus> {
        let address = match self.code {
            CodeLocation::Local(address) => address,
            CodeLocation::Remote(there, function) => {
                // SAFETY: the caller's promise for all three.
                return unsafe {
                    let context = &*context.cast::<FunctionContext>();
                    remote_worker::call(there, function, context, input, output)
                };
            }
        };
        let (code, bytes) = match self.interface {
            Interface::Plain => {
                let size = u32::try_from(input.bytes).map_err(|_| InvocationStatus::BadSpan)?;
                // SAFETY: the library's exported function of this interface, as the library declares it; the sandbox,
                // not the compiler, limits what it does with its arguments.
                let bytes = unsafe {
                    let plain = std::mem::transmute::<NonNull<c_void>, PlainFunction>(address);
                    plain(input.start.as_ptr().cast(), size, output.start.as_ptr().cast())
                };
                (0, u64::from(bytes))
            }
            Interface::Context => {
                let mut produced = 0;
                // SAFETY: as above; the context and `produced` outlive the call.
                let code = unsafe {
                    let function = std::mem::transmute::<NonNull<c_void>, ContextFunction>(address);
                    function(
                        context,
                        input.start.as_ptr().cast(),
                        input.bytes,
                        output.start.as_ptr().cast(),
                        output.bytes,
                        &mut produced,
                    )
                };
                (code, produced)
            }
        };
        Ok(CallOutcome::of(code, bytes, output.bytes))
    }
}
