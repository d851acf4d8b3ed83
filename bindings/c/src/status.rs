//! Kinds of failure, and the error object.

#[cfg_attr(not(feature = "platform"), path = "status/no_platform.rs")]
mod platform;

#[cfg(feature = "platform")]
pub(crate) use platform::ItemError;
pub(crate) use platform::PlatformError;

use crate::argument::put;
use crate::comm::failure;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `hotlease_status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    FunctionFailed = 1,
    OutputTooLarge = 2,
    DeadlineExceeded = 3,
    Busy = 4,
    InvalidArgument = 5,
    Cancelled = 6,
    OperatorFailed = 7,
    CodeRejected = 20,
    UnknownFunction = 21,
    WorkerDied = 40,
    OutcomeUnknown = 41,
    LeaseEnded = 60,
    MemoryLost = 61,
    MemberLost = 70,
    MemberLeft = 71,
    Outcast = 72,
    Mismatch = 73,
    NotTogether = 74,
    NotRead = 75,
    Finished = 76,
    NoCapacity = 80,
    Refused = 81,
    Unavailable = 82,
    Protocol = 83,
    Local = 84,
    Internal = 100,
}

/// Failure of a function of this library.
pub(crate) enum Failure {
    /// An error of the client library or of a gang.
    Platform(PlatformError),
    /// An error of message passing.
    Comm(hotlease_comm::Error),
    /// An argument that must not be NULL is NULL.
    Null(&'static str),
    /// Another invalid argument.
    Argument(String),
    /// A panic, with its message.
    Panic(String),
}

impl Failure {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Platform(error) => error.status(),
            Self::Comm(error) => failure::status_of(error),
            Self::Null(_) | Self::Argument(_) => Status::InvalidArgument,
            Self::Panic(_) => Status::Internal,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Platform(error) => error.message(),
            Self::Comm(error) => error.to_string(),
            Self::Null(name) => format!("{name} is NULL"),
            Self::Argument(what) => what.clone(),
            Self::Panic(what) => format!("a defect of hotlease itself, please report it: {what}"),
        }
    }
}

/// `hotlease_error`.
pub struct ErrorHandle {
    failure: Failure,
    message: CString,
    /// See [`failure::cause_of`].
    cause: CString,
}

impl ErrorHandle {
    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    pub(crate) fn cause(&self) -> &CStr {
        &self.cause
    }

    pub(crate) fn new(failure: Failure) -> Self {
        // Messages may quote a function's output; a zero byte in it would hide the rest.
        let message = failure.message().replace('\0', " ");
        Self {
            message: CString::new(message).unwrap_or_default(),
            cause: failure::cause_of(&failure),
            failure,
        }
    }
}

/// Runs the body of a function of the ABI. A failure becomes a status and, if the caller asks for it, an error object.
/// A panic is also such a failure, because it must not unwind into C.
///
/// # Safety
/// `error` is NULL or valid for writing a pointer.
#[inline]
pub(crate) unsafe fn run_guarded(error: *mut *mut ErrorHandle, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // Unwind-safe: state that a panic leaves half changed is behind the client library's locks, which do not poison.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => {
            // SAFETY: the caller's promise.
            unsafe { report(error, failure) }
        }
        Err(panic) => {
            // SAFETY: the caller's promise.
            unsafe { report(error, Failure::Panic(panic_message(panic.as_ref()))) }
        }
    }
}

/// Defines a function of the ABI that may fail, by its arguments (`error` is added as the last argument) and its body.
/// The body is unsafe code: as the header demands, pointers are NULL or valid, and handles are not freed yet. With
/// `free`, defines the function that frees a handle. With `get`, defines a function that reads a value of a handle, or
/// returns another value for NULL.
macro_rules! exported {
    (free $name:ident($handle:ty)) => {
        /// See the header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut $handle) {
            // SAFETY: NULL, or returned by this library and not freed yet, as the header demands.
            unsafe { $crate::status::free(handle) };
        }
    };
    (get $name:ident($handle:ident: $type:ty) -> $result:ty { $otherwise:expr, $value:expr }) => {
        /// See the header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($handle: *const $type) -> $result {
            $crate::status::catch_panic($otherwise, || {
                // SAFETY: the handle is NULL or valid, as the header demands.
                unsafe { $handle.as_ref() }.map_or($otherwise, |$handle| $value)
            })
        }
    };
    ($name:ident($($argument:ident: $type:ty),* $(,)?) { $($body:tt)* }) => {
        /// See the header.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the header's")]
        pub unsafe extern "C" fn $name(
            $($argument: $type,)*
            error: *mut *mut $crate::status::ErrorHandle,
        ) -> $crate::status::Status {
            // SAFETY: pointers are NULL or valid, as the header demands.
            let body = || unsafe { $($body)* };
            // SAFETY: NULL or valid, as the header demands.
            unsafe { $crate::status::run_guarded(error, body) }
        }
    };
}
pub(crate) use exported;

/// Runs code that cannot fail; returns `otherwise` after a panic.
pub(crate) fn catch_panic<R>(otherwise: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cold]
#[inline(never)]
unsafe fn report(error: *mut *mut ErrorHandle, failure: Failure) -> Status {
    let status = failure.status();
    if !error.is_null() {
        // SAFETY: not NULL, so valid by the caller's promise.
        unsafe { put(error, Box::into_raw(Box::new(ErrorHandle::new(failure)))) };
    }
    status
}

exported!(get hotlease_error_status(error: ErrorHandle) -> c_int {
    Status::Ok as c_int, error.failure.status() as c_int
});

exported!(get hotlease_error_ran(error: ErrorHandle) -> c_int {
    0, match error.failure() {
        Failure::Platform(error) => error.ran(),
        Failure::Panic(_) => 2,
        _ => 0,
    }
});

exported!(get hotlease_error_billed(error: ErrorHandle) -> c_int {
    0, match error.failure() {
        Failure::Platform(error) => error.billed().into(),
        Failure::Panic(_) => 1,
        _ => 0,
    }
});

exported!(get hotlease_error_retryable(error: ErrorHandle) -> c_int {
    0, match error.failure() {
        Failure::Platform(error) => error.retryable().into(),
        _ => 0,
    }
});

exported!(get hotlease_error_code(error: ErrorHandle) -> i32 {
    0, match error.failure() {
        Failure::Platform(error) => error.code(),
        _ => 0,
    }
});

exported!(get hotlease_error_needed(error: ErrorHandle) -> u64 {
    0, match error.failure() {
        Failure::Platform(error) => error.needed(),
        Failure::Comm(hotlease_comm::Error::Truncated { sent, .. }) => *sent,
        _ => 0,
    }
});

exported!(get hotlease_error_message(error: ErrorHandle) -> *const c_char { c"".as_ptr(), error.message.as_ptr() });
exported!(free hotlease_error_free(ErrorHandle));

/// Frees a handle from `Box::into_raw`.
///
/// # Safety
/// `handle` is NULL, or was returned by `Box::into_raw` and not freed yet.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        catch_panic((), || {
            // SAFETY: not NULL, so the caller's promise holds.
            drop(unsafe { Box::from_raw(handle) });
        });
    }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hotlease_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"ok",
        1 => c"function failed",
        2 => c"output too large",
        3 => c"deadline exceeded",
        4 => c"busy",
        5 => c"invalid argument",
        6 => c"cancelled",
        7 => c"operator failed",
        20 => c"code rejected",
        21 => c"unknown function",
        40 => c"worker died",
        41 => c"outcome unknown",
        60 => c"lease ended",
        61 => c"memory lost",
        70 => c"member lost",
        71 => c"member left",
        72 => c"outcast",
        73 => c"calls do not match",
        74 => c"not together",
        75 => c"not read",
        76 => c"finished",
        80 => c"no capacity",
        81 => c"refused",
        82 => c"unavailable",
        83 => c"protocol broken",
        84 => c"local failure",
        100 => c"internal error",
        _ => c"unknown status",
    };
    name.as_ptr()
}
