//! `hotlease_invocation`: submitted calls, and callbacks.

use crate::argument::{bytes_mut, object};
use crate::function::finish;
use crate::status::{ErrorHandle, Failure, Status, catch_panic, exported};
use hotlease_client::{BufferInvocation, Error, Invocation};
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// `hotlease_invocation`.
pub struct InvocationHandle(PendingCall);

/// A call, and the place of its output.
enum PendingCall {
    /// Call in flight, whose output will be bytes.
    Bytes(Invocation),
    /// Call in flight, whose output is in a buffer.
    Buffer(BufferInvocation),
    /// Ended call: its bytes, or the length of its output in a buffer.
    Ended(CallOutcome),
}

/// Outcome of a call: output bytes (none if the output is in a buffer), and length of the output.
type CallOutcome = Result<(Vec<u8>, usize), Error>;

fn with_bytes(result: Result<Vec<u8>, Error>) -> CallOutcome {
    result.map(|bytes| {
        let length = bytes.len();
        (bytes, length)
    })
}

fn in_buffer(result: Result<usize, Error>) -> CallOutcome {
    result.map(|length| (Vec::new(), length))
}

impl InvocationHandle {
    pub(crate) fn of_bytes(invocation: Invocation) -> Self {
        Self(PendingCall::Bytes(invocation))
    }

    pub(crate) fn of_buffer(invocation: BufferInvocation) -> Self {
        Self(PendingCall::Buffer(invocation))
    }
}

impl PendingCall {
    fn is_done(&self) -> bool {
        match self {
            Self::Bytes(invocation) => invocation.is_done(),
            Self::Buffer(invocation) => invocation.is_done(),
            Self::Ended(_) => true,
        }
    }

    fn wait_for(&mut self, timeout: Duration) -> bool {
        let ended = match self {
            Self::Bytes(invocation) => invocation.wait_timeout(timeout).map(with_bytes),
            Self::Buffer(invocation) => invocation.wait_timeout(timeout).map(in_buffer),
            Self::Ended(_) => return true,
        };
        match ended {
            Some(outcome) => {
                *self = Self::Ended(outcome);
                true
            }
            None => false,
        }
    }

