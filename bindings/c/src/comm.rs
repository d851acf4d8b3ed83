//! `hotlease_comm`, the communicator of one member; `communicator.h`.
//!
//! * [`failure`] — status and details of an error of message passing.
//! * [`options`], [`rendezvous`], [`operator`], [`request`] — one struct or handle each; [`datatype`] — the numbers of
//!   types.
//! * [`messages`], [`collectives`] — operations of a communicator; [`collective_call`] — a collective with its arguments.

mod collective_call;
mod collectives;
mod datatype;
pub(crate) mod failure;
mod messages;
mod operator;
mod options;
mod rendezvous;
mod request;

use crate::argument::{give, object, put, require_place, sized};
use crate::status::{Failure, catch_panic, exported};
use hotlease_comm::Communicator;
use options::Options;
use std::ffi::{CString, c_char};

/// `hotlease_comm`.
pub struct CommHandle {
    communicator: Communicator,
    /// Name and link, owned by the handle, because functions return pointers to them.
    name: CString,
    link: CString,
}

impl CommHandle {
    pub(crate) fn of(communicator: Communicator) -> Self {
        Self {
            // The name was passed as a C string, so it has no zero byte. A name with a zero byte, from a member in
            // another language, does not match it.
            name: CString::new(communicator.name()).unwrap_or_default(),
            link: CString::new(communicator.link().to_string()).unwrap_or_default(),
            communicator,
        }
    }

    pub(crate) fn into_communicator(self) -> Communicator {
        self.communicator
    }
}

/// Takes the communicator out of a handle, and frees the handle.
///
/// # Safety
/// `comm` is NULL, or was returned to the caller and not freed yet.
unsafe fn take(comm: *mut CommHandle) -> Result<Communicator, Failure> {
    // SAFETY: the caller's promise.
    unsafe { object(comm, "comm") }?;
    // SAFETY: not NULL, so the caller's promise holds.
    Ok(unsafe { Box::from_raw(comm) }.communicator)
}

exported!(hotlease_comm_join(options: *const Options, comm: *mut *mut CommHandle) {
    require_place(comm, "comm")?;
    let options = sized(options, "options")?.unwrap_or_default();
    let options = options.understood()?;
    give(comm, CommHandle::of(Communicator::join(&options)?))
});

exported!(get hotlease_comm_rank(comm: CommHandle) -> u32 { 0, comm.communicator.rank() });
exported!(get hotlease_comm_size(comm: CommHandle) -> u32 { 0, comm.communicator.size() });
exported!(get hotlease_comm_name(comm: CommHandle) -> *const c_char { c"".as_ptr(), comm.name.as_ptr() });
exported!(get hotlease_comm_link(comm: CommHandle) -> *const c_char { c"".as_ptr(), comm.link.as_ptr() });

exported!(hotlease_comm_split(comm: *const CommHandle, color: i64, key: i64, part: *mut *mut CommHandle) {
    require_place(part, "part")?;
    let comm = object(comm, "comm")?;
    let made = comm.communicator.split(number_or_none(color, "color")?, key)?;
    match made {
        Some(made) => give(part, CommHandle::of(made)),
        None => {
            put(part, std::ptr::null_mut());
            Ok(())
        }
    }
});

/// Defines a function that makes a communicator from another communicator.
macro_rules! derives {
    ($name:ident, $method:ident($($argument:ident: $type:ty)?), $place:ident) => {
        exported!($name(comm: *const CommHandle, $($argument: $type,)? $place: *mut *mut CommHandle) {
            require_place($place, stringify!($place))?;
            let made = object(comm, "comm")?.communicator.$method($($argument)?)?;
            give($place, CommHandle::of(made))
        });
    };
}

derives!(hotlease_comm_dup, dup(), same);
derives!(hotlease_comm_shrink, shrink(), smaller);
derives!(hotlease_comm_grow, grow(joining: u32), larger);

exported!(hotlease_comm_finish(comm: *mut CommHandle) {
    let communicator = take(comm)?;
    Ok(communicator.finish()?)
});

exported!(free hotlease_comm_free(CommHandle));

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

/// Reads a number of 32 bits; returns `None` for -1.
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
