//! `hotlease_comm`, the communicator of one member; `communicator.h`.
//!
//! * [`failure`] — status and details of an error of message passing.
//! * [`options`], [`rendezvous`], [`operator`], [`request`] — one struct or handle each; [`datatype`] — the numbers of
//!   types.
//! * [`messages`], [`collectives`] — operations of a communicator; [`asked`] — a collective with its arguments.

mod collective_call;
mod collectives;
mod datatype;
pub(crate) mod failure;
mod messages;
mod operator;
mod options;
mod rendezvous;
mod request;

use crate::argument::{object, put, require_place, sized};
use crate::status::{ErrorHandle, Failure, Status, catch_panic, free, run_guarded};
use hotlease_comm::Communicator;
use options::Options;
use std::ffi::{CString, c_char};

/// `hotlease_comm`.
pub struct CommHandle {
    communicator: Communicator,
    /// Owned by the handle, for the functions that return them.
    name: CString,
    link: CString,
}

impl CommHandle {
    pub(crate) fn of(communicator: Communicator) -> Self {
        Self {
            // The name came as a C string, so it has no zero byte. A member of another language whose name has one does
            // not match it.
            name: CString::new(communicator.name()).unwrap_or_default(),
            link: CString::new(communicator.link().to_string()).unwrap_or_default(),
            communicator,
        }
    }

    pub(crate) fn into_communicator(self) -> Communicator {
        self.communicator
    }

    fn give(communicator: Communicator) -> *mut Self {
        Box::into_raw(Box::new(Self::of(communicator)))
    }
}

/// Takes the communicator out of a handle, and frees the handle.
///
/// # Safety
/// `comm` is NULL, or was given out and not given back yet.
unsafe fn take(comm: *mut CommHandle) -> Result<Communicator, Failure> {
    // SAFETY: the caller's promise.
    unsafe { object(comm, "comm") }?;
    // SAFETY: not NULL, so the caller's promise holds.
    Ok(unsafe { Box::from_raw(comm) }.communicator)
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_join(
    options: *const Options,
    comm: *mut *mut CommHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(comm, "comm")?;
        // SAFETY: NULL or a hotlease_comm_options with its size set, as the header demands.
        let options = unsafe { sized(options, "options") }?.unwrap_or_default();
        // SAFETY: its texts and its secret are NULL or valid, as the header demands.
        let options = unsafe { options.understood() }?;
        let joined = Communicator::join(&options)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(comm, CommHandle::give(joined)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_rank(comm: *const CommHandle) -> u32 {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.communicator.rank())
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_size(comm: *const CommHandle) -> u32 {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { comm.as_ref() }.map_or(0, |comm| comm.communicator.size())
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_name(comm: *const CommHandle) -> *const c_char {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { comm.as_ref() }.map_or(c"".as_ptr(), |comm| comm.name.as_ptr())
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_link(comm: *const CommHandle) -> *const c_char {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { comm.as_ref() }.map_or(c"".as_ptr(), |comm| comm.link.as_ptr())
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_split(
    comm: *const CommHandle,
    color: i64,
    key: i64,
    part: *mut *mut CommHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(part, "part")?;
        // SAFETY: NULL or valid, as the header demands.
        let comm = unsafe { object(comm, "comm") }?;
        let made = comm.communicator.split(number_or_none(color, "color")?, key)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(part, made.map_or(std::ptr::null_mut(), CommHandle::give)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// Defines a function that makes a communicator from another one.
macro_rules! derives {
    ($name:ident, $method:ident($($argument:ident: $type:ty)?), $place:ident) => {
        /// See `communicator.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            comm: *const CommHandle,
            $($argument: $type,)?
            $place: *mut *mut CommHandle,
            error: *mut *mut ErrorHandle,
        ) -> Status {
            let body = || {
                require_place($place, stringify!($place))?;
                // SAFETY: NULL or valid, as the header demands.
                let comm = unsafe { object(comm, "comm") }?;
                let made = comm.communicator.$method($($argument)?)?;
                // SAFETY: checked not to be NULL; valid as the header demands.
                unsafe { put($place, CommHandle::give(made)) };
                Ok(())
            };
            // SAFETY: NULL or valid, as the header demands.
            unsafe { run_guarded(error, body) }
        }
    };
}

derives!(hotlease_comm_dup, dup(), same);
derives!(hotlease_comm_shrink, shrink(), smaller);
derives!(hotlease_comm_grow, grow(joining: u32), larger);

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_finish(comm: *mut CommHandle, error: *mut *mut ErrorHandle) -> Status {
    let body = || {
        // SAFETY: NULL, or given out and not freed yet, as the header demands.
        let communicator = unsafe { take(comm) }?;
        Ok(communicator.finish()?)
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_free(comm: *mut CommHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(comm) };
}

/// See `communicator.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_comm_abort(comm: *mut CommHandle) {
    catch_panic((), || {
        // SAFETY: NULL, or given out above and not freed yet, as the header demands.
        if let Ok(communicator) = unsafe { take(comm) } {
            communicator.abort();
        }
    });
}

/// Reads a number of 32 bits, `None` for -1.
fn number_or_none(number: i64, name: &str) -> Result<Option<u32>, Failure> {
    match number {
        -1 => Ok(None),
        _ => u32::try_from(number).map(Some).map_err(|_| {
            Failure::Argument(format!(
                "{name} cannot be {number}: it is from 0 to {}, or -1",
                u32::MAX
            ))
        }),
    }
}