    /// Waits, and copies the bytes to `out`.
    fn wait_into(self, out: &mut [u8]) -> Result<usize, Error> {
        let (bytes, length) = match self {
            Self::Bytes(invocation) => return invocation.wait_into(out),
            Self::Buffer(invocation) => return invocation.wait(),
            Self::Ended(outcome) => outcome?,
        };
        if let Some(room) = out.get_mut(..bytes.len()) {
            room.copy_from_slice(&bytes);
            return Ok(length);
        }
        Err(Error::OutputTooLarge {
            produced: bytes.len() as u64,
            capacity: out.len() as u64,
        })
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CallOutcome> {
        match self {
            Self::Bytes(invocation) => Pin::new(invocation).poll(context).map(with_bytes),
            Self::Buffer(invocation) => Pin::new(invocation).poll(context).map(in_buffer),
            Self::Ended(outcome) => {
                let none = Ok((Vec::new(), 0));
                Poll::Ready(std::mem::replace(outcome, none))
            }
        }
    }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_is_done(invocation: *const InvocationHandle) -> c_int {
    catch_panic(1, || {
        // SAFETY: NULL or valid, as the header demands.
        unsafe { invocation.as_ref() }
            .is_none_or(|call| call.0.is_done())
            .into()
    })
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_wait_for(invocation: *mut InvocationHandle, timeout_us: u64) -> c_int {
    catch_panic(1, || {
        // SAFETY: NULL or valid and used by this thread only, as the header demands.
        let call = unsafe { invocation.as_mut() };
        call.is_none_or(|call| call.0.wait_for(Duration::from_micros(timeout_us)))
            .into()
    })
}

exported!(hotlease_wait(
    invocation: *mut InvocationHandle,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
) {
    // Taken first, because the invocation is freed even if this function fails.
    let call = take(invocation)?;
    let out = bytes_mut(out, out_capacity, "out")?;
    let result = call.wait_into(out);
    finish(result, out, out_size)
});

exported!(free hotlease_invocation_free(InvocationHandle));

/// Takes the call out of a handle, and frees the handle.
///
/// # Safety
/// `invocation` is NULL, or was returned to the caller and not freed yet.
unsafe fn take(invocation: *mut InvocationHandle) -> Result<PendingCall, Failure> {
    // SAFETY: the caller's promise.
    unsafe { object(invocation, "invocation") }?;
    // SAFETY: not NULL, so the caller's promise holds.
    Ok(unsafe { Box::from_raw(invocation) }.0)
}

/// `hotlease_callback`.
pub(crate) type RawCallback =
    Option<unsafe extern "C" fn(*mut c_void, Status, *const c_void, usize, *const ErrorHandle)>;

/// A callback with its `user` pointer.
pub(crate) struct Callback {
    function: unsafe extern "C" fn(*mut c_void, Status, *const c_void, usize, *const ErrorHandle),
    user: *mut c_void,
}

// SAFETY: the header says that callbacks run on a thread of the library; the library only passes `user` to them.
unsafe impl Send for Callback {}

impl Callback {
    pub(crate) fn new(callback: RawCallback, user: *mut c_void) -> Result<Self, Failure> {
        let function = callback.ok_or(Failure::Null("callback"))?;
        Ok(Self { function, user })
    }

    fn call(self, outcome: CallOutcome) {
        match outcome {
            Ok((bytes, length)) => {
                let start = if bytes.is_empty() {
                    std::ptr::null()
                } else {
                    bytes.as_ptr()
                };
                // SAFETY: a callback takes these arguments; the bytes live until it returns.
                unsafe { (self.function)(self.user, Status::Ok, start.cast(), length, std::ptr::null()) };
            }
            Err(error) => {
                let message = match &error {
                    Error::Function { output, .. } => output.clone(),
                    _ => Vec::new(),
                };
                let start = if message.is_empty() {
                    std::ptr::null()
                } else {
                    message.as_ptr()
                };
                let failure = Failure::from(error);
                let status = failure.status();
                let error = ErrorHandle::new(failure);
                // SAFETY: a callback takes these arguments; the bytes and the error live until it returns.
                unsafe { (self.function)(self.user, status, start.cast(), message.len(), &raw const error) };
            }
        }
    }
}

/// Passes the result of a call, whose output is bytes, to a callback.
pub(crate) fn deliver_to(callback: Callback, result: Result<Vec<u8>, Error>) {
    callback.call(with_bytes(result));
}

/// A call whose outcome is passed to a callback: future, executor and waker in one. The completion thread of the client
/// library wakes a delivery without holding a lock, so the delivery polls the call on that thread.
struct Delivery(Mutex<Option<(PendingCall, Callback)>>);

impl Delivery {
    fn advance(self: &Arc<Self>) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((call, _)) = &mut *pending else { return };
        let waker = Waker::from(self.clone());
        let Poll::Ready(outcome) = call.poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        let taken = pending.take();
        // Unlocks first: the callback may do anything, and may even wake this delivery.
        drop(pending);
        if let Some((call, callback)) = taken {
            drop(call);
            callback.call(outcome);
        }
    }
}

impl Wake for Delivery {
    fn wake(self: Arc<Self>) {
        self.advance();
    }
}

exported!(hotlease_then(invocation: *mut InvocationHandle, callback: RawCallback, user: *mut c_void) {
    let call = take(invocation)?;
    let callback = Callback::new(callback, user)?;
    Arc::new(Delivery(Mutex::new(Some((call, callback))))).advance();
    Ok(())
});

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn note(
        user: *mut c_void,
        status: Status,
        out: *const c_void,
        size: usize,
        error: *const ErrorHandle,
    ) {
        // SAFETY: the test passes a Vec, and the library passes the bytes of the result.
        let (seen, bytes) = unsafe {
            let bytes = if out.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(out.cast::<u8>(), size)
            };
            (&mut *user.cast::<Vec<(Status, Vec<u8>, bool)>>(), bytes)
        };
        seen.push((status, bytes.to_vec(), error.is_null()));
    }

    #[test]
    fn a_callback_hears_of_results_and_errors() {
        let mut seen: Vec<(Status, Vec<u8>, bool)> = Vec::new();
        let user: *mut c_void = (&raw mut seen).cast();
        let deliver = |result| deliver_to(Callback::new(Some(note), user).ok().unwrap(), result);
        deliver(Ok(vec![1, 2]));
        deliver(Ok(Vec::new()));
        deliver(Err(Error::Function {
            code: 7,
            output: vec![3],
        }));
        deliver(Err(Error::NoCredit));
        let expected = [
            (Status::Ok, vec![1, 2], true),
            (Status::Ok, vec![], true),
            (Status::FunctionFailed, vec![3], false),
            (Status::Busy, vec![], false),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_call_that_has_ended_keeps_its_result() {
        let ended = || PendingCall::Ended(Ok((vec![1, 2, 3], 3)));
        assert!(ended().is_done() && ended().wait_for(Duration::ZERO));
        let mut out = [0; 4];
        assert_eq!(ended().wait_into(&mut out).unwrap(), 3);
        assert_eq!(out, [1, 2, 3, 0]);
        let error = ended().wait_into(&mut out[..2]).unwrap_err();
        assert!(matches!(
            error,
            Error::OutputTooLarge {
                produced: 3,
                capacity: 2
            }
        ));
        assert_eq!(PendingCall::Ended(in_buffer(Ok(9))).wait_into(&mut []).unwrap(), 9);
    }
}
